"""`session.attach`, `session.detach` and `session.renew_owner`, and what an attachment is told (behaviour 5, 8.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from ochat_site.dialects.ochat1.handlers.pages import given
from ochat_site.dialects.ochat1.types import (
    AttachReplayEvents,
    AttachReplaySnapshot,
    AttachResult,
    MutationResult,
    SessionRenewOwnerResult,
)
from ochat_site.rpc.context import reading
from ochat_site.rpc.paging import WindowCursors
from permissions_app.scopes import access_session
from sessions_app import leases, queries
from sessions_app.commands import attachments, logical

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import (
        SessionAttachParams,
        SessionDetachParams,
        SessionRenewOwnerParams,
    )
    from ochat_site.rpc.context import Context
    from sessions_app.records import Attachment


def session_attach(context: Context, params: SessionAttachParams) -> AttachResult:
    """Attach this connection to a session; nothing is read before that is committed."""
    token = given(params.reclaim_token)
    made = attachments.attach(context.call, params.session_id, params.requested_mode, token)
    return bring_up_to_date(
        context, made.attachment, after=given(params.after_sequence), subscribe=params.subscribe
    )


def session_detach(context: Context, params: SessionDetachParams) -> MutationResult:
    """Let go of an attachment; its subscription ends with it."""
    left = attachments.detach(context.call, params.session_id)
    context.afterwards(lambda: context.client.close_attachment(params.attachment_id))
    return MutationResult(revision=left.revision, latest_event_sequence=left.latest_event_sequence)


def session_renew_owner(context: Context, params: SessionRenewOwnerParams) -> SessionRenewOwnerResult:
    """Prolong the owner lease of the attachment that asks."""
    renewed = attachments.renew_owner(context.call, params.session_id, params.lease_generation)
    return SessionRenewOwnerResult(
        owner_lease=renewed.owner_lease,
        revision=renewed.revision,
        latest_event_sequence=renewed.latest_event_sequence,
    )


def bring_up_to_date(
    context: Context, attachment: Attachment, *, after: int | None, subscribe: bool
) -> AttachResult:
    """Return what an attach answers, read as of one point of the log, behind which the subscription begins.

    The same for an attachment that was just made and for one out of a receipt: a reclaim token only while it is the
    one in force, a subscription only while the attachment is this connection's (behaviour 11.4). Raises
    SessionNotFound and PermissionDenied for a session that is gone or hidden by now.
    """
    session_id, view = attachment.session_id, context.view
    cursors = WindowCursors(context.server.id, context.identity.principal, session_id)
    with reading():
        session = access_session(context.caller, session_id)
        replay = queries.replay(session, after, view, cursors.sign)
        token = leases.held_token(session, attachment.id)
        here = queries.is_attached(session, attachment.id, context.client.connection_id)

    def subscribed() -> None:
        # A receipt that was replayed on its own connection: what is open goes on behind the new snapshot.
        context.client.close_attachment(attachment.id)
        context.client.open_attachment(
            attachment.id, session_id, attachment.mode, view=view, after=replay.latest_event_sequence
        )

    if here and subscribe:
        if context.client.logical:
            logical.place(attachment.id, context.client.connection_id, replay.latest_event_sequence)
        context.afterwards(subscribed)
    return AttachResult(
        attachment=attachment,
        replay=(
            AttachReplayEvents(events=tuple(replay.events))
            if replay.snapshot is None
            else AttachReplaySnapshot(snapshot=replay.snapshot)
        ),
        latest_event_sequence=replay.latest_event_sequence,
        reclaim_token=UNSET if token is None else token,
    )
