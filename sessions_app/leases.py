"""Owner leases of owner-bound sessions (behaviour 5.3).

Owns: who is owner, until when, the grace after a disconnect, renewing, reclaiming, and the expiry of all that. Does not own:
stopping the session (`commands.lifecycle`) or the timers (`jobs_app.sweep`), which only wake: every decision here re-reads the row.
"""

from __future__ import annotations

import hmac
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

from django.conf import settings

from sessions_app import limits
from sessions_app.db import database_now
from sessions_app.errors import Conflict, PermissionDenied
from sessions_app.models import Attachment
from sessions_app.summaries import attachment_record

if TYPE_CHECKING:
    from sessions_app.ledger import Txn
    from sessions_app.models import Session


def reclaim_token(attachment_id: str) -> str:
    """Return the token by which an owner's attachment may be reclaimed in grace: the same for the same id, so that a replayed
    receipt can give it again; only its digest is stored."""
    return _token(attachment_id, settings.SECRET_KEY)


def _token(attachment_id: str, secret: str) -> str:
    return hmac.new(secret.encode(), b"reclaim:" + attachment_id.encode(), sha256).hexdigest()


def held_token(session: Session, attachment_id: str) -> str | None:
    """Return the reclaim token of an attachment while its digest is still the stored one, else None (behaviour 11.4).

    One that was made with a secret key that has been replaced since is found as long as that is kept as a fallback.
    """
    stored = bytes(session.reclaim_digest or b"")
    for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        token = _token(attachment_id, secret)
        if hmac.compare_digest(stored, _digest(token)):
            return token
    return None


def is_bound(session: Session, mode: str) -> bool:
    """Tell whether an attachment of `mode` would hold the owner lease of this session."""
    return mode == "owner_read_write" and session.liveness == "owner_bound"


def has_lapsed(session: Session) -> bool:
    """Tell whether the lease has an owner whose time is over: the session is due to stop."""
    due = deadline(session)
    return due is not None and due <= database_now()


def deadline(session: Session) -> datetime | None:
    """Return when the present owner's hold ends: the end of the grace, else of the lease; None without an owner."""
    if not session.owner_attachment:
        return None
    return session.lease_grace_until or session.lease_expires_at


def check_takeover(session: Session, principal_id: str, token: str | None) -> None:
    """Refuse an owner attach while another owner is connected (Conflict), or in grace without right (PermissionDenied).

    In grace the lease's principal may come back, or whoever holds the token; the creator where no principal is known.
    """
    if not session.owner_attachment:
        return
    if session.lease_grace_until is None:
        raise Conflict("the session has an owner")
    if principal_id and principal_id == (session.owner_principal or session.creator):
        return
    stored = bytes(session.reclaim_digest or b"")
    if not hmac.compare_digest(stored, _digest(token or "")):
        raise PermissionDenied("the session waits for its owner")


def grant(txn: Txn, attachment: Attachment, principal_id: str) -> None:
    """Give the lease to `attachment`, in place of an owner in grace, and emit `attachment.owner_changed`."""
    session = txn.session
    if session.owner_attachment:
        Attachment.objects.filter(id=session.owner_attachment).delete()
    session.owner_attachment = attachment.id
    session.owner_principal = principal_id
    session.reclaim_digest = _digest(reclaim_token(attachment.id))
    extend(txn, attachment)


def extend(txn: Txn, owner: Attachment) -> None:
    """Move the owner's lease to its next generation and a full duration from now, and emit `attachment.owner_changed`."""
    session = txn.session
    session.lease_generation += 1
    session.lease_expires_at = database_now() + timedelta(
        milliseconds=limits.server().owner_lease_duration_ms
    )
    session.lease_grace_until = None
    txn.emit("attachment.owner_changed", attachment_record(owner, session))


def lose(txn: Txn) -> None:
    """Put the owner into its grace, never past the lease's own end, and emit `attachment.owner_changed` without one."""
    session = txn.session
    ends = database_now() + timedelta(milliseconds=session.disconnect_grace_ms)
    bounds = [ends, session.lease_expires_at, session.lease_grace_until]
    session.lease_grace_until = min(bound for bound in bounds if bound is not None)
    txn.emit("attachment.owner_changed", None)


def evict(txn: Txn) -> None:
    """Remove an owner whose time is over and emit `attachment.owner_changed` without one.

    A connection that is still there keeps the name of its attachment, which is no longer active (behaviour 5.5).
    """
    session = txn.session
    owner = Attachment.objects.filter(id=session.owner_attachment)
    if not owner.filter(connection__isnull=False).update(live=False):
        owner.delete()
    session.owner_attachment = session.owner_principal = ""
    session.lease_expires_at = session.lease_grace_until = None
    session.reclaim_digest = None
    txn.emit("attachment.owner_changed", None)


def _digest(token: str) -> bytes:
    return sha256(token.encode()).digest()
