"""Reads of sessions that return records (behaviour 8.3, 8.8, 12).

Owns: snapshots, windows, replay decisions and the lists of the kernel's own rows. Does not own: whether the caller may see the
session (`Caller.visible`, asked by whoever turned an id into a session), signing cursors (`ochat_site.rpc.paging`), or what a
view hides (`projection`).

Every function here reads inside the caller's read snapshot, and costs the same for an old session as for a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import QuerySet
from msgspec import UNSET, Raw

from sessions_app import ledger, limits, participants
from sessions_app.encoding import encode
from sessions_app.errors import InvalidRequest
from sessions_app.history import ENTRY_OVERHEAD
from sessions_app.ids import history_number
from sessions_app.models import (
    Archive,
    Attachment,
    DeferredEntry,
    HistoryEntry,
    Operation,
    Session,
    ToolCall,
)
from sessions_app.projection import project_event, project_snapshot
from sessions_app.records import (
    HistoryWindow,
    HistoryWindowRequest,
    HistoryWindowRequestAfter,
    HistoryWindowRequestBefore,
    HistoryWindowRequestCursor,
    HistoryWindowRequestTail,
    Snapshot,
)
from sessions_app.rows import Select
from sessions_app.summaries import entry_record, error_record, session_record

if TYPE_CHECKING:
    from sessions_app.events import DurableEvent
    from sessions_app.views import View

T = TypeVar("T")

Direction = Literal["before", "after"]


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a history view, and which way a cursor to it reads on."""

    position: int
    direction: Direction
    effective: bool


CursorMaker = Callable[[Place], str]
"""Signs a place for the caller; events carry no cursors, so nothing in the kernel makes one."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What an attach answers beside the attachment: a snapshot, or the events after the client's position, and where it stands."""

    snapshot: Snapshot | None
    events: Sequence[DurableEvent]
    latest_event_sequence: int


def load(session_id: str) -> Session | None:
    """Return a session with its active operation, or None when there is none or it is archived."""
    session = _SESSION.first(session_id)
    if session is not None and session.active_operation_id:
        session.active_operation = _OPERATION.first(session.active_operation_id)
    return session


_SESSION = Select(Session, "id = %s AND archived_at IS NULL")
_OPERATION = Select(Operation, "id = %s")


def is_attached(session: Session, attachment_id: str, connection_id: str) -> bool:
    """Tell whether an attachment of this session is active and belongs to this connection."""
    return _ATTACHMENT.first(attachment_id, session.id, connection_id) is not None


_ATTACHMENT = Select(Attachment, "id = %s AND session_id = %s AND connection_id = %s AND live")


def replay(session: Session, after_sequence: int | None, view: View, cursor: CursorMaker) -> Replay:
    """Decide how a client that knows the log up to `after_sequence` (None: nothing) is brought up to date (behaviour 8.3)."""
    latest = session.latest_sequence
    if after_sequence is not None and after_sequence >= latest:
        return Replay(None, (), latest)
    if after_sequence is not None and after_sequence + 1 >= session.oldest_sequence:
        events = ledger.read_events(session.id, after_sequence, limit=latest - after_sequence)
        if events and events[-1].sequence == latest:
            return Replay(None, [project_event(event, view) for event in events], latest)
    return Replay(snapshot(session, view, cursor), (), latest)


