"""Reads: the replay decision (behaviour 8.3), snapshots (8.8) and windows (12.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from permissions_app.decisions import PermissionGate
from permissions_app.models import Grant
from sessions_app import clock, history, ids, ledger, limits, queries
from sessions_app.callers import system
from sessions_app.commands import entries
from sessions_app.db import read_snapshot
from sessions_app.encoding import encode
from sessions_app.errors import InvalidRequest, InvalidState, to_error
from sessions_app.events import ModeratorNotificationPayload, SessionUpdatedPayload
from sessions_app.limits import ServerSettings
from sessions_app.models import Archive, HistoryEntry, Session
from sessions_app.projection import project_event
from sessions_app.queries import Place, Replay
from sessions_app.records import (
    HistoryWindow,
    HistoryWindowRequest,
    HistoryWindowRequestAfter,
    HistoryWindowRequestBefore,
    HistoryWindowRequestCursor,
    HistoryWindowRequestTail,
    ObservedFailed,
    Snapshot,
)
from sessions_app.views import FULL, TRANSCRIPT, View
from tests.support.world import Client, World, shown

BY = system("test")


def sign(place: Place) -> str:
    """Make the cursor of a place; what signing adds is not the kernel's."""
    return f"{place.position}/{place.direction}/{place.effective}"


def opened(cursor: str) -> Place:
    position, direction, effective = cursor.split("/")
    return Place(int(position), "before" if direction == "before" else "after", effective == "True")


def load(client: Client) -> Session:
    session = queries.load(client.session_id)
    assert session is not None
    return session


# The replay decision


def noted(world: World, count: int, text: str = "note") -> Client:
    """Open a session and add `count` events to its log."""
    client = world.create()
    for _ in range(count):
        with ledger.session_txn(client.session_id, BY) as txn:
            txn.emit("moderator.notification", ModeratorNotificationPayload(message=text))
    return client


def replayed(client: Client, after: int | None, view: View = FULL) -> Replay:
    with read_snapshot():
        return queries.replay(load(client), after, view, sign)


def test_replay_of_a_known_position(world: World) -> None:
    """8.3: "absent | snapshot"; "≥ latest | events, empty list"; "otherwise | events in (after, latest], projected"; H1."""
    client = noted(world, 4)
    absent = replayed(client, None)
    assert absent.snapshot is not None
    assert (absent.events, absent.latest_event_sequence) == ((), 5)
    for after in (5, 6, 2**63 - 1):
        assert replayed(client, after) == Replay(None, (), 5)
    for after in range(5):
        found = replayed(client, after)
        assert found.snapshot is None
        assert [event.sequence for event in found.events] == list(range(after + 1, 6))


def test_replayed_events_are_those_of_the_live_stream(world: World) -> None:
    """H2: "live events of a subscriber vs later replay: identical kinds, order, relative revisions, visibility"."""
    client = noted(world, 2)
    for view in (FULL, TRANSCRIPT):
        expected = [project_event(event, view) for event in world.events(client.session_id)]
        assert list(replayed(client, 0, view).events) == expected


@pytest.mark.parametrize(("after", "is_snapshot"), [(0, True), (1, True), (2, False), (3, False)])
def test_replay_beyond_retention_is_a_snapshot(world: World, after: int, is_snapshot: bool) -> None:
    """8.3: "+ 1 < oldest retained, or nothing retained | snapshot"; H3; 8.4: whether the rows are gone already or not."""
    with limits.using(ServerSettings(max_events_per_session=3)):
        client = noted(world, 4)
    assert world.session(client.session_id).oldest_sequence == 3
    assert (replayed(client, after).snapshot is not None) is is_snapshot


def test_a_long_replay_is_a_snapshot(world: World) -> None:
    """8.3: "**R** a snapshot when they exceed 8 MiB encoded"."""
    client = noted(world, 9, "x" * (limits.MIB - 1024))
    assert replayed(client, 1).snapshot is not None
    assert replayed(client, 2).snapshot is None


