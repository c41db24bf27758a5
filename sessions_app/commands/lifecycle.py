"""Starting and stopping a session (behaviour 4.3 to 4.5).

Owns: the transitions of the table in behaviour 4.4 that a start or a stop makes, and loading what a session needs to run.
Does not own: capacity, or the operation that a stop cancels (`commands.operations`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessions_app import ledger, participants, pinned, workspaces
from sessions_app.callers import system
from sessions_app.commands import operations
from sessions_app.commands.messages import Changed, changed
from sessions_app.encoding import encode
from sessions_app.errors import (
    ConfigurationInvalid,
    InvalidState,
    PromptUnavailable,
    Refusal,
    WorkspaceUnavailable,
    to_error,
)

if TYPE_CHECKING:
    from sessions_app.ledger import Txn
    from sessions_app.receipts import Call
    from sessions_app.records import StopMode

LOAD_REFUSALS = (WorkspaceUnavailable, PromptUnavailable, ConfigurationInvalid)
"""What a session that cannot be loaded answers (behaviour 14.4)."""


def start_session(call: Call, session_id: str) -> Changed:
    """Start a session: two revisions, `starting` then `idle`; nothing changes in one that runs (behaviour 4.5).

    Raises InvalidState for a failed session, WorkspaceUnavailable and PromptUnavailable when it cannot be loaded.
    """
    try:
        return ledger.command(call, session_id, Changed, _start)
    except Refusal as refusal:
        if isinstance(refusal, LOAD_REFUSALS):
            note_unloadable(session_id, refusal)
        raise


def stop_session(call: Call, session_id: str, mode: StopMode) -> Changed:
    """Stop a session, gracefully or by cancelling what runs (behaviour 4.5); nothing changes in one that is stopped."""

    def body(txn: Txn) -> Changed:
        stop(txn, mode)
        return changed(txn)

    return ledger.command(call, session_id, Changed, body)


def check_loadable(txn: Txn) -> None:
    """Refuse unless workspace and pinned prompt are there: WorkspaceUnavailable, PromptUnavailable."""
    workspaces.check(txn.session)
    pinned.check(txn.session.prompt_revision_id)


def note_unloadable(session_id: str, refusal: Refusal) -> None:
    """Emit `session.error` in a transaction of its own, once per cause (behaviour 8.1)."""
    error = encode(to_error(refusal))
    with ledger.session_txn(session_id, system("unloadable")) as txn:
        if txn.session.load_error != error:
            txn.session.load_error = error
            txn.emit("session.error", to_error(refusal))


def _start(txn: Txn) -> Changed:
    session = txn.session
    if session.failure is not None:
        raise InvalidState("the session has failed; reset or rebuild it first")
    if session.observed != "stopped":
        if session.desired == "stopped":
            # A graceful stop still waits for the operation: starting takes it back.
            txn.set_state(desired="running")
        return changed(txn)
    check_loadable(txn)
    session.load_error = None
    txn.set_state(desired="running", observed="starting")
    txn.next_revision()
    txn.set_state(observed="idle")
    return changed(txn)


def stop(txn: Txn, mode: StopMode) -> None:
    """Stop the session inside an open transaction; emits nothing where nothing changes."""
    session, operation = txn.session, txn.operation
    if operation is None:
        if session.desired == "stopped" and session.observed == "stopped":
            return
        txn.set_state(desired="stopped", observed="stopped")
        operations.drop_transient(txn)
    elif mode == "graceful" or operation.state == "cancelling":
        if session.desired == "stopped":
            return
        session.desired = "stopped"
        _tell_state(txn)
    else:
        session.desired = "stopped"
        operations.begin_cancelling(txn, operation)
        _tell_state(txn)
    for participant in participants.installed():
        participant.on_stop(txn, mode)
    operations.end_cancelled_if_unheld(txn)


def _tell_state(txn: Txn) -> None:
    """Emit the state with what is observed left as it is: the operation goes on until its terminal transaction."""
    txn.set_state()
