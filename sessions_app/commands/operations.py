"""The life of an operation: begin, claim, cancel, park, resume, end (behaviour 6.4 to 6.6, 14.4).

Owns: every state an operation passes and the one form of its last transaction. Does not own: the calls inside a turn
(`commands.calls`), the model and the tools (`runtime`), or finding what a dead process held (`jobs_app.sweep`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import msgspec
from django.db import transaction

from sessions_app import broadcast, capacity, history, ids, participants, processes, rows, store, workspaces
from sessions_app.callers import system
from sessions_app.commands import entries
from sessions_app.encoding import encode
from sessions_app.errors import Conflict, OperationNotFound, Refusal, to_error
from sessions_app.events import ModeratorNotificationPayload
from sessions_app.ledger import Txn, session_txn
from sessions_app.models import HistoryEntry, Operation, ToolCall
from sessions_app.summaries import operation_record

if TYPE_CHECKING:
    from sessions_app.history import NewEntry
    from sessions_app.participants import OperationOutcome
    from sessions_app.records import Error, ToolOutput

OPERATION_SIGNAL = "operation"
"""Tells whichever worker holds the named operation to look at its rows again: cancelled, or a call was answered."""

WORKER_LOST = "worker_lost"
SERVER_SHUTDOWN = "server_shutdown"

_INTERRUPTED_OUTPUT = "The call was interrupted before it returned; what it did is unknown."
_NEVER_STARTED_OUTPUT = "The call was not run: the operation ended first."
_GIVEN_BACK_AT_MOST = 2
"""How often an operation goes to another worker: what has stopped three of them would stop every one."""

_RESERVED_NUMBERS = 256
"""History sequences promised at once, so that streamed text carries the id its entry will have; more than one reply has items."""


class ClaimLost(Exception):
    """The operation is no longer this claim's: ended, taken over, or the process was taken for dead. Drop the result."""


class Cancelling(Exception):
    """The operation was cancelled while this claim held it: end it with `end`."""


class StreamedItem(msgspec.Struct, frozen=True):
    """Text of one output item that is in no entry yet."""

    number: int
    item_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's hold on one operation. `attempt` fences it: a later claim makes this one's results void."""

    session_id: str
    operation_id: str
    attempt: int
    generation: int
    live_sequence: int
    """The last live sequence that was handed out before this claim."""
    anchor: int
    """The session's newest durable sequence at the claim."""
    first_number: int
    """The first of the history sequences reserved for it."""
    numbers: int
    resumed: bool
    """It has calls already: an earlier claim parked, or was given up."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an operation ends."""

    outcome: OperationOutcome
    error: Error | None = None
    """Of a failed one."""
    interruption: str = ""
    """Of an interrupted one."""
    entries: Sequence[NewEntry] = ()
    """Finished items that are not in history yet."""
    streamed: Sequence[StreamedItem] | None = None
    """Text of unfinished items; None: what the worker last saved (its process is gone)."""
    outputs: Mapping[int, ToolOutput] = field(default_factory=dict)
    """What running calls returned, by position, since the last step was committed."""
    promised: range = range(0)
    """Reserved history sequences that were never used: given back when they are still the last ones."""
    in_doubt: bool = False
    """The store failed while something was committed: what `entries` holds may be in history already."""


def begin_turn(txn: Txn, reason: str, *, origin: str, principal_id: str = "") -> Operation:
    """Begin a turn in an idle session: `operation.started`, then `session.state_changed` (behaviour 6.2)."""
    return _begin(txn, "turn", "running_turn", reason=reason, origin=origin, principal_id=principal_id)


def begin_compaction(txn: Txn, *, origin: str, principal_id: str = "") -> Operation:
    """Begin a compaction in an idle or stopped session: the same events (behaviour 9.2)."""
    return _begin(txn, "compaction", "compacting", reason="", origin=origin, principal_id=principal_id)


def _begin(txn: Txn, kind: str, observed: str, *, reason: str, origin: str, principal_id: str) -> Operation:
    operation = Operation(
        id=ids.new_id("op"),
        session=txn.session,
        generation=txn.session.generation,
        kind=kind,
        reason=reason,
        state="starting",
        started_at=txn.now,
        updated_at=txn.now,
        principal_id=principal_id,
        origin=origin,
    )
    txn.begin_operation(operation)
    txn.emit("operation.started", operation_record(operation))
    txn.set_state(observed=observed)
    dispatch(txn, operation)
    return operation


def dispatch(txn: Txn, operation: Operation) -> None:
    """Ask the workers to look at an operation once this transaction is committed."""
    operation_id = operation.id
    txn.after_commit(lambda: participants.dispatcher().operation(operation_id))