def test_many_small_events_count_as_they_are_sent(world: World) -> None:
    """8.3: the envelope of each event is encoded too: what is answered stays within 8 MiB."""
    client = noted(world, 40, "x")
    events = replayed(client, 0).events
    sent = sum(len(encode(event)) for event in events)
    counted = sum(len(row.payload) + ledger.EVENT_OVERHEAD for row in world.events(client.session_id))
    assert sent <= counted


# Windows


def talked(world: World, count: int) -> Client:
    """Open a session whose history holds the prompt's message and `count` more, named by their place."""
    client = world.create()
    with ledger.session_txn(client.session_id, BY) as txn:
        entries.append_and_tell(txn, [history.user_message(str(number)) for number in range(1, count + 1)])
    return client


def window(client: Client, request: HistoryWindowRequest, place: Place | None = None) -> HistoryWindow:
    snapshot = queries.snapshot(load(client), FULL, sign, request, place)
    return snapshot.canonical_history


def texts(found: HistoryWindow) -> list[str]:
    return [shown(bytes(entry.payload)).removeprefix("user: ") for entry in found.entries]


def anchor(client: Client, number: int) -> str:
    return ids.history_id(client.session_id, number)


def ends(found: HistoryWindow) -> tuple[bool, bool, bool]:
    return found.reached_start, found.reached_end, found.structurally_complete


DEVELOPER = "developer: Be brief."


def check(found: HistoryWindow, expected: Sequence[str], reached: tuple[bool, bool]) -> None:
    """Check the entries of a window, its flags, and that it has a cursor exactly where it can be read on."""
    assert texts(found) == list(expected)
    assert ends(found) == (*reached, all(reached)), (
        "structurally complete only if the whole history is returned"
    )
    assert ((found.previous_cursor is UNSET), (found.next_cursor is UNSET)) == reached


@pytest.mark.parametrize(
    ("count", "limit", "expected", "reached"),
    [
        (2, 9, ["4", "5"], (False, True)),
        (9, 2, ["4", "5"], (False, True)),
        (9, 9, [DEVELOPER, "1", "2", "3", "4", "5"], (True, True)),
    ],
)
def test_the_tail(
    world: World, count: int, limit: int, expected: Sequence[str], reached: tuple[bool, bool]
) -> None:
    """12.3: "tail n | last min(n, limit)"."""
    client = talked(world, 5)
    request = HistoryWindowRequestTail(tail_count=count, limit=limit, effective=False)
    check(window(client, request), expected, reached)


@pytest.mark.parametrize(
    ("made", "number", "expected", "reached"),
    [
        (HistoryWindowRequestAfter, 3, ["4", "5"], (False, True)),
        (HistoryWindowRequestAfter, 0, ["1", "2"], (False, False)),
        (HistoryWindowRequestAfter, 5, [], (False, True)),
        (HistoryWindowRequestBefore, 3, ["1", "2"], (False, False)),
        (HistoryWindowRequestBefore, 2, [DEVELOPER, "1"], (True, False)),
        (HistoryWindowRequestBefore, 0, [], (True, False)),
    ],
)
def test_windows_at_an_entry(
    world: World, made: Any, number: int, expected: Sequence[str], reached: tuple[bool, bool]
) -> None:
    """12.3: "after id | next `limit` following id, exclusive; before id | up to `limit` preceding id, exclusive"."""
    client = talked(world, 5)
    request = made(history_id=anchor(client, number), limit=2, effective=False)
    check(window(client, request), expected, reached)


@pytest.mark.parametrize("direction", ["before", "after"])
def test_cursors_walk_the_whole_history(world: World, direction: str) -> None:
    """12.3: "cursor: on from the stored place, in the direction of the cursor": every entry once, from either end."""
    client = talked(world, 7)
    if direction == "before":
        found = window(client, HistoryWindowRequestTail(tail_count=3, limit=3, effective=False))
    else:
        first = HistoryWindowRequestBefore(history_id=anchor(client, 3), limit=3, effective=False)
        found = window(client, first)
    walked = [texts(found)]
    while True:
        cursor = found.previous_cursor if direction == "before" else found.next_cursor
        if cursor is UNSET:
            break
        request = HistoryWindowRequestCursor(window_cursor=cursor, limit=3, effective=False)
        found = window(client, request, opened(cursor))
        walked.append(texts(found))
    ordered = walked if direction == "after" else walked[::-1]
    assert [text for page in ordered for text in page] == [DEVELOPER, *map(str, range(1, 8))]
    assert all(len(page) == 3 for page in walked[:-1])


