"""The write path of a session, and the read path of its log.

Owns: the session's lock, the one revision of a transaction, contiguous sequences, the appending of events, the idempotent
envelope around a command, commit before wake-up.
Does not own: what a command changes (`sessions_app.commands`), who may change it (`sessions_app.access`), what a stored
outcome is (`sessions_app.receipts`), and what a reader may see of the log (`sessions_app.projection`).

Everything that changes a session goes through `session_txn`; a new mutation is one function that takes a `Txn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from django.db import models, transaction

from sessions_app import access, broadcast, capacity, clock, limits, participants, receipts, rows, store
from sessions_app.encoding import encode
from sessions_app.errors import InvalidState, Refusal, ServerShuttingDown, SessionNotFound
from sessions_app.models import Operation, Session, SessionEvent
from sessions_app.participants import CommandOutcome
from sessions_app.summaries import lifecycle_record, session_record

if TYPE_CHECKING:
    from sessions_app.callers import Caller
    from sessions_app.events import EventKind, Extra
    from sessions_app.receipts import Call

T = TypeVar("T", bound=msgspec.Struct)
Prepared = TypeVar("Prepared")

COUNTER_MAX = 2**63 - 1
"""Counters are signed 64-bit on the wire and in the store; beyond, a change is refused rather than wrapped (behaviour 0.2)."""

_EVENTS_OF_ONE_TRANSACTION = 4096
"""More than any transaction emits; keeps the sequence of its last event below the maximum."""


class Txn:
    """One open transaction of one session, under its lock.

    `session` is the locked row, `operation` its active operation. Change their fields and call `touch`, `emit` or
    `set_state`: the first of them takes the one revision of this transaction (behaviour 0.2). A transaction that calls none
    of them leaves the session's counters alone.
    """

    def __init__(self, session: Session, caller: Caller) -> None:
        self.session = session
        self.caller = caller
        self.now = clock.now()
        self.operation: Operation | None = session.active_operation
        self._stored = _values(session)
        self._operation_stored = _values(self.operation)
        self._events: list[SessionEvent] = []
        self._after: list[Callable[[], None]] = []
        self._touched = False
        self._new = False

    def begin_session(self, session: Session) -> None:
        """Make `session`, not stored yet, the session of this transaction."""
        self.session = session
        self._new = True

    def next_revision(self) -> None:
        """Close this revision and open the next one, durable together: one command that is several changes in a row."""
        self.flush()
        self._touched = False
        self.now = clock.now()

    def begin_operation(self, operation: Operation) -> None:
        """Store a new operation and make it the active one."""
        rows.insert([operation])
        self.operation = self.session.active_operation = operation
        self._operation_stored = _values(operation)

    def end_operation(self) -> None:
        """Store the active operation as it is now and leave the session without one."""
        self._store_operation()
        self.operation = self.session.active_operation = None

    def touch(self) -> None:
        """Take this transaction's revision, once. Raises InvalidState when the counters are used up."""
        if self._touched:
            return
        if (
            max(self.session.revision, self.session.latest_sequence + _EVENTS_OF_ONE_TRANSACTION)
            >= COUNTER_MAX
        ):
            raise InvalidState("the counters of this session are used up")
        self._touched = True
        self.session.revision += 1
        self.session.updated_at = max(self.now, self.session.created_at)

    def emit(
        self,
        kind: EventKind,
        payload: msgspec.Struct | Sequence[Any] | Callable[[], Any] | None,
        extra: Extra | None = None,
    ) -> int:
        """Append one durable event and return its sequence.

        `payload` is the canonical payload of the kind (`events.PAYLOADS`), or a function that makes it when the session's
        counters already stand as the event's own; `extra` is what only some dialects tell.
        """
        self.touch()
        self.session.latest_sequence += 1
        content = payload() if callable(payload) else payload
        self._events.append(
            SessionEvent(
                session=self.session,
                sequence=self.session.latest_sequence,
                revision=self.session.revision,
                at=self.now,
                kind=kind,
                payload=encode(content),
                extra=None if extra is None else encode(extra),
            )
        )
        return self.session.latest_sequence

    def set_state(
        self, *, desired: str | None = None, observed: str | None = None, waiting_on: str = ""
    ) -> None:
        """Move the session to a state and emit `session.state_changed`; the caller decides whether it is a change.

        `observed` is a tag of `ObservedState`; its members come from the row (`summaries.observed_record`). `waiting_on` is
        the permission id of `waiting_for_permission`.
        """
        if desired is not None:
            self.session.desired = desired
        if observed is not None:
            self.session.observed = observed
            self.session.waiting_on = waiting_on
        self.emit("session.state_changed", lambda: lifecycle_record(self.session))

    def emit_updated(self, extra: Extra | None = None) -> None:
        """Emit `session.updated` with the summary as it stands."""
        self.emit("session.updated", lambda: session_record(self.session), extra)

    def after_commit(self, action: Callable[[], None]) -> None:
        """Run `action` once the transaction is durable; it must neither block nor raise."""
        self._after.append(action)

    def flush(self) -> None:
        """Write what has been changed and emitted so far, so that a failure shows before the outcome is settled."""
        self._store_operation()
        floor = self.session.latest_sequence - limits.server().max_events_per_session + 1
        self.session.oldest_sequence = max(self.session.oldest_sequence, floor)
        values = _values(self.session)
        changed = _changed(self._stored, values)
        if "observed" in changed and values["observed"] == "stopped" and not self._new:
            capacity.release(self)
        if self._new:
            # The rows that point to it may be there already: foreign keys are checked at the commit.
            rows.insert([self.session])
        elif changed:
            rows.update(self.session, changed)
        self._stored, self._new = values, False
        if self._events:
            rows.insert(self._events)
            head, session_id = self.session.latest_sequence, self.session.id
            self._after.append(lambda: broadcast.wake(session_id, head))
            self._events = []

    def discard(self) -> None:
        """Forget what a refused body emitted and asked for; its rows are already taken back."""
        self._events = []
        self._after = []

    def committed(self) -> None:
        """Run what waited for the commit."""
        for action in self._after:
            action()

    def _store_operation(self) -> None:
        values = _values(self.operation)
        changed = _changed(self._operation_stored, values)
        if self.operation is not None and changed:
            rows.update(self.operation, changed)
            self._operation_stored = values


