"""Prompts, permission profiles and workspaces, as configured and as pinned (behaviour 3)."""

from __future__ import annotations

from django.db import models

from sessions_app.models.fields import EncodedField, IdField


class CatalogState(models.Model):
    """Which catalog is in force; every process compares `version` once a second and follows."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    version = models.PositiveBigIntegerField(default=0)
    digest = models.CharField(max_length=64, blank=True)
    server_settings = EncodedField(default=b"{}")
    defaults = EncodedField(default=b"{}")
    """`catalog.Defaults`: what of the file is neither a row of its own nor a setting of the server."""
    entries = EncodedField(default=b"{}")
    """A digest of each entry of the file, by table and name, from which the next load tells what changed."""
    loaded_at = models.DateTimeField()
    error = models.TextField(blank=True)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="catalog_is_one_row")]

    def __str__(self) -> str:
        return f"catalog {self.version}"


class ProfileRevision(models.Model):
    """One state of a permission profile; sessions keep the one they were made with."""

    digest = models.CharField(max_length=64, primary_key=True)
    name = models.CharField(max_length=200, db_index=True)
    content = EncodedField()
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.name


class PromptRevision(models.Model):
    """A pinned, content-addressed prompt: the same sources always have the same id."""

    id = IdField(primary_key=True)
    manifest = EncodedField()
    """Relative path → hex SHA-256 of every captured source."""
    config = EncodedField()
    """Model and its parameters, as `chatmd` read them."""
    tools = EncodedField()
    """The tool declarations, as `chatmd` read them."""
    entries = EncodedField()
    """The initial messages: role, kind and payload of each."""
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.id


class WorkspaceDefinition(models.Model):
    """A configured workspace."""

    id = IdField(primary_key=True)
    name = models.CharField(max_length=200, unique=True)
    kind = models.CharField(max_length=16)
    path = models.TextField(blank=True)
    """Physical root as configured; or the managed root of temporary ones, if one is set."""
    temporary_location = models.CharField(max_length=16, blank=True)
    cleanup = models.CharField(max_length=24, blank=True)
    access = models.CharField(max_length=16)
    conflict_domain = models.TextField(blank=True)
    prompt_limits = EncodedField(default=b"[]")
    unavailable_reason = models.TextField(blank=True)
    from_file = models.BooleanField(default=False)
    removed = models.BooleanField(default=False)

    class Meta:
        indexes = [models.Index(fields=["removed", "id"], name="workspace_listing")]

    def __str__(self) -> str:
        return self.name


class PromptDefinition(models.Model):
    """A configured prompt and its current revision; broken and disabled ones stay listed."""

    id = IdField(primary_key=True)
    name = models.CharField(max_length=200, unique=True)
    description = models.TextField(blank=True)
    enabled = models.BooleanField(default=True)
    allowed_workspaces = models.ManyToManyField(WorkspaceDefinition, related_name="prompts")
    permission_profile = models.CharField(max_length=200)
    profile_revision = models.ForeignKey(
        ProfileRevision, null=True, on_delete=models.PROTECT, related_name="+"
    )
    """Null when no profile of that name is configured: creation is then `configuration_invalid`."""
    runtime_policy = models.TextField(blank=True)
    current_revision = models.ForeignKey(
        PromptRevision, null=True, on_delete=models.PROTECT, related_name="+"
    )
    revisions = models.ManyToManyField(PromptRevision, related_name="prompts")
    """Every revision that a catalog file has made current: what a session may be moved to (behaviour 9.4)."""
    unavailable_reason = models.TextField(blank=True)
    from_file = models.BooleanField(default=False)
    removed = models.BooleanField(default=False)

    class Meta:
        indexes = [models.Index(fields=["removed", "id"], name="prompt_listing")]

    def __str__(self) -> str:
        return self.name


class WorkspaceInstance(models.Model):
    """The folder one session works in: a physical root, or a temporary folder made for it."""

    id = IdField(primary_key=True)
    definition = models.ForeignKey(WorkspaceDefinition, on_delete=models.PROTECT, related_name="instances")
    path = models.TextField()
    conflict_domain = models.TextField()
    host = models.CharField(max_length=255)
    created_by_server = models.BooleanField(default=False)
    created_at = models.DateTimeField()
    removed_at = models.DateTimeField(null=True)
    """When it was given up; its host removes the folder, then the row."""

    class Meta:
        indexes = [
            models.Index(
                fields=["host"], name="workspace_given_up", condition=models.Q(removed_at__isnull=False)
            )
        ]

    def __str__(self) -> str:
        return self.id