def test_a_cursor_goes_on_where_the_history_has_grown(world: World) -> None:
    """12.2: "the listing goes on behind the last key without repeats": also at an end that was reached before."""
    client = talked(world, 2)
    at_the_end = Place(2, "after", effective=False)
    request = HistoryWindowRequestCursor(window_cursor=sign(at_the_end), limit=5, effective=False)
    found = window(client, request, at_the_end)
    assert (texts(found), ends(found)) == ([], (False, True, False))
    with ledger.session_txn(client.session_id, BY) as txn:
        entries.append_and_tell(txn, [history.user_message("3")])
    assert texts(window(client, request, at_the_end)) == ["3"]


def test_positions_may_have_gaps(world: World) -> None:
    """9.1 leaves gaps; flags and pages go by what is there."""
    world.break_laws()
    client = talked(world, 5)
    HistoryEntry.objects.filter(position__in=[0, 3]).delete()
    found = window(client, HistoryWindowRequestTail(tail_count=3, limit=3, effective=False))
    assert (texts(found), ends(found)[0]) == (["2", "4", "5"], False)
    request = HistoryWindowRequestBefore(history_id=anchor(client, 2), limit=3, effective=False)
    found = window(client, request)
    assert (texts(found), ends(found)[:2]) == (["1"], (True, False))


@pytest.mark.parametrize("entry", ["unknown", "of another session", "malformed"])
@pytest.mark.parametrize("made", [HistoryWindowRequestAfter, HistoryWindowRequestBefore])
def test_unknown_anchors_are_refused(world: World, entry: str, made: Any) -> None:
    """12.3: "Unknown anchor → `invalid_request`"."""
    client = talked(world, 1)
    anchors = {
        "unknown": anchor(client, 77),
        "of another session": ids.history_id(world.create().session_id, 0),
        "malformed": f"{len(client.session_id)}:{client.session_id}:00",
    }
    with pytest.raises(InvalidRequest):
        window(client, made(history_id=anchors[entry], limit=2, effective=False))


def test_the_effective_view_of_a_session_without_overlay(world: World) -> None:
    """12.3: "Canonical request → effective view omitted. Effective request → canonical list empty with all flags false; without an
    overlay the effective view equals canonical"."""
    client = talked(world, 3)

    def asked(*, effective: bool) -> Snapshot:
        request = HistoryWindowRequestTail(tail_count=2, limit=2, effective=effective)
        return queries.snapshot(load(client), FULL, sign, request)

    canonical, effective = asked(effective=False), asked(effective=True)
    assert canonical.effective_history is UNSET
    assert isinstance(effective.effective_history, HistoryWindow)
    assert effective.effective_history.entries == canonical.canonical_history.entries
    assert effective.effective_history.previous_cursor == "2/before/True"
    assert effective.canonical_history == HistoryWindow(
        entries=(), reached_start=False, reached_end=False, structurally_complete=False
    )


def test_a_cursor_belongs_to_its_view(world: World) -> None:
    client = talked(world, 3)
    place = Place(2, "before", effective=True)
    request = HistoryWindowRequestCursor(window_cursor=sign(place), limit=2, effective=False)
    with pytest.raises(InvalidRequest):
        window(client, request, place)
    with pytest.raises(InvalidRequest):
        window(client, request, None)


def test_a_page_has_at_most_what_is_announced(world: World) -> None:
    """12.1: "clamp silently to 1 000"."""
    client = talked(world, limits.MAX_PAGE_SIZE + 5)
    request = HistoryWindowRequestTail(
        tail_count=limits.MAX_CODEC_PAGE_SIZE, limit=limits.MAX_CODEC_PAGE_SIZE, effective=False
    )
    assert len(window(client, request).entries) == limits.MAX_PAGE_SIZE


