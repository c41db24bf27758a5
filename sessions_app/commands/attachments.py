"""Attaching to a session and letting go of it (behaviour 5).

Owns: the attachment's row, its limits, what its end means for an owner lease, and renewing one. Does not own: the lease's rules
(`leases`), the reading of what an attach answers (`queries.replay`), or the subscription (`ochat_site.rpc`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from sessions_app import access, ids, leases, ledger, limits, pinned, processes, rows
from sessions_app.callers import Attached, Caller, Connected, system
from sessions_app.commands import lifecycle
from sessions_app.errors import (
    InvalidRequest,
    InvalidState,
    LeaseStale,
    PermissionDenied,
    Refusal,
    ResourceLimit,
    SessionNotFound,
    SnapshotRequired,
)
from sessions_app.models import Attachment, Connection
from sessions_app.records import Attachment as AttachmentRecord
from sessions_app.records import AttachmentMode, OwnerLease, StopMode
from sessions_app.summaries import attachment_record, lease_record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sessions_app.ledger import Txn
    from sessions_app.models import Session
    from sessions_app.receipts import Call


class Attaching(msgspec.Struct, frozen=True, kw_only=True):
    """A new attachment, as its receipt keeps it: what is read after it, and the token, are not stored (behaviour 11.4)."""

    attachment: AttachmentRecord


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Where a session stands after a mutation that says nothing else."""

    revision: int
    latest_event_sequence: int


def attach(call: Call, session_id: str, mode: AttachmentMode, reclaim_token: str | None = None) -> Attaching:
    """Attach the caller's connection (behaviour 5.2).

    Raises PermissionDenied when the caller's share is narrower than `mode`, ResourceLimit for too many attachments of the
    connection (retryable) or of the session, PromptUnavailable when the pinned prompt is damaged, Conflict while another owner
    is connected, PermissionDenied for one in grace without right to it.
    """
    return lifecycle.load_command(
        call, session_id, Attaching, lambda txn: open_attachment(txn, mode, reclaim_token)
    )


def detach(call: Call, session_id: str) -> Counters:
    """Let go of the attachment by which the caller speaks (behaviour 5.4)."""

    def body(txn: Txn) -> Counters:
        close_attachment(txn, _own_attachment_id(txn))
        return Counters(revision=txn.session.revision, latest_event_sequence=txn.session.latest_sequence)

    return ledger.command(call, session_id, Counters, body)


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """A renewed owner lease, as the mutation left the session."""

    owner_lease: OwnerLease
    revision: int
    latest_event_sequence: int


def renew_owner(call: Call, session_id: str, generation: int) -> Renewed:
    """Prolong the owner lease that the caller's attachment holds, and emit `attachment.owner_changed` (behaviour 5.3).

    The reclaim token stays. Raises, beside what `ledger.command` raises (LeaseStale for a lease that is lost or expired, before
    all of these): PermissionDenied for an attachment of another mode, InvalidState where such attachments hold no lease,
    LeaseStale for another generation than the present one.
    """

    def body(txn: Txn) -> Renewed:
        session, attachment = txn.session, Attachment.objects.get(id=_own_attachment_id(txn))
        if attachment.mode != "owner_read_write":
            raise PermissionDenied("only the owner renews the lease")
        if not leases.is_bound(session, attachment.mode):
            raise InvalidState("this session has no owner lease")
        if generation != session.lease_generation:
            raise LeaseStale("the owner lease is of another generation")
        leases.extend(txn, attachment)
        return Renewed(
            owner_lease=cast("OwnerLease", lease_record(session)),  # it has just been extended
            revision=session.revision,
            latest_event_sequence=session.latest_sequence,
        )

    return ledger.command(call, session_id, Renewed, body)


def disconnect(attachments: Iterable[tuple[str, str]]) -> None:
    """Let go of the attachments (session id, attachment id) of a connection that is gone (behaviour 5.6).

    Raises, after having tried every one, the first refusal of the store: what is left then goes when this is called again.
    """
    caller = system("disconnect")
    left: list[Refusal] = []
    for session_id, attachment_id in attachments:
        try:
            with ledger.session_txn(session_id, caller) as txn:
                close_attachment(txn, attachment_id)
        except SessionNotFound:
            Attachment.objects.filter(id=attachment_id).delete()
        except Refusal as refusal:
            left.append(refusal)
    if left:
        raise left[0]


def gone(attachment_ids: Collection[str]) -> set[str]:
    """Return those of the ids that no session has any more, in one query: evicted owners, deleted sessions."""
    there = Attachment.objects.filter(id__in=attachment_ids, live=True).values_list("id", flat=True)
    return set(attachment_ids) - set(there)


