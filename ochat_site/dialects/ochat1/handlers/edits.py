"""`session.compact` to `session.delete`: histories edited and exported, sessions made anew and deleted (behaviour 9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET

from ochat_site.dialects.ochat1.handlers.pages import given
from ochat_site.dialects.ochat1.handlers.sessions import mutation
from ochat_site.dialects.ochat1.types import SessionDeleteResult, SessionExportResult
from ochat_site.rpc.paging import WindowCursors
from sessions_app import exports
from sessions_app.commands import administration, compaction, deletion, edits

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import (
        SessionCompactParams,
        SessionDeleteHistoryParams,
        SessionDeleteParams,
        SessionExportParams,
        SessionMutationResult,
        SessionRebuildParams,
        SessionResetParams,
        SessionUpgradePromptParams,
    )
    from ochat_site.rpc.context import Context


def session_compact(context: Context, params: SessionCompactParams) -> SessionMutationResult:
    """Begin to sum a history up."""
    return mutation(compaction.compact(context.call, params.session_id, given(params.expected_revision)))


def session_delete_history(context: Context, params: SessionDeleteHistoryParams) -> SessionMutationResult:
    """Take an entry out of a history, and its partner."""
    return mutation(
        edits.delete_history(context.call, params.session_id, params.history_id, params.expected_revision)
    )


def session_export(context: Context, params: SessionExportParams) -> SessionExportResult:
    """Write a session into a blob for the caller, by any attachment to it."""
    window = None if params.history is UNSET else params.history
    principal = context.identity.principal
    cursors = WindowCursors(
        context.server.id, principal, params.session_id, None if window is None else window.limit
    )
    wanted = exports.Wanted(format=params.format, revision=given(params.revision), window=window)
    made = exports.export(context.caller, principal, params.session_id, wanted, cursors.open)
    return SessionExportResult(
        blob=made.blob,
        session_revision=made.revision,
        latest_event_sequence=made.latest_event_sequence,
    )


def session_reset(context: Context, params: SessionResetParams) -> SessionMutationResult:
    """Begin a session again."""
    keep = administration.Keep(
        history=params.keep_history,
        workspace=params.keep_workspace,
        grants=params.keep_grants,
        labels=params.keep_labels,
    )
    return mutation(administration.reset(context.call, params.session_id, params.expected_revision, keep))


def session_rebuild(context: Context, params: SessionRebuildParams) -> SessionMutationResult:
    """Begin a session again from its prompt."""
    return mutation(
        administration.rebuild(
            context.call, params.session_id, params.expected_revision, params.prompt_choice
        )
    )


def session_upgrade_prompt(context: Context, params: SessionUpgradePromptParams) -> SessionMutationResult:
    """Let a session go on with another revision of its prompt. No prompt has a moderator that would have to be migrated."""
    return mutation(
        administration.upgrade_prompt(
            context.call, params.session_id, params.expected_revision, params.target_revision
        )
    )


def session_delete(context: Context, params: SessionDeleteParams) -> SessionDeleteResult:
    """Delete a session; the subscriptions to it just end."""
    gone = deletion.delete_session(
        context.call, params.session_id, params.expected_revision, params.policy, params.confirmation
    )
    context.afterwards(lambda: context.client.close_attachment(params.attachment_id))
    return SessionDeleteResult(session_id=gone.session_id, deleted_at=gone.deleted_at)
