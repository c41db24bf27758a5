"""The stock admin over the catalog, the processes and what they hold: shown, not edited (design 7).

Owns: which rows and columns are shown, and that entries of the catalog file say so. Does not own: sessions, which not every
operator may see (`ochat_site.admin`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from django.contrib import admin

from sessions_app.models import (
    CatalogState,
    Connection,
    LooseContent,
    Process,
    ProfileRevision,
    PromptDefinition,
    PromptRevision,
    WorkspaceDefinition,
    WorkspaceInstance,
)
from sessions_app.records import Principal

if TYPE_CHECKING:
    from django.db.models import Model
    from django.http import HttpRequest


class ReadOnlyAdmin(admin.ModelAdmin["Model"]):
    """Shows rows that only commands change."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nothing is added by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nothing is edited by hand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nothing is deleted by hand."""
        return False


class CatalogEntryAdmin(ReadOnlyAdmin):
    """An entry of the catalog, and where it is configured."""

    list_filter = ["from_file", "removed"]
    search_fields = ["id", "name"]
    ordering = ["name"]

    @admin.display(description="configured in", ordering="from_file")
    def configured_in(self, entry: PromptDefinition | WorkspaceDefinition) -> str:
        """Return where a change of this entry is made."""
        return "the catalog file" if entry.from_file else "the admin"

    @admin.display(description="available", boolean=True)
    def available(self, entry: PromptDefinition | WorkspaceDefinition) -> bool:
        """Tell whether new sessions may use it."""
        return not entry.removed and not entry.unavailable_reason


@admin.register(PromptDefinition)
class PromptAdmin(CatalogEntryAdmin):
    """Prompts, broken and removed ones too."""

    list_display = ["name", "description", "enabled", "available", "permission_profile", "configured_in"]
    list_filter = ["from_file", "enabled", "removed"]
    fields = [
        "id",
        "name",
        "configured_in",
        "description",
        "enabled",
        "removed",
        "unavailable_reason",
        "allowed_workspaces",
        "permission_profile",
        "profile_revision",
        "current_revision",
        "runtime_policy",
    ]


@admin.register(WorkspaceDefinition)
class WorkspaceAdmin(CatalogEntryAdmin):
    """Workspaces, missing and removed ones too."""

    list_display = ["name", "kind", "path", "access", "available", "configured_in"]
    list_filter = ["from_file", "kind", "access", "removed"]
    fields = [
        "id",
        "name",
        "configured_in",
        "kind",
        "path",
        "temporary_location",
        "cleanup",
        "access",
        "conflict_domain",
        "limits",
        "removed",
        "unavailable_reason",
    ]

    @admin.display(description="prompt limits")
    def limits(self, workspace: WorkspaceDefinition) -> str:
        """Return the limits as text."""
        return workspace.prompt_limits.decode()


@admin.register(ProfileRevision)
class ProfileRevisionAdmin(ReadOnlyAdmin):
    """Every state of a permission profile that a session may hold."""

    list_display = ["name", "digest", "created_at"]
    search_fields = ["name", "digest"]
    ordering = ["name", "-created_at"]
    fields = ["name", "digest", "created_at", "said"]

    @admin.display(description="content")
    def said(self, profile: ProfileRevision) -> str:
        """Return the content as text."""
        return profile.content.decode()


@admin.register(PromptRevision)
class PromptRevisionAdmin(ReadOnlyAdmin):
    """Pinned prompts: of which sources, never their text."""

    list_display = ["id", "created_at"]
    search_fields = ["id"]
    ordering = ["-created_at"]
    fields = ["id", "created_at", "sources", "parameters"]

    @admin.display(description="sources")
    def sources(self, revision: PromptRevision) -> str:
        """Return paths and digests as text."""
        return revision.manifest.decode()

    @admin.display(description="model")
    def parameters(self, revision: PromptRevision) -> str:
        """Return model and parameters as text."""
        return revision.config.decode()


@admin.register(CatalogState)
class CatalogStateAdmin(ReadOnlyAdmin):
    """Which catalog is in force, and why the file may not be."""

    list_display = ["version", "loaded_at", "error"]
    fields = ["version", "loaded_at", "error", "said", "settings"]

    @admin.display(description="defaults")
    def said(self, state: CatalogState) -> str:
        """Return the defaults as text."""
        return state.defaults.decode()

    @admin.display(description="[server]")
    def settings(self, state: CatalogState) -> str:
        """Return the server's settings as text."""
        return state.server_settings.decode()


@admin.register(Process)
class ProcessAdmin(ReadOnlyAdmin):
    """The processes that serve this store."""

    list_display = ["id", "kind", "host", "pid", "started_at", "beat_at", "draining"]
    list_filter = ["kind", "draining"]
    ordering = ["kind", "started_at"]


@admin.register(Connection)
class ConnectionAdmin(ReadOnlyAdmin):
    """Open connections: those of sockets, and those of HTTP, which a process holds only while it streams their events."""

    list_display = ["id", "transport", "who", "process", "initialized", "last_active_at", "closed_at"]
    list_filter = ["transport", "initialized"]
    list_select_related = ["process"]
    search_fields = ["id"]
    ordering = ["-last_active_at"]
    fields = [
        "id",
        "transport",
        "who",
        "process",
        "initialized",
        "max_inbound_event_bytes",
        "created_at",
        "last_active_at",
        "closed_at",
    ]

    @admin.display(description="principal")
    def who(self, connection: Connection) -> str:
        """Return the principal that it is bound to."""
        return msgspec.json.decode(bytes(connection.principal), type=Principal).id


@admin.register(WorkspaceInstance)
class WorkspaceInstanceAdmin(ReadOnlyAdmin):
    """The folders that sessions work in; those that were given up wait for their machine to remove them."""

    list_display = ["id", "definition", "path", "host", "created_by_server", "created_at", "removed_at"]
    list_filter = ["created_by_server", "host"]
    list_select_related = ["definition"]
    search_fields = ["id", "path", "conflict_domain"]
    ordering = ["-created_at"]


@admin.register(LooseContent)
class LooseContentAdmin(ReadOnlyAdmin):
    """Content that the storage keeps for a while though perhaps no row refers to it."""

    list_display = ["digest", "since"]
    search_fields = ["digest"]
    ordering = ["since"]
