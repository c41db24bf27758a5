"""`session.*`: sessions, their lives and their messages (behaviour 4, 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from ochat_site.dialects.ochat1.handlers.attachments import bring_up_to_date
from ochat_site.dialects.ochat1.handlers.pages import given, page_of
from ochat_site.dialects.ochat1.types import SendMessageResult, SessionCreateResult, SessionMutationResult
from ochat_site.rpc.paging import WindowCursors
from permissions_app.scopes import access_session
from sessions_app import listing, queries
from sessions_app.commands import lifecycle, messages, sessions
from sessions_app.errors import PermissionDenied, SessionNotFound
from sessions_app.records import HistoryWindowRequestCursor

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import (
        AttachResult,
        Page,
        SessionCancelOperationParams,
        SessionCreateParams,
        SessionGetParams,
        SessionListParams,
        SessionSendMessageParams,
        SessionStartParams,
        SessionStopParams,
    )
    from ochat_site.rpc.context import Context
    from sessions_app.commands.messages import Changed
    from sessions_app.records import Attachment, Session, Snapshot


def session_create(context: Context, params: SessionCreateParams) -> SessionCreateResult:
    """Make a session, and attach this connection to it if a mode is asked for."""
    made = sessions.create_session(context.call, params.spec, given(params.requested_mode))
    return SessionCreateResult(
        session=made.session,
        attachment=_attached(context, made.attachment, subscribe=params.subscribe),
        revision=made.revision,
        latest_event_sequence=made.latest_event_sequence,
    )


def _attached(
    context: Context, attachment: Attachment | None, *, subscribe: bool
) -> AttachResult | UnsetType:
    """Return the attachment of a create; a session out of a receipt may be gone or hidden by now (behaviour 11.4)."""
    if attachment is None:
        return UNSET
    try:
        return bring_up_to_date(context, attachment, after=None, subscribe=subscribe)
    except (SessionNotFound, PermissionDenied):
        return UNSET


def session_list(context: Context, params: SessionListParams) -> Page[Session]:
    """Return a page of the sessions that the caller may see."""

    def read(after: str, limit: int) -> list[Session]:
        return listing.list_sessions(
            context.caller.visible,
            after=after,
            limit=limit,
            desired=given(params.desired_state),
            prompt_id=given(params.prompt_id),
            workspace_id=given(params.workspace_id),
            creator=given(params.owner_principal_id),
            labels=params.labels,
        )

    return page_of(context, params, read)


def session_get(context: Context, params: SessionGetParams) -> Snapshot:
    """Return a session with the window of its history that is asked for."""
    session = access_session(context.caller, params.session_id)
    window = None if params.history is UNSET else params.history
    limit = None if window is None else window.limit
    cursors = WindowCursors(context.server.id, context.identity.principal, session.id, limit)
    place = cursors.open(window.window_cursor) if isinstance(window, HistoryWindowRequestCursor) else None
    return queries.snapshot(session, context.view, cursors.sign, window, place)


def session_start(context: Context, params: SessionStartParams) -> SessionMutationResult:
    """Start a session, or let it wait for capacity."""
    started = lifecycle.start_session(context.call, params.session_id, queue=params.queue_if_limited)
    return mutation(started)


def session_stop(context: Context, params: SessionStopParams) -> SessionMutationResult:
    """Stop a session."""
    return mutation(lifecycle.stop_session(context.call, params.session_id, params.mode))


def session_cancel_operation(context: Context, params: SessionCancelOperationParams) -> SessionMutationResult:
    """Cancel the operation that is named."""
    return mutation(messages.cancel_operation(context.call, params.session_id, params.operation_id))


def session_send_message(context: Context, params: SessionSendMessageParams) -> SendMessageResult:
    """Give a session a message."""
    sent = messages.send_message(context.call, params.session_id, params.message)
    return SendMessageResult(
        history_id=sent.history_id,
        disposition=sent.disposition,
        operation_id=UNSET if sent.operation_id is None else sent.operation_id,
        revision=sent.revision,
        latest_event_sequence=sent.latest_event_sequence,
    )


def mutation(changed: Changed) -> SessionMutationResult:
    """Return what a mutation of a session answers."""
    return SessionMutationResult(
        session=changed.session,
        revision=changed.revision,
        latest_event_sequence=changed.latest_event_sequence,
    )
