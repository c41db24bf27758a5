"""The stock admin over sessions: each operator sees those that are theirs to see (design 7, behaviour 2.6).

Owns: which rows and columns are shown, and bringing archived sessions back. Does not own: who sees which session
(`permissions_app.scopes`). Nothing is edited here: what changes a session is a command.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages

from jobs_app.models import Job, Schedule
from permissions_app.admin import OfVisibleSessions, visible_sessions
from permissions_app.scopes import ADMIN, operator
from sessions_app.admin import ReadOnlyAdmin
from sessions_app.callers import EVERYTHING
from sessions_app.commands import deletion
from sessions_app.errors import Refusal
from sessions_app.models import (
    Archive,
    ArchivedSession,
    Attachment,
    Blob,
    Operation,
    Session,
    StartTicket,
)
from sessions_app.receipts import Call

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

    from sessions_app.callers import Caller

admin.site.site_header = admin.site.site_title = "Ochat"
admin.site.index_title = "Console"


def _operator(request: HttpRequest) -> Caller:
    assert request.user.is_authenticated  # noqa: S101 - the admin lets nobody else in
    return operator(request.user)


@admin.register(Session)
class SessionAdmin(ReadOnlyAdmin):
    """Sessions: their state, not their history."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the visible ones."""
        return visible_sessions(request)

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


@admin.register(ArchivedSession)
class ArchivedSessionAdmin(ReadOnlyAdmin):
    """Deleted sessions that are kept, for those who see every session; nobody else sees any (behaviour 9.5)."""

    list_display = ["id", "creator", "prompt", "workspace", "archived_at"]
    search_fields = ["id", "creator"]
    list_select_related = ["prompt", "workspace"]
    ordering = ["-archived_at"]
    show_full_result_count = False
    fields = ["id", "creator", "created_at", "archived_at", "prompt", "workspace", "generation", "revision"]
    actions = ["restore"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return what may be brought back, to whom may do that."""
        if ADMIN not in _operator(request).scopes:
            return ArchivedSession.objects.none()
        return ArchivedSession.objects.filter(archived_at__isnull=False, removed=False)

    @admin.action(description="Restore selected sessions")
    def restore(self, request: HttpRequest, queryset: QuerySet[ArchivedSession]) -> None:
        """Bring the chosen sessions back, and say of each that could not be why."""
        by = replace(_operator(request), visible=EVERYTHING)
        for session in queryset:
            try:
                deletion.restore_session(Call(caller=by, method="operator.restore"), session.id)
            except Refusal as refusal:
                self.message_user(request, f"{session.id}: {refusal.message}.", messages.WARNING)
            else:
                self.message_user(request, f"{session.id} is restored, stopped.", messages.SUCCESS)


@admin.register(Operation)
class OperationAdmin(OfVisibleSessions):
    """Turns and compactions."""

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


@admin.register(Job)
class JobAdmin(OfVisibleSessions):
    """Jobs: how far they are, not what they say."""

    needs = "session.message.send"
    list_display = ["id", "session", "kind", "status", "delivery", "attempt", "process", "created_at"]
    list_filter = ["kind", "status", "delivery"]
    search_fields = ["id", "session__id"]
    list_select_related = ["session", "process"]
    ordering = ["-created_at"]
    show_full_result_count = False
    fields = [
        "id",
        "session",
        "generation",
        "operation_id",
        "kind",
        "status",
        "waiting_on",
        "reason",
        "attempt",
        "created_at",
        "started_at",
        "next_run_at",
        "completed_at",
        "delivery",
        "delivered_at",
        "process",
    ]


@admin.register(Schedule)
class ScheduleAdmin(OfVisibleSessions):
    """Schedules: when they are due, not what they say."""

    needs = "session.message.send"
    list_display = ["id", "session", "status", "next_due_at", "misfire", "delivery_count", "created_at"]
    list_filter = ["status", "misfire"]
    search_fields = ["id", "session__id"]
    list_select_related = ["session"]
    ordering = ["-created_at"]
    show_full_result_count = False
    fields = [
        "id",
        "session",
        "generation",
        "status",
        "created_at",
        "next_due_at",
        "misfire",
        "delivery_count",
        "last_delivery_at",
        "process",
    ]


@admin.register(StartTicket)
class StartTicketAdmin(OfVisibleSessions):
    """The sessions that wait to start, first come first, and what each lacks."""

    list_display = ["session", "id", "blocked_on", "principal_id", "prompt_id", "failures", "retry_at"]
    list_filter = ["blocked_on"]
    search_fields = ["session__id", "principal_id", "prompt_id"]
    ordering = ["id"]


@admin.register(Attachment)
class AttachmentAdmin(OfVisibleSessions):
    """Who is attached to which session, and by which process they are served."""

    list_display = ["id", "session", "mode", "principal_id", "connection", "process", "hidden", "created_at"]
    list_filter = ["mode", "hidden", "live"]
    search_fields = ["id", "session__id", "principal_id", "connection__id"]
    list_select_related = ["session", "connection", "process"]
    ordering = ["-created_at"]


@admin.register(Archive)
class ArchiveAdmin(OfVisibleSessions):
    """Histories as they stood before they were replaced: which there are, never their text."""

    needs = "session.transcript.read"
    list_display = ["session", "revision", "size", "created_at"]
    search_fields = ["session__id"]
    ordering = ["-created_at"]
    fields = ["session", "revision", "name", "sha256", "size", "created_at"]


@admin.register(Blob)
class BlobAdmin(OfVisibleSessions):
    """Content of sessions: which there is, never the bytes. Uploads that no message has taken are in no session."""

    needs = "session.transcript.read"
    list_display = ["id", "session", "kind", "media_type", "byte_length", "creator", "created_at"]
    list_filter = ["kind", "allowed_use"]
    search_fields = ["id", "session__id", "creator", "sha256"]
    ordering = ["-created_at"]
    fields = [
        "id",
        "session",
        "creator",
        "kind",
        "media_type",
        "byte_length",
        "sha256",
        "display_name",
        "allowed_use",
        "created_at",
    ]
