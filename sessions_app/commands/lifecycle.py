"""Starting and stopping a session (behaviour 4.3 to 4.5).

Owns: the transitions of the table in behaviour 4.4 that a start, a stop or a free place makes, and loading what a session needs
to run. Does not own: capacity and who is next (`capacity`), or the operation that a stop cancels (`commands.operations`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec
import structlog
from django.db import transaction

from sessions_app import capacity, ledger, participants, pinned, rows, workspaces
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
from sessions_app.models import ProfileRevision, Session

if TYPE_CHECKING:
    from sessions_app.ledger import Txn
    from sessions_app.receipts import Call
    from sessions_app.records import StopMode

T = TypeVar("T", bound=msgspec.Struct)

log = structlog.get_logger(__name__)

LOAD_REFUSALS = (WorkspaceUnavailable, PromptUnavailable, ConfigurationInvalid)
"""What a session that cannot be loaded answers (behaviour 14.4)."""


def start_session(call: Call, session_id: str, *, queue: bool = True) -> Changed:
    """Start a session: two revisions, `starting` then `idle`; nothing changes in one that runs or waits (behaviour 4.5).

    When it lacks capacity it waits, `queued_for_slot`, if `queue` and the limit let it. Raises InvalidState for a failed session,
    WorkspaceUnavailable without its folder, ResourceLimit (retryable) for one that may not wait, and PromptUnavailable and
    ConfigurationInvalid when it cannot be loaded.
    """
    with capacity.building():
        return load_command(call, session_id, Changed, lambda txn: _start(txn, queue=queue))


def activate(session_id: str) -> None:
    """Start a session that waits for capacity, if it can have it now; one that cannot be loaded is tried again later.

    Raises SessionNotFound, StoreLocked, CommandQueueFull and PersistenceError.
    """
    with capacity.building(), ledger.session_txn(session_id, system("capacity")) as txn:
        if txn.session.observed != "queued_for_slot":
            return
        try:
            with transaction.atomic():
                if capacity.take_waiting(txn.session):
                    workspaces.check(txn.session)
                    _load(txn)
                    _run(txn)
        except LOAD_REFUSALS as refusal:
            capacity.postpone(txn.session, txn.now)
            operations.emit_load_error(txn, refusal)


def stop_session(call: Call, session_id: str, mode: StopMode) -> Changed:
    """Stop a session, gracefully or by cancelling what runs (behaviour 4.5); nothing changes in one that is stopped."""

    def body(txn: Txn) -> Changed:
        stop(txn, mode)
        return changed(txn)

    return ledger.command(call, session_id, Changed, body)


def stop_everything(cause: str) -> None:
    """Stop every session of this store, cancelling what runs, because the process that they are bound to ends or is gone."""
    running = Session.objects.filter(archived_at=None).exclude(desired="stopped", observed="stopped")
    for session_id in running.values_list("id", flat=True):
        try:
            with ledger.session_txn(session_id, system(cause)) as txn:
                stop(txn, "cancel")
        except Refusal as refusal:
            # The next start of the host stops it.
            log.warning("session.not_stopped", session_id=session_id, code=refusal.code)


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


def _start(txn: Txn, *, queue: bool) -> Changed:
    session = txn.session
    if session.failure is not None:
        raise InvalidState("the session has failed; reset or rebuild it first")
    workspaces.check(session)
    if session.observed != "stopped":
        if session.desired == "stopped":
            # A graceful stop still waits for the operation: starting takes it back. A compaction that began in a stopped
            # session has taken nothing, and cannot be left to wait in the line.
            if not capacity.is_held(session):
                capacity.take(txn, session, queue=False)
            txn.set_state(desired="running")
        return changed(txn)
    if capacity.take(txn, session, queue=queue):
        _load(txn)
        _run(txn)
    else:
        txn.set_state(desired="running", observed="queued_for_slot")
    return changed(txn)


def _load(txn: Txn) -> None:
    """Refuse unless everything that the session was made with is still there."""
    pinned.check(txn.session.prompt_revision_id)
    if not _PROFILE.any(txn.session.profile_id):
        raise ConfigurationInvalid("the permission profile of this session is gone")


_PROFILE = rows.Select(ProfileRevision, "digest = %s")


def _run(txn: Txn) -> None:
    txn.session.load_error = None
    txn.set_state(desired="running", observed="starting")
    txn.next_revision()
    txn.set_state(observed="idle")


def stop(txn: Txn, mode: StopMode) -> None:
    """Stop the session inside an open transaction; emits nothing where nothing changes.

    One that is stopping already and cancels now tells its state again: the operation in it is another.
    """
    session, operation = txn.session, txn.operation
    ran = session.observed != "queued_for_slot"
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
    if operation is None and ran:
        workspaces.replace_after_stop(txn)
    operations.end_cancelled_if_unheld(txn)
