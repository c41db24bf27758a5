"""The stock admin over sessions: each operator sees those that are theirs to see (design 7, behaviour 2.6).

Owns: which rows and columns are shown. Does not own: who sees which session (`permissions_app.scopes`). Nothing is edited
here: what changes a session is a command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin

from permissions_app.scopes import operator
from sessions_app.admin import ReadOnlyAdmin
from sessions_app.models import Operation, Session

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

admin.site.site_header = admin.site.site_title = "Ochat"
admin.site.index_title = "Console"


def _visible(request: HttpRequest) -> QuerySet[Session]:
    """Return the sessions that the person who is logged in may see: being a superuser shows nothing by itself."""
    assert request.user.is_authenticated  # noqa: S101 - the admin lets nobody else in
    return operator(request.user).visible.restrict(Session.objects.all())


@admin.register(Session)
class SessionAdmin(ReadOnlyAdmin):
    """Sessions: their state, not their history."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the visible ones."""
        return _visible(request)

    list_display = [
        "id",
        "creator",
        "prompt",
        "workspace",
        "desired",
        "observed",
        "updated_at",
    ]
    list_filter = ["desired", "observed"]
    search_fields = ["id", "creator"]
    list_select_related = ["prompt", "workspace"]
    ordering = ["-updated_at"]
    show_full_result_count = False
    fields = [
        "id",
        "creator",
        "created_at",
        "updated_at",
        "liveness",
        "transient",
        "prompt",
        "prompt_revision",
        "profile",
        "workspace",
        "workspace_instance",
        "desired",
        "observed",
        "active_operation",
        "waiting_on",
        "halted",
        "generation",
        "revision",
        "latest_sequence",
        "oldest_sequence",
        "deferred_count",
        "owner_attachment",
        "owner_principal",
        "lease_expires_at",
        "lease_grace_until",
    ]


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin):
    """Turns and compactions."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return those of visible sessions."""
        return Operation.objects.filter(session__in=_visible(request))

    list_display = ["id", "session", "kind", "state", "parked", "process", "started_at", "updated_at"]
    list_filter = ["kind", "state", "parked"]
    search_fields = ["id", "session__id"]
    list_select_related = ["session", "process"]
    ordering = ["-started_at"]
    show_full_result_count = False
    fields = [
        "id",
        "session",
        "generation",
        "kind",
        "reason",
        "state",
        "interruption",
        "retryable",
        "principal_id",
        "origin",
        "process",
        "attempt",
        "parked",
        "calls_made",
        "started_at",
        "updated_at",
    ]
