"""Deleting a session, and bringing an archived one back (behaviour 9.5).

Owns: `session.delete` with both policies, and the operators' restore. Does not own: erasing what nothing is to be kept of
(`erasure`), which may go on after the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sessions_app import erasure, ledger, participants, workspaces
from sessions_app.clock import wire_time
from sessions_app.commands.edits import STOPPED, check_at_rest
from sessions_app.errors import InvalidRequest
from sessions_app.listing import workspace_record
from sessions_app.models import Attachment

if TYPE_CHECKING:
    from sessions_app.ledger import Txn
    from sessions_app.models import WorkspaceInstance
    from sessions_app.receipts import Call
    from sessions_app.records import DeletePolicy


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is gone."""

    session_id: str
    deleted_at: str


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is back."""

    session_id: str
    revision: int


def delete_session(
    call: Call, session_id: str, expected_revision: int, policy: DeletePolicy, confirmation: str
) -> Deleted:
    """Delete a stopped session: hide all of it (`archive`), or let it be erased (`remove`). No event tells of it.

    Its attachments end, its temporary workspace goes where its policy says so, its receipts stay. Raises, beside what
    `ledger.command` raises, what `check_at_rest` raises, then InvalidRequest when the confirmation is not the session's id.
    """
    dropped: list[WorkspaceInstance] = []
    removed: list[str] = []

    def body(txn: Txn) -> Deleted:
        session = txn.session
        check_at_rest(session, expected_revision, STOPPED)
        if confirmation != session.id:
            raise InvalidRequest("the confirmation is not the id of the session")
        for participant in participants.installed():
            participant.on_delete(txn, policy)
        Attachment.objects.filter(session=session).delete()
        session.owner_attachment = session.owner_principal = ""
        session.lease_expires_at = session.lease_grace_until = session.reclaim_digest = None
        instance = session.workspace_instance
        if instance is not None and workspaces.goes_with_session(instance):
            session.workspace_instance = None
            workspaces.give_up(instance, txn.now)
            dropped.append(instance)
        session.archived_at = txn.now
        session.removed = policy == "remove"
        if session.removed:
            removed.append(session.id)
        txn.touch()
        return Deleted(session_id=session.id, deleted_at=wire_time(txn.now))

    deleted = ledger.command(call, session_id, Deleted, body)
    for instance in dropped:
        workspaces.clear(instance)
    for gone in removed:
        erasure.erase_soon(gone)
    return deleted


def restore_session(call: Call, session_id: str) -> Restored:
    """Bring an archived session back, as an operator: stopped, with its history, log, archives and blobs.

    A temporary workspace that went with it is made anew, which `workspace.state_changed` tells. Raises, beside what
    `ledger.command` raises, SessionNotFound for one that is not archived, or is removed.
    """
    made: list[WorkspaceInstance] = []

    def body(txn: Txn) -> Restored:
        session = txn.session
        session.archived_at = None
        txn.touch()
        if session.workspace_instance is None:
            made.append(workspaces.prepare(txn, session.workspace, session.id))
            session.workspace_instance = made[-1]
            txn.emit("workspace.state_changed", workspace_record(session.workspace))
        return Restored(session_id=session.id, revision=session.revision)

    try:
        return ledger.command(call, session_id, Restored, body, archived=True)
    except BaseException:
        for instance in made:
            workspaces.discard(instance)
        raise