def snapshot(
    session: Session,
    view: View,
    cursor: CursorMaker | None = None,
    window: HistoryWindowRequest | None = None,
    place: Place | None = None,
) -> Snapshot:
    """Return everything `view` may see of a session, its history cut to `window` or to the newest 8 MiB (behaviour 8.8).

    `place` is what a cursor of `window` stands for. Raises InvalidRequest for an unknown anchor.
    """
    parts = [participant.snapshot_part(session, view) for participant in participants.installed()]
    canonical, effective = _histories(session, cursor, window, place)
    calls = _active_calls(session) if view.security_read else []
    room = _Room()
    whole = Snapshot(
        session=session_record(session),
        canonical_history=canonical,
        effective_history=effective,
        archived_revisions=tuple(_archived(session)),
        deferred_entries=tuple(map(entry_record, _deferred(session))),
        permissions=room.take(item for part in parts for item in part.permissions),
        active_tool_calls=room.take(calls),
        active_agent_calls=room.take(call for call in calls if _names_an_agent(call)),
        jobs=room.take(item for part in parts for item in part.jobs),
        schedules=room.take(item for part in parts for item in part.schedules),
        grants=room.take(item for part in parts for item in part.grants),
        halted=session.halted,
        halt_reason=session.halt_reason or UNSET,
        failure=UNSET if session.failure is None else error_record(session.failure),
        revision=session.revision,
        latest_event_sequence=session.latest_sequence,
    )
    return project_snapshot(whole, view)


class _Room:
    """What the lists of one snapshot may hold together; the first to be taken are the last to be cut (behaviour 8.8)."""

    def __init__(self) -> None:
        self._left = limits.MAX_SNAPSHOT_LIST_BYTES

    def take(self, items: Iterable[T]) -> tuple[T, ...]:
        """Return the first of `items`, as many as there is room for."""
        taken: list[T] = []
        for item in items:
            size = len(encode(item)) + 1
            if size > self._left:
                break
            self._left -= size
            taken.append(item)
        return tuple(taken)


def whole_history(session: Session) -> Iterator[HistoryEntry]:
    """Return the rows of the canonical history in their order, a few at a time, as many as there are."""
    return HistoryEntry.objects.filter(session=session).order_by("position").iterator(_ROWS_AT_ONCE)


def newest_window(session: Session) -> HistoryWindow:
    """Return the newest entries up to 8 MiB without cursors, as events carry them (behaviour 8.1)."""
    return _tail(session, None, limits.MAX_CODEC_PAGE_SIZE, effective=False)


def _histories(
    session: Session, cursor: CursorMaker | None, request: HistoryWindowRequest | None, place: Place | None
) -> tuple[HistoryWindow, HistoryWindow | msgspec.UnsetType]:
    """Return the canonical and the effective window that answer a request; without an overlay both views hold the same."""
    if request is None:
        return _tail(session, cursor, limits.MAX_CODEC_PAGE_SIZE, effective=False), UNSET
    window = _window(session, cursor, request, place)
    return (_NOTHING, window) if request.effective else (window, UNSET)


_NOTHING = HistoryWindow(entries=(), reached_start=False, reached_end=False, structurally_complete=False)


def _window(
    session: Session, cursor: CursorMaker | None, request: HistoryWindowRequest, place: Place | None
) -> HistoryWindow:
    limit = min(request.limit, limits.MAX_PAGE_SIZE)
    effective = request.effective
    match request:
        case HistoryWindowRequestTail(tail_count=count):
            return _tail(session, cursor, min(count, limit), effective=effective)
        case HistoryWindowRequestAfter(history_id=anchor):
            return _page(session, cursor, Place(_position(session, anchor), "after", effective), limit)
        case HistoryWindowRequestBefore(history_id=anchor):
            return _page(session, cursor, Place(_position(session, anchor), "before", effective), limit)
        case HistoryWindowRequestCursor():
            if place is None or place.effective != effective:
                raise InvalidRequest("the cursor belongs to another view of the history")
            return _page(session, cursor, place, limit)


def _position(session: Session, entry_id: str) -> int:
    number = history_number(session.id, entry_id)
    rows = HistoryEntry.objects.filter(session=session, number=-1 if number is None else number)
    position = rows.values_list("position", flat=True).first()
    if position is None:
        raise InvalidRequest("no such history entry")
    return position


def _tail(session: Session, cursor: CursorMaker | None, count: int, *, effective: bool) -> HistoryWindow:
    return _page(session, cursor, Place(session.next_position, "before", effective), count)


