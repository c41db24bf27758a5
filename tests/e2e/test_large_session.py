"""A session of 200,000 entries and 300 MB: no answer is too large, and nothing costs more than in a young one (behaviour 16)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sessions_app import clock, history, ids, limits, queries, rows
from sessions_app.db import in_db, read_snapshot
from sessions_app.encoding import encode
from sessions_app.models import HistoryEntry, Session, SessionEvent
from sessions_app.queries import Place
from sessions_app.records import HistoryWindow, HistoryWindowRequestCursor
from sessions_app.summaries import entry_record
from sessions_app.views import FULL
from tests.support.serving import Host, serving
from tests.support.world import Client, World

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.django_db(transaction=True)]

ENTRIES = 200_000
LARGE_EVERY = 5000
"""So many entries apart stands one that is as large as an entry may be."""
TEXT = "word " * 135
LARGE_TEXT = "x" * (limits.MAX_ENTRY_BYTES - 2 * history.ENTRY_OVERHEAD)
AT_ONCE = 2000
PEAK_MIB = 112
"""What one read may take in all: a window of 8 MiB as rows, as records and encoded, and what a connection holds of them."""


def grown(world: World, entries: int) -> Client:
    """Open an idle session with so many more entries, each told by an event of its own."""
    client = world.idle()
    session = world.session(client.session_id)
    first, sequence = session.next_position, session.latest_sequence
    for start in range(0, entries, AT_ONCE):
        made = [_entry(session, first + number) for number in range(start, min(start + AT_ONCE, entries))]
        rows.insert(made)
        rows.insert(
            [
                SessionEvent(
                    session=session,
                    sequence=sequence + 1 + row.position - first,
                    revision=session.revision,
                    at=clock.now(),
                    kind="history.appended",
                    payload=encode([entry_record(row)]),
                )
                for row in made
                if row.position - first >= entries - limits.server().max_events_per_session
            ]
        )
    kept = min(entries, limits.server().max_events_per_session)
    Session.objects.filter(id=session.id).update(
        next_position=first + entries,
        next_history=session.next_history + entries,
        latest_sequence=sequence + entries,
        oldest_sequence=sequence + entries - kept + 1 if kept < entries else 1,
    )
    return client


def _entry(session: Session, number: int) -> HistoryEntry:
    large = number % LARGE_EVERY == LARGE_EVERY - 1
    said = history.user_message(LARGE_TEXT if large else f"{number} {TEXT}")
    return HistoryEntry(
        session=session,
        position=number,
        number=number,
        role=said.role,
        kind=said.kind,
        payload=said.payload,
        size=said.size,
    )


@contextmanager
def bounded() -> Iterator[None]:
    """Hold the most memory that the block takes against the bound."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1] / limits.MIB
    finally:
        tracemalloc.stop()
    assert peak < PEAK_MIB