def claim(session_id: str, operation_id: str) -> Claim | None:
    """Take an unclaimed, unparked operation for this process, or return None when there is nothing to take.

    The first claim of an operation makes it `running` and emits `session.updated`; the model may be asked from then on.
    """
    caller = system("worker")
    with session_txn(session_id, caller) as txn:
        operation = txn.operation
        if (
            operation is None
            or operation.id != operation_id
            or operation.process_id
            or operation.parked
            or operation.state == "cancelling"
        ):
            return None
        operation.process_id = processes.current_id()
        operation.attempt += 1
        # A turn without calls asks at once; one that goes on has a step of its calls to commit first.
        operation.at_work = operation.calls_made == 0
        if operation.state == "starting":
            operation.state = "running"
            operation.updated_at = txn.now
            txn.emit_updated()
        first = entries.take_number(txn, _RESERVED_NUMBERS)
        return Claim(
            session_id=session_id,
            operation_id=operation_id,
            attempt=operation.attempt,
            generation=operation.generation,
            live_sequence=operation.live_sequence,
            anchor=txn.session.latest_sequence,
            first_number=first,
            numbers=_RESERVED_NUMBERS,
            resumed=operation.calls_made > 0,
        )


def held(txn: Txn, claim: Claim) -> Operation:
    """Return the operation if `claim` still holds it.

    Raises ClaimLost when it does not, Cancelling when it is to be ended as cancelled.
    """
    operation = txn.operation
    if (
        operation is None
        or operation.id != claim.operation_id
        or operation.attempt != claim.attempt
        or operation.process_id != processes.current_id()
    ):
        raise ClaimLost(claim.operation_id)
    if operation.state == "cancelling":
        raise Cancelling(claim.operation_id)
    return operation


def reserve_numbers(claim: Claim) -> range:
    """Promise more history sequences to a claim. Raises ClaimLost and Cancelling."""
    with session_txn(claim.session_id, system("worker")) as txn:
        held(txn, claim)
        first = entries.take_number(txn, _RESERVED_NUMBERS)
        return range(first, first + _RESERVED_NUMBERS)


def commit_said(claim: Claim, said: Sequence[NewEntry]) -> int:
    """Commit finished items while the reply goes on; returns the newest durable sequence. Raises ClaimLost and Cancelling."""
    with session_txn(claim.session_id, system("worker")) as txn:
        operation = held(txn, claim)
        entries.append_and_tell(txn, said, operation_id=operation.id)
        return txn.session.latest_sequence


def save_streamed(texts: Sequence[tuple[Claim, Sequence[StreamedItem]]]) -> None:
    """Keep the streamed text of running turns, so that a killed worker loses little of it: one commit for all of a process.

    Outside the session's transactions: no revision, no event. Text of a claim that is no longer held is dropped. Raises
    StoreLocked and PersistenceError.
    """
    with store.errors(), transaction.atomic(durable=True):
        # Without waiting for a turn that commits just now: several rows must not be waited for in any order.
        held = set(
            Operation.objects.select_for_update(skip_locked=True)
            .filter(process_id=processes.current_id(), id__in=[claim.operation_id for claim, _ in texts])
            .values_list("id", "attempt")
        )
        for claim, items in texts:
            if (claim.operation_id, claim.attempt) in held:
                rows.update(Operation(id=claim.operation_id, streamed=encode(items)), ("streamed",))


def moved(claims: Sequence[Claim], waiting: Collection[str]) -> set[str]:
    """Return the operations among `claims` whose worker has to look at its rows; takes no lock.

    Those that are cancelled or no longer held, and those of `waiting` with a call that was answered and may start. Raises
    PersistenceError.
    """
    with store.errors():
        going_on = set(
            Operation.objects.filter(process_id=processes.current_id())
            .exclude(state="cancelling")
            .values_list("id", "attempt")
        )
        answered: set[str] = set()
        if waiting:
            startable = ToolCall.objects.filter(operation_id__in=waiting, state="proposed", approved=True)
            answered.update(startable.values_list("operation_id", flat=True))
    stopped = {claim.operation_id for claim in claims if (claim.operation_id, claim.attempt) not in going_on}
    return stopped | answered


def check_held(claim: Claim) -> None:
    """Raise ClaimLost or Cancelling unless the claim is held and its operation goes on; takes no lock.

    Raises PersistenceError when the store cannot tell.
    """
    with store.errors():
        held = Operation.objects.filter(
            id=claim.operation_id, attempt=claim.attempt, process_id=processes.current_id()
        )
        state = held.values_list("state", flat=True).first()
    if state is None:
        raise ClaimLost(claim.operation_id)
    if state == "cancelling":
        raise Cancelling(claim.operation_id)