def open_attachment(txn: Txn, mode: AttachmentMode, reclaim_token: str | None = None) -> Attaching:
    """Attach inside an open transaction; see `attach`."""
    caller, session = txn.caller, txn.session
    if not caller.visible.covers(session, mode):
        raise PermissionDenied("the session is shared with you for less than that")
    owning = leases.is_bound(session, mode)
    if owning and leases.has_lapsed(session):
        expire_owner(txn)
        txn.next_revision()
        if session.archived_at is not None:
            raise SessionNotFound("no such session")  # a transient one ends with its owner
    _check_limits(session, caller, replacing=owning and session.lease_grace_until is not None)
    pinned.check(session.prompt_revision_id)
    if owning:
        leases.check_takeover(session, caller.principal_id or "", reclaim_token)
    attachment = Attachment(
        id=ids.new_id("att"),
        session=session,
        connection_id=_connection(caller),
        process_id=_holder(caller),
        principal_id=caller.principal_id or "",
        mode=mode,
        answers="permission.respond" in caller.scopes,
        created_at=txn.now,
    )
    rows.insert([attachment])
    txn.touch()
    if owning:
        leases.grant(txn, attachment, caller.principal_id or "")
    return Attaching(attachment=attachment_record(attachment, session))


def open_hidden(caller: Caller, session_id: str, after_sequence: int | None) -> tuple[str, int]:
    """Attach an HTTP session stream: read-only, of no connection, named to nobody (behaviour 8.3).

    Returns the attachment's id and the sequence behind which the stream begins: `after_sequence`, or the present end of the log.
    Raises SessionNotFound, PermissionDenied for a session that is not the caller's, SnapshotRequired when what follows
    `after_sequence` is no longer retained, ResourceLimit when the session has too many attachments.
    """
    with ledger.session_txn(session_id, caller) as txn:
        session = access.check(caller, txn.session, session_id)
        latest = session.latest_sequence
        after = latest if after_sequence is None else min(after_sequence, latest)
        if after < latest and after + 1 < session.oldest_sequence:
            raise SnapshotRequired("the events behind this sequence are no longer kept", retryable=False)
        if _OF_SESSION.count(session.id) >= limits.server().max_attachments_per_session:
            raise ResourceLimit("this session has too many attachments", retryable=False)
        attachment = Attachment(
            id=ids.new_id("att"),
            session=session,
            process_id=processes.current_id(),
            principal_id=caller.principal_id or "",
            mode="read_only",
            hidden=True,
            created_at=txn.now,
        )
        rows.insert([attachment])
        txn.touch()
    return attachment.id, after


def close_attachment(txn: Txn, attachment_id: str) -> None:
    """Detach inside an open transaction: an owner's lease enters its grace, anything else just goes (behaviour 5.3, 5.4)."""
    if txn.session.owner_attachment == attachment_id:
        if txn.session.lease_grace_until is None:
            Attachment.objects.filter(id=attachment_id).update(connection=None, process=None)
            leases.lose(txn)
        return
    dropped = Attachment.objects.filter(id=attachment_id, live=False).delete()[0]
    if not dropped and Attachment.objects.filter(id=attachment_id).delete()[0]:
        txn.touch()


def expire_owner(txn: Txn) -> None:
    """End an owner whose time is over and stop the session with its stop mode (behaviour 5.3).

    A lease that ran out while its owner was connected is first marked lost, so that two owner changes are told.
    """
    if txn.session.lease_grace_until is None:
        leases.lose(txn)
        txn.next_revision()
    leases.evict(txn)
    txn.next_revision()
    stop_mode: StopMode = "cancel" if txn.session.stop_mode == "cancel" else "graceful"
    lifecycle.stop(txn, stop_mode)


def _check_limits(session: Session, caller: Caller, *, replacing: bool) -> None:
    if _OF_CONNECTION.count(_connection(caller)) >= limits.MAX_ATTACHMENTS_PER_CONNECTION:
        raise ResourceLimit("this connection has too many attachments", retryable=True)
    if _OF_SESSION.count(session.id) - replacing >= limits.server().max_attachments_per_session:
        raise ResourceLimit("this session has too many attachments", retryable=False)


_OF_CONNECTION = rows.Select(Attachment, "connection_id = %s")
_OF_SESSION = rows.Select(Attachment, "session_id = %s AND live")


def _own_attachment_id(txn: Txn) -> str:
    access = txn.caller.access
    if not isinstance(access, Attached):
        raise InvalidRequest("only through an attachment")
    return access.attachment_id


def _holder(caller: Caller) -> str | None:
    """Return the process whose end is the attachment's end: this one, or the one that streams a logical connection, if any."""
    if not (isinstance(caller.access, Connected) and caller.access.logical):
        return processes.current_id()
    row = _LOGICAL.first(caller.access.connection_id)
    if row is None:
        raise InvalidRequest("no such connection")  # closed since the call began
    return cast("str | None", row.process_id)


_LOGICAL = rows.Select(Connection, "id = %s AND closed_at IS NULL", lock=True)


def _connection(caller: Caller) -> str | None:
    return caller.access.connection_id if isinstance(caller.access, Connected | Attached) else None
