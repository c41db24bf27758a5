"""`permission.*` and `grant.*`: what waits for a person's word, and what was allowed for later (behaviour 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ochat_site.dialects.ochat1.handlers.pages import given, page_of
from ochat_site.dialects.ochat1.types import GrantRevokeResult, PermissionRespondResult
from permissions_app import grants, requests
from permissions_app.scopes import access_session

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import (
        GrantListParams,
        GrantRevokeParams,
        Page,
        PermissionListParams,
        PermissionRespondParams,
    )
    from ochat_site.rpc.context import Context
    from sessions_app.records import Grant, Permission


def permission_list(context: Context, params: PermissionListParams) -> Page[Permission]:
    """Return a page of the requests of a session."""
    session = access_session(context.caller, params.session_id)

    def read(after: str, limit: int) -> list[Permission]:
        return requests.list_requests(session, state=given(params.state), after=after, limit=limit)

    return page_of(context, params, read)


def permission_respond(context: Context, params: PermissionRespondParams) -> PermissionRespondResult:
    """Answer a request."""
    resolved = requests.respond(
        context.call,
        params.session_id,
        params.permission_id,
        generation=params.permission_generation,
        choice=params.choice,
        reason=given(params.reason) or "",
    )
    return PermissionRespondResult(
        permission=resolved.permission,
        revision=resolved.revision,
        latest_event_sequence=resolved.latest_event_sequence,
    )


def grant_list(context: Context, params: GrantListParams) -> Page[Grant]:
    """Return a page of the grants of all sessions that the caller may see."""

    def read(after: str, limit: int) -> list[Grant]:
        return grants.list_grants(
            context.caller.visible,
            session_id=given(params.session_id),
            principal_id=given(params.principal_id),
            state=given(params.state),
            after=after,
            limit=limit,
        )

    return page_of(context, params, read)


def grant_revoke(context: Context, params: GrantRevokeParams) -> GrantRevokeResult:
    """Revoke a grant, for later calls."""
    revoked = grants.revoke_grant(context.call, params.session_id, params.grant_id, params.reason)
    return GrantRevokeResult(
        grant=revoked.grant, revision=revoked.revision, latest_event_sequence=revoked.latest_event_sequence
    )