@contextmanager
def session_txn(session_id: str, caller: Caller) -> Iterator[Txn]:
    """Open the one transaction in which a session may change, and commit it at the end of the block.

    Raises SessionNotFound for an unknown or archived session, CommandQueueFull when its lock is not got in time (PostgreSQL),
    StoreLocked when the SQLite store's is not, PersistenceError for any other failure of the store. The caller's rule is
    checked by `command`, not here: this is also the way of the server's own changes.
    """
    with store.errors(), transaction.atomic(durable=True):
        session = _locked(session_id)
        if session is None:
            raise SessionNotFound("no such session")
        txn = Txn(session, caller)
        yield txn
        txn.flush()
    txn.committed()


def command(
    call: Call, session_id: str, result: type[T], body: Callable[[Txn], T], *, archived: bool = False
) -> T:
    """Run one idempotent mutation of a session: behaviour 1.1, steps 6 to 9 and 12.

    In one transaction: replay a stored outcome; refuse new work while draining; check the caller's rule; run `body` inside a
    savepoint; let the participants write their part (the audit record); settle the receipt; commit. Returns what `body`
    returned, now or when the key was first used. `session_id` is empty for a command that makes its session; `archived`
    takes one that was archived, and no other.

    Raises the refusal of the access rule or of `body`, stored and replayed like a success; `receipts.Pending` while another
    call is at work on the same key; and, unstored, IdempotencyConflict, Interrupted, ServerShuttingDown, StoreLocked,
    CommandQueueFull and PersistenceError.
    """
    with store.errors(), transaction.atomic(durable=True):
        session = _locked(session_id, archived=archived) if session_id else None
        txn = Txn(session or Session(id=session_id), call.caller)
        outcome = receipts.replay(call, session_id, result)
        if outcome is None:
            outcome = _attempt(call, session, session_id, txn, body)
            receipts.insert(call, session_id, outcome)
        _record(call, session_id, txn, outcome)
    txn.committed()
    return _delivered(outcome)


