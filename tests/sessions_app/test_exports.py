"""Sessions as files (behaviour 9.3, 12.3, 17.6)."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import pytest
from django.core.files.storage import default_storage

from permissions_app.decisions import PermissionGate
from sessions_app import archives, blobs, exports, limits, queries
from sessions_app.chatmd.export import REDACTED, export_entry
from sessions_app.errors import Conflict, InvalidRequest, PermissionDenied, PersistenceError, SessionNotFound
from sessions_app.exports import Exported, Wanted
from sessions_app.history import user_message
from sessions_app.models import Archive, Blob
from sessions_app.queries import Place
from sessions_app.records import (
    HistoryWindowRequest,
    HistoryWindowRequestAfter,
    HistoryWindowRequestBefore,
    HistoryWindowRequestCursor,
    HistoryWindowRequestTail,
    Principal,
    Scope,
    Snapshot,
)
from sessions_app.views import TRANSCRIPT
from tests.support.replay_law import replay_law, snapshot
from tests.support.world import SCOPES, Client, World

READING: frozenset[Scope] = frozenset({"session.transcript.read"})


class Document(msgspec.Struct):
    """A JSON export."""

    snapshot: Snapshot
    history: list[msgspec.Raw]


def principal(client: Client) -> Principal:
    return Principal(
        id=client.caller.principal_id or "",
        authentication_kind="http.static_bearer",
        scopes=tuple(sorted(client.caller.scopes)),
        attributes={},
    )


def no_cursor(_cursor: str) -> Place:
    raise InvalidRequest("no cursor")


def export(client: Client, format: str = "json", **wanted: Any) -> Exported:
    return exports.export(
        client.reader,
        principal(client),
        client.session_id,
        Wanted(format=format, **wanted),  # type: ignore[arg-type]  # of the parameter
        wanted.pop("open_cursor", no_cursor),
    )


def content(made: Exported) -> bytes:
    return blobs.read(made.blob.digest)


def document(made: Exported) -> Document:
    return msgspec.json.decode(content(made), type=Document)


def talked(world: World, turns: int = 2) -> Client:
    """Make a session of some turns, the last with a call; stopped."""
    client = world.idle()
    for number in range(turns):
        world.finish(world.turn(client, f"question {number}"), f"answer {number}")
    world.propose(world.turn(client, "act"), "write", gate=PermissionGate())
    world.stop(client, "cancel")
    return client


def ids_of(made: Exported) -> list[str]:
    return [msgspec.json.decode(entry)["id"] for entry in document(made).history]


def test_json_of_now(world: World) -> None:
    """9.3: "object with `snapshot` (projected) and `history` (entries)"; no revision moves."""
    client = talked(world)
    with replay_law(client.session_id):
        made = export(client)
    now = snapshot(client.session_id, client.caller.view)

    assert (made.revision, made.latest_event_sequence) == (now.revision, now.latest_event_sequence)
    assert world.counters(client)[0] == now.revision
    assert (made.blob.media_type, made.blob.display_name) == ("application/json", "session.json")
    assert document(made).snapshot == now
    assert ids_of(made) == [entry.id for entry in now.canonical_history.entries]
    assert made.blob.byte_length == len(content(made))
    assert made.blob.digest == sha256(content(made)).hexdigest()
    blob = Blob.objects.get()
    assert (blob.session_id, blob.expires_at, blob.allowed_use) == (client.session_id, None, exports.USE)


def test_chatmd_of_now(world: World) -> None:
    client = talked(world)
    made = export(client, "chatmd")
    entries = snapshot(client.session_id).canonical_history.entries

    assert made.blob.media_type == "text/markdown; charset=utf-8"
    assert made.blob.display_name == "session.chatmd"
    assert content(made).decode() == "".join(map(export_entry, entries))


def test_a_reader_gets_what_a_reader_sees(world: World) -> None:
    writer = talked(world)
    reader = world.attach(writer.session_id, "read_only", by=world.client(scopes=READING))
    made = document(export(reader))
    assert made.snapshot == snapshot(writer.session_id, TRANSCRIPT)
    assert sum(b'"redacted":true' in bytes(entry) for entry in made.history) == 2
    assert content(export(reader, "chatmd")).decode().count(REDACTED) == 2


def test_an_archive_is_exported_as_it_was(world: World) -> None:
    """9.3: "one of `archived_revisions` → that archive"."""
    client = talked(world)
    then = snapshot(client.session_id)
    world.reset(client, history=False)
    world.reset(client)
    made = export(client, revision=then.revision)

    assert document(made).snapshot == then
    assert ids_of(made) == [entry.id for entry in then.canonical_history.entries]
    assert made.revision == world.counters(client)[0]
    chatmd = content(export(client, "chatmd", revision=then.revision)).decode()
    assert chatmd == "".join(map(export_entry, then.canonical_history.entries))
    reader = world.attach(client.session_id, "read_only", by=world.client(scopes=READING))
    assert content(export(reader, "chatmd", revision=then.revision)).decode().count(REDACTED) == 2


def test_another_revision_is_a_conflict(world: World) -> None:
    client = talked(world)
    revision = world.counters(client)[0]
    assert document(export(client, revision=revision)).snapshot.revision == revision
    for other in (revision - 1, revision + 1):
        with pytest.raises(Conflict):
            export(client, revision=other)


@pytest.mark.parametrize("damage", ["altered", "cut", "gone"])
def test_a_damaged_archive_is_refused(world: World, damage: str) -> None:
    """4.6: "corrupt archive → `persistence_error`"; nothing else stands in for it."""
    client = talked(world)
    revision = world.counters(client)[0]
    world.reset(client)
    archive = Archive.objects.get()
    with default_storage.open(archive.name) as file:
        stored = file.read()
    archives.discard(archive.name)
    if damage != "gone":
        with default_storage.open(archive.name, "wb") as file:
            file.write(stored[:-1] if damage == "cut" else stored.replace(b"answer", b"ANSWER"))
    with pytest.raises(PersistenceError):
        export(client, revision=revision)
    assert document(export(client)).snapshot.archived_revisions == (revision,)


def windows(client: Client) -> list[tuple[HistoryWindowRequest, Place | None]]:
    entries = snapshot(client.session_id).canonical_history.entries
    middle = entries[3].id
    common: dict[str, Any] = {"limit": 2, "effective": False}
    cursor = HistoryWindowRequestCursor(window_cursor="there", **common)
    return [
        (HistoryWindowRequestTail(tail_count=3, limit=3, effective=True), None),
        (HistoryWindowRequestTail(tail_count=99, limit=99, effective=False), None),
        (HistoryWindowRequestTail(tail_count=99, **common), None),
        (HistoryWindowRequestAfter(history_id=middle, **common), None),
        (HistoryWindowRequestAfter(history_id=entries[-1].id, **common), None),
        (HistoryWindowRequestBefore(history_id=middle, **common), None),
        (HistoryWindowRequestBefore(history_id=entries[0].id, **common), None),
        (cursor, Place(3, "after", effective=False)),
        (cursor, Place(1, "before", effective=False)),
    ]


def test_windows_of_now_and_of_an_archive_are_cut_alike(world: World) -> None:
    client = talked(world)
    revision = world.counters(client)[0]
    cases = windows(client)
    session = queries.load(client.session_id)
    assert session is not None
    expected = [
        queries.snapshot(session, client.caller.view, window=window, place=place) for window, place in cases
    ]
    made = [document(_windowed(client, window, place, revision=None)) for window, place in cases]
    world.reset(client, history=False)
    archived = [document(_windowed(client, window, place, revision=revision)) for window, place in cases]

    assert [each.snapshot for each in made] == expected
    assert [each.snapshot for each in archived] == expected
    assert [each.history for each in archived] == [each.history for each in made]
    assert [len(each.history) for each in made] == [3, 8, 2, 2, 0, 2, 0, 2, 1]


def _windowed(
    client: Client, window: HistoryWindowRequest, place: Place | None, revision: int | None
) -> Exported:
    def opened(_cursor: str) -> Place:
        assert place is not None
        return place

    wanted = Wanted(format="json", revision=revision, window=window)
    return exports.export(client.reader, principal(client), client.session_id, wanted, opened)


def test_an_unknown_anchor_and_a_foreign_cursor(world: World) -> None:
    client = talked(world)
    revision = world.counters(client)[0]
    world.reset(client)
    unknown = HistoryWindowRequestAfter(history_id=f"3:abc:{1}", limit=1, effective=False)
    cursor = HistoryWindowRequestCursor(window_cursor="there", limit=1, effective=True)
    for at in (None, revision):
        with pytest.raises(InvalidRequest):
            export(client, revision=at, window=unknown)
        with pytest.raises(InvalidRequest):
            export(client, revision=at, window=cursor)
        with pytest.raises(InvalidRequest):
            _windowed(client, cursor, Place(1, "after", effective=False), at)


def test_a_history_of_more_than_a_window_is_exported_whole(world: World) -> None:
    client = world.idle()
    text = "x" * (3 * limits.MIB)
    claim = world.turn(client)
    world.finish(claim, entries=[user_message(text) for _ in range(3)])
    world.stop(client)
    revision = world.counters(client)[0]
    now = document(export(client))
    world.reset(client, history=False)
    then = document(export(client, revision=revision))

    assert [len(now.history), len(then.history)] == [5, 5]
    assert [entry.id for entry in now.snapshot.canonical_history.entries] == [
        entry.id for entry in then.snapshot.canonical_history.entries
    ]
    assert not then.snapshot.canonical_history.reached_start


def test_who_may_export(world: World) -> None:
    client = talked(world)
    stranger = world.client("bob", SCOPES)
    with pytest.raises(PermissionDenied):
        exports.export(
            stranger.caller, principal(stranger), client.session_id, Wanted(format="json"), no_cursor
        )
    world.delete(client)
    with pytest.raises(PermissionDenied):
        export(client)
    with pytest.raises(SessionNotFound):
        exports.export(
            client.connected, principal(client), client.session_id, Wanted(format="json"), no_cursor
        )


def test_an_export_is_for_exactly_its_reader(world: World) -> None:
    """9.3: "any other authority, even the same ID with fewer scopes, is refused"."""
    client = talked(world)
    made = export(client)
    session = queries.load(client.session_id)
    assert session is not None
    assert blobs.find(session, made.blob.id, principal(client)).byte_length == made.blob.byte_length
    fewer = msgspec.structs.replace(principal(client), scopes=("session.transcript.read",))
    with pytest.raises(PermissionDenied):
        blobs.find(session, made.blob.id, fewer)
