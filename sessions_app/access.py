"""The rule by which a caller may change a session (behaviour 5.5, design 2).

Owns: the writer check. Does not own: scopes of methods (the dispatcher has checked them), nor what a caller may see
(`Caller.visible`, built by `permissions_app`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from sessions_app import rows
from sessions_app.callers import Attached, Caller
from sessions_app.db import database_now
from sessions_app.errors import InvalidRequest, LeaseStale, PermissionDenied, SessionNotFound
from sessions_app.models import Attachment

if TYPE_CHECKING:
    from sessions_app.models import Session
    from sessions_app.records import AttachmentMode

WRITABLE = ("read_write", "owner_read_write")


_ATTACHMENT = rows.Select(Attachment, "id = %s AND connection_id = %s AND session_id = %s")


def check(caller: Caller, session: Session | None, session_id: str) -> Session:
    """Return the session if the caller may do what it is about to do, under the session's lock.

    The order is the contract's: attachment of this connection and session (PermissionDenied), session exists
    (SessionNotFound), visible (PermissionDenied), attachment live (InvalidRequest), writable and within the share
    (PermissionDenied), owner lease (LeaseStale). Callers without an attachment meet the second and third only.
    """
    attachment = _own_attachment(caller.access, session_id) if isinstance(caller.access, Attached) else None
    if session is None:
        raise SessionNotFound("no such session")
    if not caller.visible.sees(session):
        raise PermissionDenied("this session is not yours")
    if isinstance(caller.access, Attached) and attachment is not None and caller.access.writes:
        _check_writer(caller, session, attachment)
    return session


def _own_attachment(held: Attached, session_id: str) -> Attachment:
    """Return the attachment if it belongs to this connection and this session."""
    attachment = _ATTACHMENT.first(held.attachment_id, held.connection_id, session_id)
    if attachment is None:
        raise PermissionDenied("the attachment does not belong to this connection and session")
    return attachment


def _check_writer(caller: Caller, session: Session, attachment: Attachment) -> None:
    if attachment.hidden or not attachment.live:
        raise InvalidRequest("the attachment is not active")
    mode = cast("AttachmentMode", attachment.mode)
    if mode not in WRITABLE or not caller.visible.covers(session, mode):
        raise PermissionDenied("the attachment is read-only")
    if attachment.mode == "owner_read_write" and session.liveness == "owner_bound":
        check_lease(session, attachment.id)


def check_lease(session: Session, attachment_id: str) -> None:
    """Refuse with LeaseStale unless `attachment_id` holds the session's owner lease, connected and unexpired."""
    if session.owner_attachment != attachment_id or session.lease_grace_until is not None:
        raise LeaseStale("the owner lease is no longer held")
    if session.lease_expires_at is None or session.lease_expires_at <= database_now():
        raise LeaseStale("the owner lease has expired")