def test_windows_are_cut_at_8_mib(world: World) -> None:
    """8.8, 16: "its histories carry together the newest 8 MiB (in an answer with `previous_cursor`)"; 8.1: in events without."""
    client = world.create()
    with ledger.session_txn(client.session_id, BY) as txn:
        entries.append_and_tell(txn, [history.user_message(text * (3 * limits.MIB)) for text in "abc"])
    whole = queries.snapshot(load(client), FULL, sign)
    assert [text[0] for text in texts(whole.canonical_history)] == ["b", "c"]
    assert ends(whole.canonical_history) == (False, True, False)
    assert whole.canonical_history.previous_cursor == "2/before/False"
    assert len(encode(whole.canonical_history)) <= limits.MAX_WINDOW_BYTES

    told = queries.newest_window(load(client))
    assert told.entries == whole.canonical_history.entries
    assert told.previous_cursor is UNSET
    older = Place(2, "before", effective=False)
    request = HistoryWindowRequestCursor(window_cursor=sign(older), limit=1000, effective=False)
    assert [text[0] for text in texts(window(client, request, older))] == ["d", "a"], "developer, a"


def test_an_entry_larger_than_the_rest_of_a_window_is_read_by_itself(world: World) -> None:
    """A window of one entry is never empty: none is larger than 4 MiB."""
    client = talked(world, 1)
    newest = HistoryEntry.objects.latest("position")
    newest.payload = newest.payload.replace(b'"1"', b'"%b"' % (b"1" * limits.MAX_WINDOW_BYTES))
    newest.save()
    request = HistoryWindowRequestTail(tail_count=5, limit=5, effective=False)
    assert [set(text) for text in texts(window(client, request))] == [{"1"}]


# Snapshots