def statements(work: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as asked:
        work()
    return len(asked)


def _turn(world: World, client: Client) -> None:
    claim = world.turn(client)
    world.propose(claim, "run")
    world.send(client, "meanwhile")
    world.advance(claim, (0, "out"))
    world.finish(claim, "done")


async def test_a_large_session(committed_world: World) -> None:
    world = committed_world
    world.break_laws()
    old, young = await in_db(grown, world, ENTRIES), await in_db(grown, world, 10)
    size = await in_db(_size, old.session_id)
    assert size > 300 * 10**6

    await in_db(_check_appends, world, old, young)
    await in_db(_check_walk, old)
    await in_db(_check_replays, old)
    async with serving() as host:
        await _check_answers(host, old.session_id)


def _size(session_id: str) -> int:
    return sum(HistoryEntry.objects.filter(session_id=session_id).values_list("size", flat=True).iterator())


def _check_appends(world: World, old: Client, young: Client) -> None:
    """A turn with a call, a deferred message and an answer: the same statements, and the same memory."""
    _turn(world, young)
    with bounded():
        count = statements(lambda: _turn(world, old))
    assert count == statements(lambda: _turn(world, young))


def _check_walk(client: Client) -> None:
    """Every page on the way to the first entry holds at most what it may; together they are the whole history."""
    position, seen = ENTRIES * 2, 0
    request = HistoryWindowRequestCursor(window_cursor="-", limit=limits.MAX_PAGE_SIZE, effective=False)
    with bounded():
        while True:
            window = _window(client, request, Place(position, "before", effective=False))
            assert len(encode(window)) <= limits.MAX_WINDOW_BYTES + limits.KIB
            assert 0 < len(window.entries) <= limits.MAX_PAGE_SIZE
            seen += len(window.entries)
            if window.reached_start:
                break
            position = int(str(window.previous_cursor))
    assert seen == HistoryEntry.objects.filter(session_id=client.session_id).count() > ENTRIES


def _check_replays(client: Client) -> None:
    """Whoever comes with an old position costs as much memory as whoever comes with none."""
    latest = _load(client).latest_sequence
    for after in (None, latest - 50_000, latest - limits.server().max_events_per_session, 1):
        with bounded(), read_snapshot():
            replay = queries.replay(_load(client), after, FULL, lambda _place: "cursor")
            assert replay.snapshot is not None
            assert len(encode(replay.snapshot)) <= limits.MAX_FRAME_BYTES


def _load(client: Client) -> Session:
    session = queries.load(client.session_id)
    assert session is not None
    return session


def _window(client: Client, request: HistoryWindowRequestCursor, place: Place) -> HistoryWindow:
    with read_snapshot():
        session = queries.load(client.session_id)
        assert session is not None
        return queries.snapshot(
            session, FULL, lambda place: f"{place.position}", request, place
        ).canonical_history


async def _check_answers(host: Host, session_id: str) -> None:
    peer = await host.client()
    tail = {"position": "tail", "tail_count": 5, "limit": 5, "effective": False}
    short = await peer.call("session.get", session_id=session_id, history=tail)
    latest = short["latest_event_sequence"]

    attached = await peer.attach(session_id, "read_only")
    window = attached.answer["replay"]["snapshot"]["canonical_history"]
    _check_newest(window, short["canonical_history"])
    assert max(map(len, peer.socket.sent)) <= limits.MAX_FRAME_BYTES
    peer.socket.take()
    older = {"position": "cursor", "window_cursor": window["previous_cursor"], "limit": 3, "effective": False}
    page = (await peer.call("session.get", session_id=session_id, history=older))["canonical_history"]
    first = _number(window["entries"][0])
    assert [_number(entry) for entry in page["entries"]] == [first - 3, first - 2, first - 1]
    middle = ids.history_id(session_id, ENTRIES // 2)
    before = {"position": "before", "history_id": middle, "limit": 2, "effective": False}
    page = (await peer.call("session.get", session_id=session_id, history=before))["canonical_history"]
    assert [_number(entry) for entry in page["entries"]] == [ENTRIES // 2 - 2, ENTRIES // 2 - 1]

    peer.socket.take()
    for after, replay in ((latest - 3, "events"), (latest - 50_000, "snapshot"), (1, "snapshot")):
        assert (await peer.attach(session_id, after_sequence=after)).answer["replay"]["type"] == replay
        peer.socket.take()
    assert max(map(len, peer.socket.sent)) <= limits.MAX_FRAME_BYTES


def _check_newest(window: Any, tail: Any) -> None:
    assert limits.MAX_WINDOW_BYTES - limits.MAX_ENTRY_BYTES < len(encode(window)) <= limits.MAX_WINDOW_BYTES
    assert (window["reached_start"], window["reached_end"]) == (False, True)
    assert window["entries"][-5:] == tail["entries"]
    assert "previous_cursor" in window
    assert "next_cursor" not in window


def _number(entry: Any) -> int:
    return int(entry["id"].rpartition(":")[2])