def cancel(txn: Txn, operation_id: str) -> None:
    """Cancel the named operation (behaviour 6.6): `session.updated`, and its end right after where no worker holds it.

    Raises Conflict when another one is active, OperationNotFound when none is. Cancelling twice changes nothing.
    """
    operation = txn.operation
    if operation is None:
        raise OperationNotFound("no operation is active")
    if operation.id != operation_id:
        raise Conflict("another operation is active")
    if operation.state == "cancelling":
        return
    begin_cancelling(txn, operation)
    txn.emit_updated()
    end_cancelled_if_unheld(txn)


def begin_cancelling(txn: Txn, operation: Operation) -> None:
    """Mark an operation as cancelling and tell its worker, if it has one; the caller emits the event that shows it."""
    operation.state = "cancelling"
    operation.updated_at = txn.now
    if operation.process_id:
        operation_id = operation.id
        txn.after_commit(lambda: broadcast.signal(OPERATION_SIGNAL, operation_id))


def end_cancelled_if_unheld(txn: Txn) -> None:
    """End an operation that is cancelling and that no worker holds, in the next revision of the same transaction."""
    operation = txn.operation
    if operation is not None and operation.state == "cancelling" and not operation.process_id:
        txn.next_revision()
        end(txn, Ending("cancelled"))


def finish(claim: Claim, ending: Ending) -> None:
    """End a claimed operation, as the worker that holds it; a cancelled one ends cancelled whatever came of it.

    Raises ClaimLost when the claim is no longer held.
    """
    caller = system("worker")
    with session_txn(claim.session_id, caller) as txn:
        try:
            held(txn, claim)
        except Cancelling:
            ending = replace(ending, outcome="cancelled", error=None, interruption="")
        end(txn, ending)


def end(txn: Txn, ending: Ending) -> None:
    """Write the terminal transaction: one form for all four outcomes, whoever writes it (behaviour 6.5)."""
    operation = _active(txn)
    if ending.promised and ending.promised.stop == txn.session.next_history:
        txn.session.next_history = ending.promised.start
    if operation.kind == "turn":
        missing = _missing_entries(txn, operation, ending)
        if missing:
            entries.append_and_tell(txn, missing, operation_id=operation.id)
    operation.state = ending.outcome
    operation.error = encode(ending.error) if ending.error else None
    operation.interruption = ending.interruption
    operation.retryable = ending.outcome == "interrupted"
    operation.updated_at = max(txn.now, operation.started_at)
    operation.process = None
    operation.parked = False
    operation.streamed = None
    ended = operation
    txn.end_operation()
    txn.emit(_TERMINAL[ending.outcome], operation_record(ended))
    if ending.outcome == "cancelled":
        txn.emit(
            "moderator.notification",
            ModeratorNotificationPayload(cancellation_reason="The operation was cancelled."),
        )
    txn.set_state(observed="idle" if txn.session.desired == "running" else "stopped")
    drop_transient(txn)
    for participant in participants.installed():
        participant.on_operation_end(txn, ended, ending.outcome)
    if txn.session.observed == "stopped" and capacity.is_held(txn.session):
        workspaces.replace_after_stop(txn)
    if ending.outcome in ("completed", "failed"):
        _follow_up(txn)


def _active(txn: Txn) -> Operation:
    if txn.operation is None:
        raise OperationNotFound("no operation is active")
    return txn.operation


def drop_transient(txn: Txn) -> None:
    """Hide a transient session once it has stopped; maintenance erases it (behaviour 4.2)."""
    if txn.session.transient and txn.session.observed == "stopped":
        txn.session.archived_at = txn.now
        txn.session.removed = True


_TERMINAL: dict[
    str, Literal["operation.completed", "operation.failed", "operation.cancelled", "operation.interrupted"]
] = {
    "completed": "operation.completed",
    "failed": "operation.failed",
    "cancelled": "operation.cancelled",
    "interrupted": "operation.interrupted",
}


def _missing_entries(txn: Txn, operation: Operation, ending: Ending) -> list[NewEntry]:
    """Return what history still lacks, so that the next request is well formed (behaviour 6.5, step 1)."""
    missing = list(ending.entries)
    if ending.in_doubt:
        known = _in_history(txn, [entry.number for entry in missing])
        missing = [entry for entry in missing if entry.number not in known]
    if ending.outcome != "completed":
        streamed = _saved(operation) if ending.streamed is None else ending.streamed
        missing += _unfinished(txn, streamed, missing)
        while missing and missing[-1].kind == "reasoning":
            missing.pop()
    missing += _outputs_owed(operation, missing, ending.outputs)
    return missing


