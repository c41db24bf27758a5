"""The calls inside a turn: proposed, waiting, running, done (behaviour 6.4).

Owns: every step of a call's row and when outputs enter history; that no call is ever started twice. Does not own: the decision
whether a call may run (`runtime.ports.Gate`), running it (`runtime`), or the request a decision may open (`permissions_app`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessions_app import blobs, broadcast, history, rows
from sessions_app.callers import system
from sessions_app.commands import entries
from sessions_app.commands.operations import OPERATION_SIGNAL, Claim, dispatch, held, uncommitted_calls
from sessions_app.ledger import Txn, session_txn
from sessions_app.models import Operation, ToolCall
from sessions_app.runtime.ports import Refuse, Run, Wait

if TYPE_CHECKING:
    from sessions_app.history import NewEntry
    from sessions_app.records import ToolCallKind, ToolOutput
    from sessions_app.runtime.ports import Gate, Tier


@dataclass(frozen=True, slots=True)
class Proposed:
    """A call that the model asks for."""

    call_id: str
    name: str
    kind: ToolCallKind
    arguments: str


@dataclass(frozen=True, slots=True)
class Finished:
    """What a call that this claim started came to."""

    position: int
    output: ToolOutput


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a turn's calls stand after a step."""

    start: Sequence[ToolCall]
    """Calls to start now: their rows say `running` already, and nobody else will start them."""
    parked: bool
    """Every call is done or waiting: the claim has been given up."""
    complete: bool
    """Every call is done and in history: ask the model again."""
    anchor: int
    """The session's newest durable sequence."""


StartedEvent = Callable[[ToolCall, int], bytes]
"""Makes the `tool.started` live event of a call at an anchor; what it returns is kept while the call runs."""


def propose(
    claim: Claim,
    said: Sequence[NewEntry],
    calls: Sequence[Proposed],
    gate: Gate,
    tiers: Mapping[str, Tier],
    started: StartedEvent,
    *,
    live_sequence: int,
) -> Progress:
    """Commit what the model said together with the calls it asks for, and decide each of them.

    `said` are the finished items, calls included, in order. `tiers` names the tools the prompt offers; a call of any other is
    answered with an error. `live_sequence` is the last one handed out, kept in case the operation parks. Raises ClaimLost and
    Cancelling.
    """
    with session_txn(claim.session_id, system("worker")) as txn:
        operation = held(txn, claim)
        entries.append_and_tell(txn, said, operation_id=operation.id)
        first = operation.calls_made
        made = [
            ToolCall(
                session=txn.session,
                operation=operation,
                position=first + index,
                call_id=call.call_id,
                name=call.name,
                kind=call.kind,
                arguments=call.arguments,
                state="proposed",
            )
            for index, call in enumerate(calls)
        ]
        operation.calls_made += len(made)
        rows.insert(made)
        open_calls = uncommitted_calls(operation)
        before = _states(open_calls)
        taken: set[str] = set()
        for row in open_calls:
            if row.call_id in taken:
                # An answer names its call by this id: it must not reach another one.
                _done(row, "The call was not run: another call has the same id.")
            elif row.position >= first:
                _decide(txn, operation, row, gate, tiers)
            taken.add(row.call_id)
        return _step(txn, operation, open_calls, before, started, live_sequence=live_sequence)


def advance(
    claim: Claim,
    finished: Sequence[Finished],
    started: StartedEvent,
    live_sequence: int,
) -> Progress:
    """Commit the outputs of calls that returned, and say what is to be done next.

    Also the way a resumed turn, or one whose waiting call was answered, finds the calls it may start now. `live_sequence` is
    the last one handed out, kept in case the operation parks. Raises ClaimLost and Cancelling.
    """
    for done in finished:
        if not isinstance(done.output, str):
            blobs.save_images(history.output_item("function", "", done.output))
    with session_txn(claim.session_id, system("worker")) as txn:
        operation = held(txn, claim)
        calls = uncommitted_calls(operation)
        before = _states(calls)
        outputs = {done.position: done.output for done in finished}
        for row in calls:
            if row.position in outputs and row.state == "running":
                _done(row, outputs[row.position])
        return _step(txn, operation, calls, before, started, live_sequence=live_sequence)


