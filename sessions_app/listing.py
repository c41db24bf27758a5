"""Keyset pages of the kernel's own collections (behaviour 12.1): prompts, workspaces, sessions, in the order of their ids.

Owns: filters and order. Does not own: cursors (`ochat_site.rpc.paging`), and which sessions a caller may see
(`Caller.visible`). Every function returns one item more than `limit` when there are more behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec
from django.db.models import Exists, OuterRef, Prefetch, QuerySet
from msgspec import UNSET

from sessions_app import records
from sessions_app.models import PromptDefinition, Session, SessionLabel, WorkspaceDefinition, label_digest
from sessions_app.summaries import session_record

if TYPE_CHECKING:
    from sessions_app.callers import Visible


Ids = Callable[[str, int], list[str]]
"""Reads at most so many session ids behind an id, in order, from one index."""

SAMPLE = 512
"""How far the indexes that a page may be read from are compared."""
_CHECKED_AT_ONCE = 256


def list_sessions(
    visible: Visible,
    *,
    after: str,
    limit: int,
    desired: str | None = None,
    prompt_id: str | None = None,
    workspace_id: str | None = None,
    creator: str | None = None,
    labels: Mapping[str, str] = {},
) -> list[records.Session]:
    """Return summaries of the visible sessions behind id `after` that match every given filter and every label.

    The ids come from the index of whichever condition the fewest sessions meet, and are checked against the others: what a page
    costs depends neither on how many sessions there are nor on what the database thinks of their number.
    """
    exact: dict[str, Any] = {
        "desired": desired,
        "prompt_id": prompt_id,
        "workspace_id": workspace_id,
        "creator": creator,
    }
    wanted = visible.restrict(Session.objects.filter(archived_at=None))
    sources: list[Ids] = []
    if not visible.everything:
        sources.append(visible.ids)
    for name, value in exact.items():
        if value is not None:
            wanted = wanted.filter(**{name: value})
            sources.append(partial(_ids, {name: value}))
    for label in labels.items():
        digest = label_digest(*label)
        wanted = wanted.filter(Exists(SessionLabel.objects.filter(session=OuterRef("pk"), digest=digest)))
        sources.append(partial(_labelled, digest))
    found = _page(wanted, sources or [partial(_ids, {})], after, limit + 1)
    loaded = Session.objects.select_related("active_operation").filter(id__in=found)
    return [session_record(row) for row in loaded.order_by("id")]


def _page(wanted: QuerySet[Session], sources: Sequence[Ids], after: str, count: int) -> list[str]:
    """Return the first `count` ids behind `after` that are `wanted`; each of `sources` has all of them, and others."""
    most = SAMPLE if len(sources) > 1 else count
    samples = [(source(after, most), source) for source in sources]
    chunk, source = min(samples, key=lambda sample: len(sample[0]))
    found: list[str] = []
    while True:
        for begin in range(0, len(chunk), _CHECKED_AT_ONCE):
            among = wanted.filter(id__in=chunk[begin : begin + _CHECKED_AT_ONCE])
            found += among.order_by("id").values_list("id", flat=True)
            if len(found) >= count:
                return found[:count]
        if len(chunk) < most:
            return found
        most = SAMPLE
        chunk = source(chunk[-1], most)


def _ids(exact: Mapping[str, Any], after: str, most: int) -> list[str]:
    rows = Session.objects.filter(archived_at=None, id__gt=after, **exact).order_by("id")
    return list(rows.values_list("id", flat=True)[:most])


def _labelled(digest: bytes, after: str, most: int) -> list[str]:
    rows = SessionLabel.objects.filter(digest=digest, session_id__gt=after).order_by("session_id")
    return list(rows.values_list("session_id", flat=True)[:most])


def list_prompts(
    *, after: str, limit: int, enabled: bool | None = None, available: bool | None = None
) -> list[records.Prompt]:
    """Return the prompts behind id `after`; available means enabled and with a revision that was built (behaviour 3.1)."""
    rows = _prompts().filter(id__gt=after)
    if enabled is not None:
        rows = rows.filter(enabled=enabled)
    usable = {"enabled": True, "unavailable_reason": "", "current_revision__isnull": False}
    if available is not None:
        rows = rows.filter(**usable) if available else rows.exclude(**usable)
    return [prompt_record(row) for row in rows.order_by("id")[: limit + 1]]


def list_workspaces(
    *,
    after: str,
    limit: int,
    kind: str | None = None,
    access: str | None = None,
    available: bool | None = None,
) -> list[records.Workspace]:
    """Return the workspaces behind id `after`."""
    rows = WorkspaceDefinition.objects.filter(removed=False, id__gt=after)
    if kind is not None:
        rows = rows.filter(kind=kind)
    if access is not None:
        rows = rows.filter(access=access)
    if available is not None:
        rows = rows.filter(unavailable_reason="") if available else rows.exclude(unavailable_reason="")
    return [workspace_record(row) for row in rows.order_by("id")[: limit + 1]]


def get_prompt(prompt_id: str) -> records.Prompt | None:
    """Return one prompt, or None."""
    row = _prompts().filter(id=prompt_id).first()
    return None if row is None else prompt_record(row)


def get_workspace(workspace_id: str) -> records.Workspace | None:
    """Return one workspace, or None."""
    row = WorkspaceDefinition.objects.filter(removed=False, id=workspace_id).first()
    return None if row is None else workspace_record(row)


def prompt_record(row: PromptDefinition) -> records.Prompt:
    """Return a prompt as the catalog lists it."""
    reason = row.unavailable_reason or ("" if row.current_revision_id else "the prompt has not been built")
    return records.Prompt(
        id=row.id,
        name=row.name,
        description=row.description or UNSET,
        enabled=row.enabled,
        current_revision=row.current_revision_id or UNSET,
        allowed_workspaces=tuple(sorted(workspace.id for workspace in row.allowed_workspaces.all())),
        permission_profile=row.permission_profile,
        runtime_policy=row.runtime_policy or UNSET,
        availability="unavailable" if reason else "available",
        unavailable_reason=reason or UNSET,
    )


def workspace_record(row: WorkspaceDefinition) -> records.Workspace:
    """Return a workspace as the catalog lists it."""
    temporary = row.kind == "temporary"
    return records.Workspace(
        id=row.id,
        name=row.name,
        kind=cast("records.WorkspaceKind", row.kind),
        temporary_location=cast("records.TemporaryLocation", row.temporary_location) if temporary else UNSET,
        cleanup=cast("records.WorkspaceCleanup", row.cleanup) if temporary else UNSET,
        access=cast("records.WorkspaceAccess", row.access),
        conflict_domain=row.conflict_domain or UNSET,
        prompt_limits=msgspec.json.decode(row.prompt_limits, type=tuple[records.PromptLimit, ...]),
        availability="unavailable" if row.unavailable_reason else "available",
        unavailable_reason=row.unavailable_reason or UNSET,
    )


def _prompts() -> QuerySet[PromptDefinition]:
    allowed = Prefetch("allowed_workspaces", queryset=WorkspaceDefinition.objects.filter(removed=False))
    return PromptDefinition.objects.filter(removed=False).prefetch_related(allowed)