def spanning(
    call: Call,
    session_id: str,
    result: type[T],
    *,
    check: Callable[[Session], None],
    prepare: Callable[[], Prepared],
    body: Callable[[Txn, Prepared], T],
) -> T:
    """Run an idempotent mutation whose work leaves its transaction (behaviour 11.3): `prepare` first, then `body`.

    A pending receipt, tied to this process's heartbeat, is committed after the access rule and `check`, which refuses what the
    session's state does not allow; then `prepare` may touch the disk or the network without holding anything; `body` runs
    like that of `command`, has to check again, and settles the receipt.

    Raises as `command`; a refusal of `prepare` or `body` is settled in a transaction of its own.
    """
    with store.errors(), transaction.atomic(durable=True):
        session = _locked(session_id)
        txn = Txn(session or Session(id=session_id), call.caller)
        outcome = receipts.replay(call, session_id, result)
        if outcome is None:
            outcome = _opened(call, session, session_id, check)
        if outcome is not None:
            _record(call, session_id, txn, outcome)
    if outcome is not None:
        return _delivered(outcome)
    try:
        return _spanned(call, session_id, prepare, body)
    finally:
        receipts.put_down(call, session_id)


def _spanned(
    call: Call, session_id: str, prepare: Callable[[], Prepared], body: Callable[[Txn, Prepared], T]
) -> T:
    """Do the work of a spanning command and settle its pending receipt."""
    try:
        prepared = prepare()
        with session_txn(session_id, call.caller) as txn:
            access.check(call.caller, txn.session, session_id)
            value = body(txn, prepared)
            _record(call, session_id, txn, value)
            receipts.settle_pending(call, session_id, value)
    except Refusal as refusal:
        _close_pending(call, session_id, refusal)
        raise
    except BaseException:
        # Nothing was acknowledged and nothing was committed: the key may be used again.
        _close_pending(call, session_id, None)
        raise
    return value


def _attempt(
    call: Call, session: Session | None, session_id: str, txn: Txn, body: Callable[[Txn], T]
) -> T | Refusal:
    """Run `body` in a savepoint; a refusal that is an outcome is returned, with everything `body` did taken back."""
    if call.refused_by_draining:
        raise ServerShuttingDown("the server is shutting down")
    try:
        with transaction.atomic():
            if session_id:
                access.check(call.caller, session, session_id)
            value = body(txn)
            txn.flush()
    except Refusal as refusal:
        if not receipts.is_outcome(refusal):
            raise
        txn.discard()
        return refusal
    return value


def _opened(
    call: Call, session: Session | None, session_id: str, check: Callable[[Session], None]
) -> Refusal | None:
    """Begin spanning work: leave a pending receipt, or settle the refusal of what is checked before it and return it."""
    if call.refused_by_draining:
        raise ServerShuttingDown("the server is shutting down")
    try:
        check(access.check(call.caller, session, session_id))
    except Refusal as refusal:
        receipts.insert(call, session_id, refusal)
        return refusal
    receipts.open_pending(call, session_id)
    return None


def _close_pending(call: Call, session_id: str, refusal: Refusal | None) -> None:
    """Settle a pending receipt with a refusal, or drop it where the failure is no outcome."""
    with store.errors(), transaction.atomic(durable=True):
        if refusal is None or not receipts.is_outcome(refusal):
            receipts.drop_pending(call, session_id)
            return
        _record(call, session_id, Txn(Session(id=session_id), call.caller), refusal)
        receipts.settle_pending(call, session_id, refusal)
    refusal.recorded = True


