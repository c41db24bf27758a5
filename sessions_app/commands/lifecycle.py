"""Starting and stopping a session (behaviour 4.3 to 4.5).

Owns: the transitions of the table in behaviour 4.4 that a start or a stop makes, and loading what a session needs to run.
Does not own: capacity, or the operation that a stop cancels (`commands.operations`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec
import structlog

from sessions_app import ledger, participants, pinned, workspaces
from sessions_app.callers import system
from sessions_app.commands import operations
from sessions_app.commands.messages import Changed, changed
from sessions_app.errors import (
    ConfigurationInvalid,
    InvalidState,
    PromptUnavailable,
    Refusal,
    WorkspaceUnavailable,
)

if TYPE_CHECKING:
    from sessions_app.ledger import Txn
    from sessions_app.receipts import Call
    from sessions_app.records import StopMode

T = TypeVar("T", bound=msgspec.Struct)

log = structlog.get_logger(__name__)

LOAD_REFUSALS = (WorkspaceUnavailable, PromptUnavailable, ConfigurationInvalid)
"""What a session that cannot be loaded answers (behaviour 14.4)."""


def start_session(call: Call, session_id: str) -> Changed:
    """Start a session: two revisions, `starting` then `idle`; nothing changes in one that runs (behaviour 4.5).

    Raises InvalidState for a failed session, WorkspaceUnavailable and PromptUnavailable when it cannot be loaded.
    """
    return load_command(call, session_id, Changed, _start)


def stop_session(call: Call, session_id: str, mode: StopMode) -> Changed:
    """Stop a session, gracefully or by cancelling what runs (behaviour 4.5); nothing changes in one that is stopped."""

    def body(txn: Txn) -> Changed:
        stop(txn, mode)
        return changed(txn)

    return ledger.command(call, session_id, Changed, body)


def load_command(call: Call, session_id: str, result: type[T], body: Callable[[Txn], T]) -> T:
    """Run a command as `ledger.command` does; a session that its body finds unloadable is told of, once the refusal is stored.

    A refusal out of a receipt is not found again, and so tells nothing.
    """
    found: list[Refusal] = []

    def loading(txn: Txn) -> T:
        try:
            return body(txn)
        except LOAD_REFUSALS as refusal:
            found.append(refusal)
            raise

    try:
        return ledger.command(call, session_id, result, loading)
    except LOAD_REFUSALS:
        for refusal in found:
            _tell_unloadable(session_id, refusal)
        raise


def _tell_unloadable(session_id: str, refusal: Refusal) -> None:
    """Emit `session.error` in a transaction of its own: that of the refused command is taken back."""
    try:
        with ledger.session_txn(session_id, system("unloadable")) as txn:
            operations.emit_load_error(txn, refusal)
    except Refusal as failure:
        # The command's own refusal is the answer; the next one that finds the same tells it.
        log.warning("session.error_not_told", session_id=session_id, code=failure.code)


def _start(txn: Txn) -> Changed:
    session = txn.session
    if session.failure is not None:
        raise InvalidState("the session has failed; reset or rebuild it first")
    workspaces.check(session)
    if session.observed != "stopped":
        if session.desired == "stopped":
            # A graceful stop still waits for the operation: starting takes it back.
            txn.set_state(desired="running")
        return changed(txn)
    pinned.check(session.prompt_revision_id)
    session.load_error = None
    txn.set_state(desired="running", observed="starting")
    txn.next_revision()
    txn.set_state(observed="idle")
    return changed(txn)


def stop(txn: Txn, mode: StopMode) -> None:
    """Stop the session inside an open transaction; emits nothing where nothing changes.

    One that is stopping already and cancels now tells its state again: the operation in it is another.
    """
    session, operation = txn.session, txn.operation
    if operation is None:
        if session.desired == "stopped" and session.observed == "stopped":
            return
        txn.set_state(desired="stopped", observed="stopped")
        operations.drop_transient(txn)
    elif mode == "cancel" and operation.state != "cancelling":
        operations.begin_cancelling(txn, operation)
        txn.set_state(desired="stopped")
    elif session.desired != "stopped":
        txn.set_state(desired="stopped")
    for participant in participants.installed():
        participant.on_stop(txn, mode)
    operations.end_cancelled_if_unheld(txn)