def _unfinished(txn: Txn, streamed: Sequence[StreamedItem], finished: Sequence[NewEntry]) -> list[NewEntry]:
    """Return the streamed text that is in no entry: what was saved last may be older than what was committed last."""
    spoken = [item for item in streamed if item.text]
    known = {entry.number for entry in finished} | _in_history(txn, [item.number for item in spoken])
    return [
        history.incomplete_message(item.item_id, item.text, item.number)
        for item in spoken
        if item.number not in known
    ]


def _in_history(txn: Txn, numbers: Iterable[int | None]) -> set[int]:
    wanted = [number for number in numbers if number is not None]
    if not wanted:
        return set()
    found = HistoryEntry.objects.filter(session=txn.session, number__in=wanted)
    return set(found.values_list("number", flat=True))


def _saved(operation: Operation) -> Sequence[StreamedItem]:
    return msgspec.json.decode(operation.streamed, type=list[StreamedItem]) if operation.streamed else ()


def uncommitted_calls(operation: Operation) -> list[ToolCall]:
    """Return the calls of an operation whose outputs are not in history yet, in call order."""
    return _UNCOMMITTED.all(operation.id) if operation.calls_made else []


_UNCOMMITTED = rows.Select(ToolCall, "operation_id = %s AND NOT committed", order="position")


def _outputs_owed(
    operation: Operation, pending: Sequence[NewEntry], returned: Mapping[int, ToolOutput]
) -> list[NewEntry]:
    """Return an output for every call that has none in history: what it returned, or an error that says why there is none."""
    owed: list[NewEntry] = []
    calls = uncommitted_calls(operation)
    for call in calls:
        if call.output is None:
            output: ToolOutput = _NEVER_STARTED_OUTPUT
            if call.state == "running":
                output = returned.get(call.position, _INTERRUPTED_OUTPUT)
            call.output = history.output_item(
                "custom" if call.kind == "custom" else "function", call.call_id, output
            )
        owed.append(history.entry_of(call.output))
        call.state = "done"
        call.committed = True
    for call in calls:
        rows.update(call, ("state", "output", "committed"))
    known = {entry.call_key for entry in owed}
    never_made = [entry for entry in pending if entry.kind == "tool_call" and entry.call_key not in known]
    return owed + [
        history.entry_of(history.output_of(entry.payload, _NEVER_STARTED_OUTPUT)) for entry in never_made
    ]


def _follow_up(txn: Txn) -> None:
    """Start the next turn for what was deferred meanwhile, in the next revision (behaviour 6.3): the session must be idle."""
    session = txn.session
    if session.observed != "idle" or session.halted or not session.deferred_count:
        return
    txn.next_revision()
    sender = entries.next_principal(session)
    waiting = entries.take_deferred(txn)
    if waiting:
        entries.append_and_tell(txn, waiting)
        begin_turn(txn, "user_submit", origin="ochat", principal_id=sender)


def interrupt(session_id: str, operation_id: str, process_id: str, reason: str) -> None:
    """End what a lost or stopping worker held: interrupted, or cancelled if it was being cancelled (behaviour 14.4).

    One whose worker had not asked and started nothing yet is dispatched again instead, without an event, but not for ever.
    """
    caller = system(reason)
    with session_txn(session_id, caller) as txn:
        operation = txn.operation
        if operation is None or operation.id != operation_id or operation.process_id != process_id:
            return
        if operation.state == "cancelling":
            end(txn, Ending("cancelled"))
        elif operation.at_work or operation.given_back == _GIVEN_BACK_AT_MOST:
            end(txn, Ending("interrupted", interruption=reason))
        else:
            operation.process = None
            operation.given_back += 1
            dispatch(txn, operation)


def fail_unloadable(session_id: str, operation_id: str, refusal: Refusal) -> None:
    """End an unclaimed operation whose session cannot be loaded: `session.error`, then its last revision (behaviour 14.4)."""
    with session_txn(session_id, system("unloadable")) as txn:
        operation = txn.operation
        if operation is None or operation.id != operation_id or operation.process_id:
            return
        emit_load_error(txn, refusal)
        txn.next_revision()
        end(txn, Ending("failed", error=to_error(refusal)))


def emit_load_error(txn: Txn, refusal: Refusal) -> None:
    """Emit `session.error`, once per cause (behaviour 8.1): again only after the session could be loaded."""
    error = to_error(refusal)
    encoded = encode(error)
    if txn.session.load_error != encoded:
        txn.session.load_error = encoded
        txn.emit("session.error", error)
