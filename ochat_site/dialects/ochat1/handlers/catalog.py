"""`prompt.*` and `workspace.*`: what sessions can be made of (behaviour 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ochat_site.dialects.ochat1.handlers.pages import given, page_of
from sessions_app import listing
from sessions_app.errors import PromptNotFound, WorkspaceNotFound

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import (
        Page,
        PromptGetParams,
        PromptListParams,
        WorkspaceGetParams,
        WorkspaceListParams,
    )
    from ochat_site.rpc.context import Context
    from sessions_app.records import Prompt, Workspace


def prompt_list(context: Context, params: PromptListParams) -> Page[Prompt]:
    """Return a page of the prompts, disabled and broken ones included."""

    def read(after: str, limit: int) -> list[Prompt]:
        return listing.list_prompts(
            after=after, limit=limit, enabled=given(params.enabled), available=given(params.available)
        )

    return page_of(context, params, read)


def prompt_get(_context: Context, params: PromptGetParams) -> Prompt:
    """Return one prompt. Raises PromptNotFound."""
    prompt = listing.get_prompt(params.prompt_id)
    if prompt is None:
        raise PromptNotFound("no such prompt")
    return prompt


def workspace_list(context: Context, params: WorkspaceListParams) -> Page[Workspace]:
    """Return a page of the workspaces."""

    def read(after: str, limit: int) -> list[Workspace]:
        return listing.list_workspaces(
            after=after,
            limit=limit,
            kind=given(params.kind),
            access=given(params.access),
            available=given(params.available),
        )

    return page_of(context, params, read)


def workspace_get(_context: Context, params: WorkspaceGetParams) -> Workspace:
    """Return one workspace. Raises WorkspaceNotFound."""
    workspace = listing.get_workspace(params.workspace_id)
    if workspace is None:
        raise WorkspaceNotFound("no such workspace")
    return workspace