def _page(session: Session, cursor: CursorMaker | None, place: Place, limit: int) -> HistoryWindow:
    """Return up to `limit` entries, and up to 8 MiB of them, on from a place in its direction, in the order of the history."""
    if place.direction == "before":
        taken = _taken(_BEFORE, session, place.position, limit)[::-1]
    else:
        taken = _taken(_AFTER, session, place.position, limit)
    first, last = (taken[0].position, taken[-1].position) if taken else _around(place)
    reached_start = not _BEFORE.any(session.id, first)
    reached_end = not _AFTER.any(session.id, last)
    return HistoryWindow(
        entries=tuple(map(entry_record, taken)),
        previous_cursor=cursor(Place(first, "before", place.effective))
        if cursor and not reached_start
        else UNSET,
        next_cursor=cursor(Place(last, "after", place.effective)) if cursor and not reached_end else UNSET,
        reached_start=reached_start,
        reached_end=reached_end,
        structurally_complete=reached_start and reached_end and not _has_open_calls(session),
    )


def _has_open_calls(session: Session) -> bool:
    """Tell whether a call of the history waits for its output: then it is no context for a model yet (behaviour 12.3)."""
    operation = session.active_operation
    if operation is None or not operation.calls_made:
        return False
    return ToolCall.objects.filter(operation=operation, committed=False).exists()


def _around(place: Place) -> tuple[int, int]:
    """Return the bounds of an empty page: nothing lies between the place and the end it reads towards."""
    if place.direction == "before":
        return place.position, place.position - 1
    return place.position + 1, place.position


_BEFORE = Select(HistoryEntry, "session_id = %s AND position < %s", order="position DESC", heavy="payload")
_AFTER = Select(HistoryEntry, "session_id = %s AND position > %s", order="position", heavy="payload")
_ENTRIES_AT_ONCE = 64
"""Fetched by one statement, the payloads of large ones excepted, before their sizes are looked at."""
_ROWS_AT_ONCE = 16
"""Of a whole history, held at once: 64 MiB of the largest entries."""


def _taken(entries: Select[HistoryEntry], session: Session, position: int, limit: int) -> list[HistoryEntry]:
    """Read on from a position until `limit` entries or 8 MiB are taken; at least one entry, as none is larger."""
    taken: list[HistoryEntry] = []
    size = 0
    while len(taken) < limit:
        wanted = min(limit - len(taken), _ENTRIES_AT_ONCE)
        found = 0
        for weight, load in entries.weighed(session.id, position, at_most=wanted):
            found += 1
            size += weight + ENTRY_OVERHEAD
            row = None if taken and size > limits.MAX_WINDOW_BYTES else load()
            if row is None:
                return taken
            taken.append(row)
        if found < wanted:
            break
        position = taken[-1].position
    return taken


def _deferred(session: Session) -> QuerySet[DeferredEntry] | Sequence[DeferredEntry]:
    if not session.deferred_count:
        return ()
    return DeferredEntry.objects.filter(session=session).order_by("number")


_ARCHIVED = (
    f"SELECT revision FROM {Archive._meta.db_table}"  # noqa: S608 - a name of ours
    " WHERE session_id = %s ORDER BY revision DESC LIMIT %s"
)
"""Not the whole rows, which hold a snapshot each."""


def _archived(session: Session) -> list[int]:
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(_ARCHIVED, [session.id, limits.MAX_SNAPSHOT_ITEMS])
        return [revision for (revision,) in cursor.fetchall()]


def _active_calls(session: Session) -> list[Raw]:
    """Return the `tool.started` events of the calls that run now, their payload text bounded (behaviour 8.8)."""
    if session.active_operation is None:
        return []
    rows = ToolCall.objects.filter(session=session, state="running", started__isnull=False).order_by(
        "position"
    )
    return [
        Raw(started or b"{}") for started in rows.values_list("started", flat=True)[: limits.MAX_ACTIVE_CALLS]
    ]


class _Page(msgspec.Struct):
    agent_page_kind: str | None = None


class _Started(msgspec.Struct):
    payload: _Page


def _names_an_agent(call: Raw) -> bool:
    return msgspec.json.decode(call, type=_Started).payload.agent_page_kind is not None