def answer(txn: Txn, operation: Operation, call_id: str, *, allowed: bool, output: str = "") -> bool:
    """Settle the waiting call of a request: it may start, or is done with `output` as what the model reads.

    Returns False, and changes nothing, when the operation is not waiting on this call (any more). A parked operation is
    queued again once the transaction commits; the worker of a running one is told.
    """
    row = (
        ToolCall.objects.filter(operation=operation, call_id=call_id, state="waiting")
        .order_by("-position")
        .first()
    )
    if row is None:
        return False
    txn.touch()
    if allowed:
        row.state = "proposed"
        row.approved = True
    else:
        _done(row, output)
    rows.update(row, ("state", "approved", "output"))
    if operation.parked:
        operation.parked = False
        dispatch(txn, operation)
    else:
        operation_id = operation.id
        txn.after_commit(lambda: broadcast.signal(OPERATION_SIGNAL, operation_id))
    return True


def _decide(txn: Txn, operation: Operation, row: ToolCall, gate: Gate, tiers: Mapping[str, Tier]) -> None:
    tier = tiers.get(row.name)
    if tier is None:
        _done(row, f"There is no tool named {row.name}.")
        return
    match gate.decide(txn, operation, row, tier):
        case Run():
            row.approved = True
        case Refuse(output):
            _done(row, output)
        case Wait():
            row.state = "waiting"


_State = tuple[str, bool]


def _states(calls: Iterable[ToolCall]) -> list[_State]:
    return [(row.state, row.committed) for row in calls]


def _step(
    txn: Txn,
    operation: Operation,
    calls: Sequence[ToolCall],
    before: Sequence[_State],
    started: StartedEvent,
    *,
    live_sequence: int,
) -> Progress:
    """Move the uncommitted calls on: outputs whose prefix is complete enter history, approved ones start, or the turn parks.

    `before` is how the calls stood when they were read: only those that moved are written.
    """
    _commit_prefix(txn, operation, calls)
    start = [row for row in calls if row.state == "proposed" and row.approved]
    for row in start:
        row.state = "running"
        row.started = started(row, txn.session.latest_sequence)
    moved = [row for row, was, now in zip(calls, before, _states(calls), strict=True) if was != now]
    for row in moved:
        rows.update(row, ("state", "approved", "started", "output", "committed"))
    if moved:
        txn.touch()
    states = {row.state for row in calls}
    parked = states <= {"done", "waiting"} and "waiting" in states
    if parked:
        operation.process = None
        operation.parked = True
        operation.live_sequence = live_sequence
    complete = states <= {"done"}
    if complete:
        _adopt(txn)
    if start or complete:
        operation.at_work = True
    return Progress(start=start, parked=parked, complete=complete, anchor=txn.session.latest_sequence)


def _commit_prefix(txn: Txn, operation: Operation, calls: Iterable[ToolCall]) -> None:
    """Append the outputs of done calls, as far as every call before them has its own in history (behaviour 6.4)."""
    ready: list[NewEntry] = []
    for row in calls:
        if row.output is None:
            break
        ready.append(history.entry_of(row.output))
        row.committed = True
    if ready:
        entries.append_and_tell(txn, ready, operation_id=operation.id)


def _adopt(txn: Txn) -> None:
    """The safe point: what was deferred meanwhile enters history before the next request (behaviour 6.3)."""
    waiting = entries.take_deferred(txn)
    if waiting:
        entries.append_and_tell(txn, waiting)


def _done(row: ToolCall, output: ToolOutput) -> None:
    row.state = "done"
    row.output = history.output_item("custom" if row.kind == "custom" else "function", row.call_id, output)