def test_a_snapshot_of_a_busy_session(world: World) -> None:
    """8.8: "summary; canonical history window; …archived revisions (newest first); deferred entries; permissions; grants; jobs;
    schedules; active tool calls; …revision; latest sequence"."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run")
    world.propose(claim, "write", gate=PermissionGate())
    world.send(client, "later")
    job, schedule = world.job(client.session_id), world.schedule(client.session_id)
    for revision in (3, 7):
        Archive.objects.create(
            session_id=client.session_id,
            revision=revision,
            name="x",
            sha256="",
            size=0,
            created_at=clock.now(),
        )
    grant = Grant.objects.create(
        id=ids.new_id("grt"),
        session_id=client.session_id,
        principal_id="pri_ann",
        tool_name="run",
        identity_digest="d",
        scope="exact_session",
        created_at=clock.now(),
    )
    with read_snapshot():
        found = queries.snapshot(load(client), FULL, sign)

    assert (found.revision, found.latest_event_sequence) == world.counters(client)
    assert texts(found.canonical_history)[:2] == [DEVELOPER, "hello"]
    assert found.effective_history is UNSET
    assert found.archived_revisions == (7, 3)
    assert [shown(bytes(entry.payload)) for entry in found.deferred_entries] == ["user: later"]
    assert [permission.call_id for permission in found.permissions] == ["call_1"]
    assert [item.id for item in found.grants] == [grant.id]
    assert ([item.id for item in found.jobs], [item.id for item in found.schedules]) == (
        [job.id],
        [schedule.id],
    )
    assert [msgspec.json.decode(call)["payload"]["call_id"] for call in found.active_tool_calls] == ["call_0"]
    assert found.active_agent_calls == ()
    assert (found.halted, found.halt_reason, found.failure) == (False, UNSET, UNSET)

    narrow = queries.snapshot(load(client), TRANSCRIPT, sign)
    assert not (
        narrow.permissions or narrow.grants or narrow.jobs or narrow.schedules or narrow.active_tool_calls
    )
    assert [entry.redacted for entry in narrow.canonical_history.entries] == [False, False, True, True]


def test_agent_calls_are_the_active_calls_that_show_a_page(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run", "run")
    row = world.session(client.session_id).calls.order_by("position")[1]
    row.started = bytes(row.started or b"").replace(
        b'"agent_page_kind":null', b'"agent_page_kind":"subagent"'
    )
    row.save()
    found = queries.snapshot(load(client), FULL, sign)
    assert len(found.active_tool_calls) == 2
    assert [msgspec.json.decode(call)["payload"]["call_id"] for call in found.active_agent_calls] == [
        "call_1"
    ]


def test_a_snapshot_tells_failure_and_halt(world: World) -> None:
    client = world.idle()
    error = to_error(InvalidState("broken"))
    Session.objects.update(observed="failed", failure=encode(error), halted=True, halt_reason="enough")
    found = queries.snapshot(load(client), FULL, sign)
    assert (found.halted, found.halt_reason, found.failure) == (True, "enough", error)
    assert found.session.observed_state == ObservedFailed(error=error)


def test_lists_show_what_lives_first(world: World) -> None:
    """8.8: "the other lists live items before finished ones, newest first, at most 256 each"."""
    client = world.create()
    ended = [world.job(client.session_id, "succeeded").id for _ in range(3)]
    live = [world.job(client.session_id, status).id for status in ("queued", "running", "waiting_permission")]
    failed = [
        world.schedule(client.session_id, "delivered").id,
        world.schedule(client.session_id, "cancelled").id,
    ]
    due = world.schedule(client.session_id).id
    found = queries.snapshot(load(client), FULL)
    assert [job.id for job in found.jobs] == [*live[::-1], *ended[::-1]]
    assert [schedule.id for schedule in found.schedules] == [due, *failed[::-1]]


def test_lists_are_bounded_by_number(world: World) -> None:
    client = world.create()
    for revision in range(limits.MAX_SNAPSHOT_ITEMS + 2):
        Archive.objects.create(
            session_id=client.session_id,
            revision=revision,
            name="x",
            sha256="",
            size=0,
            created_at=clock.now(),
        )
    found = queries.snapshot(load(client), FULL)
    assert found.archived_revisions == tuple(range(limits.MAX_SNAPSHOT_ITEMS + 1, 1, -1))


def test_lists_are_bounded_by_size(world: World) -> None:
    """8.8: "at most 256 each and 3 MiB together": what comes first in its list stays, what does not fit leaves room for others."""
    client = world.create()
    large = encode("x" * limits.MAX_PAYLOAD_BYTES)
    jobs = [world.job(client.session_id, payload=large).id for _ in range(14)]
    schedule = world.schedule(client.session_id)
    found = queries.snapshot(load(client), FULL)
    assert [job.id for job in found.jobs] == jobs[::-1][:11]
    assert [item.id for item in found.schedules] == [schedule.id]
    assert len(encode(found.jobs)) + len(encode(found.schedules)) <= limits.MAX_SNAPSHOT_LIST_BYTES


def test_the_largest_snapshot_there_can_be_is_sent(world: World) -> None:
    """16: everything full at once, also as the replacement that an event carries, is below what an answer or event may be."""
    world.break_laws()
    client = world.idle(labels={"key": "x" * (limits.MAX_SPEC_BYTES - 4 * limits.KIB)})
    world.turn(client)
    with ledger.session_txn(client.session_id, BY) as txn:
        for _ in range(3):
            entries.append(txn, [history.user_message("x" * (limits.MAX_ENTRY_BYTES - limits.KIB))])
        entries.defer(txn, history.user_message("x" * (limits.MAX_ENTRY_BYTES - limits.KIB)), BY)
    for _ in range(14):
        world.schedule(client.session_id, payload=encode("x" * (limits.MAX_PAYLOAD_BYTES - 2)))
    session = load(client)
    found = queries.snapshot(session, FULL)
    replacement = SessionUpdatedPayload.of(found.session, found)
    assert (
        14 * limits.MIB < len(encode(found)) < len(encode(replacement)) < limits.MAX_FRAME_BYTES - limits.KIB
    )


def test_archived_sessions_are_not_loaded(world: World) -> None:
    """14.4: "Archived sessions are skipped"."""
    client = world.create()
    Session.objects.update(archived_at=clock.now())
    assert queries.load(client.session_id) is None
    assert queries.load("ses_unknown") is None