def _record(call: Call, session_id: str, txn: Txn, outcome: msgspec.Struct | Refusal) -> None:
    code = outcome.code if isinstance(outcome, Refusal) else "success"
    noted = CommandOutcome(command=call.method, session_id=session_id or None, code=code)
    for participant in participants.installed():
        participant.on_command(txn, call.caller, noted)


def _delivered(outcome: T | Refusal) -> T:
    """Return a settled success, or raise a settled refusal, marked as already in the audit trail."""
    if isinstance(outcome, Refusal):
        outcome.recorded = True
        raise outcome
    return outcome


_SESSION = rows.Select(Session, "id = %s AND archived_at IS NULL", lock=True)
_ARCHIVED = rows.Select(Session, "id = %s AND archived_at IS NOT NULL AND NOT removed", lock=True)
_OPERATION = rows.Select(Operation, "id = %s")


def _locked(session_id: str, *, archived: bool = False) -> Session | None:
    """Lock and load a session with its active operation; None for an unknown one, and for one that is (not) archived."""
    session = (_ARCHIVED if archived else _SESSION).first(session_id)
    if session is not None and session.active_operation_id:
        session.active_operation = _OPERATION.first(session.active_operation_id)
    return session


def _values(row: models.Model | None) -> Mapping[str, Any]:
    """Return the stored columns of a row as it is in memory."""
    return {} if row is None else {name: vars(row)[name] for name in _column_names(type(row))}


@lru_cache(maxsize=16)
def _column_names(model: type[models.Model]) -> tuple[str, ...]:
    return tuple(field.attname for field in model._meta.concrete_fields)


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [name for name, value in now.items() if before.get(name, value) != value]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One row of the log, as a reader gets it before projection."""

    session_id: str
    sequence: int
    revision: int
    at: datetime
    kind: EventKind
    payload: bytes
    extra: bytes | None


EVENT_OVERHEAD = 256
"""More than the ids, numbers, time and punctuation of one encoded event take beside its payload."""

_EVENTS = rows.Select(SessionEvent, "session_id = %s AND sequence > %s", order="sequence", heavy="payload")
_EVENTS_AT_ONCE = 128
"""Fetched by one statement, the payloads of large ones excepted, before their sizes are looked at."""


def read_events(
    session_id: str, after: int, limit: int, max_bytes: int = limits.MAX_WINDOW_BYTES
) -> list[StoredEvent]:
    """Return the events behind sequence `after`, oldest first: at most `limit`, and at most `max_bytes` when they are encoded.

    At least one event is returned when there is one, however large. The rows are contiguous as long as `after` is not below
    what retention keeps (`oldest_sequence` of the session).
    """
    taken: list[StoredEvent] = []
    size = 0
    while limit > len(taken):
        wanted = min(limit - len(taken), _EVENTS_AT_ONCE)
        found = 0
        for weight, load in _EVENTS.weighed(session_id, after, at_most=wanted):
            found += 1
            size += weight + EVENT_OVERHEAD
            if taken and size > max_bytes:
                return taken
            row = load()
            if row is None:  # retention took it, and everything before it
                return taken
            taken.append(_stored(row))
        if found < wanted:
            break
        after = taken[-1].sequence
    return taken


def _stored(row: SessionEvent) -> StoredEvent:
    return StoredEvent(
        session_id=row.session_id,
        sequence=row.sequence,
        revision=row.revision,
        at=row.at,
        kind=cast("EventKind", row.kind),
        payload=row.payload,
        extra=row.extra,
    )


def read_heads(session_ids: Sequence[str]) -> dict[str, int]:
    """Return the newest sequence of each of the sessions, in one query; archived and removed ones are left out."""
    heads = Session.objects.filter(id__in=session_ids, archived_at=None).values_list("id", "latest_sequence")
    return dict(heads)
