"""Changing a history: appending, replacing, deferring, adopting.

Owns: which row and which event an entry becomes. Does not own: when (messages, the turn) or what an entry may be (`history`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from sessions_app import blobs, images, limits, queries, rows
from sessions_app.errors import ResourceLimit
from sessions_app.history import ITEM_ROOM, NewEntry
from sessions_app.models import DeferredEntry, HistoryEntry, Session
from sessions_app.summaries import entry_record

if TYPE_CHECKING:
    from sessions_app.callers import Caller
    from sessions_app.ledger import Txn
    from sessions_app.records import HistoryEntryKind, HistoryRole

SAFE_POINT = "safe_point"
TURN_END = "turn_end"


def append(
    txn: Txn, entries: Sequence[NewEntry], *, operation_id: str = "", initial: bool = False
) -> list[HistoryEntry]:
    """Store entries at the end of the canonical history and return the rows, without an event (a session that begins)."""
    made = [_row(txn, _light(txn, entry), operation_id=operation_id, initial=initial) for entry in entries]
    rows.insert(made)
    return made


def append_and_tell(txn: Txn, entries: Sequence[NewEntry], *, operation_id: str = "") -> list[HistoryEntry]:
    """Append entries and emit `history.appended`: as many events as keep each within the limit of a window."""
    made = append(txn, entries, operation_id=operation_id)
    _tell(txn, made)
    return made


def tell_replaced(txn: Txn) -> None:
    """Emit `history.replaced` with what stands in the rows by now, and let cached prefixes of the history be void."""
    txn.session.history_version += 1
    txn.emit("history.replaced", queries.newest_window(txn.session))


def take_number(txn: Txn, count: int = 1) -> int:
    """Take `count` history sequences and return the first: gaps are allowed, reuse never (behaviour 0.4)."""
    first = txn.session.next_history
    txn.session.next_history += count
    return first


def defer(
    txn: Txn,
    entry: NewEntry,
    caller: Caller,
    *,
    adopt: str = SAFE_POINT,
    origin: str = "ochat",
    key: str = "",
) -> DeferredEntry:
    """Put an entry into the session's queue and emit `history.message_deferred` (behaviour 6.2).

    Raises ResourceLimit, retryable, when the queue is full: by count or by 4 MiB together.
    """
    session = txn.session
    entry = _light(txn, entry)
    if (
        session.deferred_count >= limits.server().max_deferred_entries
        or session.deferred_bytes + entry.size > limits.MAX_ENTRY_BYTES
    ):
        raise ResourceLimit("the queue of deferred messages is full", retryable=True)
    row = DeferredEntry(
        session=session,
        number=take_number(txn),
        adopt=adopt,
        role=entry.role,
        kind=entry.kind,
        payload=entry.payload,
        size=entry.size,
        principal_id=caller.principal_id or "",
        origin=origin,
        idempotency_key=key,
    )
    rows.insert([row])
    session.deferred_count += 1
    session.deferred_bytes += entry.size
    txn.emit("history.message_deferred", entry_record(row))
    return row


def next_principal(session: Session) -> str:
    """Return who sent the newest entry that waits for a safe point; empty without one, or where nobody stands behind it."""
    waiting = DeferredEntry.objects.filter(session=session, adopt=SAFE_POINT).order_by("-number")
    return waiting.values_list("principal_id", flat=True).first() or ""


def take_deferred(txn: Txn) -> list[NewEntry]:
    """Take every entry that waits for a safe point out of the queue, in order of acceptance, with the ids they have."""
    if not txn.session.deferred_count:
        return []
    waiting = list(DeferredEntry.objects.filter(session=txn.session, adopt=SAFE_POINT).order_by("number"))
    if not waiting:
        return []
    DeferredEntry.objects.filter(id__in=[row.id for row in waiting]).delete()
    txn.session.deferred_count -= len(waiting)
    txn.session.deferred_bytes -= sum(row.size for row in waiting)
    return [adopted(row) for row in waiting]


def adopted(row: DeferredEntry) -> NewEntry:
    """Return a deferred entry as the entry it becomes: same id, same content."""
    return NewEntry(
        role=cast("HistoryRole", row.role),
        kind=cast("HistoryEntryKind", row.kind),
        payload=row.payload,
        number=row.number,
    )


def _light(txn: Txn, entry: NewEntry) -> NewEntry:
    """Take the images out of an entry that are too large for the wire: they become blobs of the session (behaviour 6.1).

    Every entry passes here on its way into the store, whoever made it.
    """
    payload = images.lightened(entry.payload, partial(blobs.keep_image, txn), ITEM_ROOM)
    return entry if payload is entry.payload else replace(entry, payload=payload)


def _tell(txn: Txn, made: Iterable[HistoryEntry]) -> None:
    batch: list[HistoryEntry] = []
    size = 0
    for row in made:
        if batch and size + row.size > limits.MAX_WINDOW_BYTES:
            txn.emit("history.appended", [entry_record(told) for told in batch])
            batch, size = [], 0
        batch.append(row)
        size += row.size
    if batch:
        txn.emit("history.appended", [entry_record(told) for told in batch])


def _row(txn: Txn, entry: NewEntry, *, operation_id: str, initial: bool) -> HistoryEntry:
    session = txn.session
    position = session.next_position
    session.next_position += 1
    return HistoryEntry(
        session=session,
        position=position,
        number=take_number(txn) if entry.number is None else entry.number,
        role=entry.role,
        kind=entry.kind,
        payload=entry.payload,
        size=entry.size,
        call_key=entry.call_key,
        operation_id=operation_id,
        initial=initial,
    )
