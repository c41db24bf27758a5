"""Permission requests, grants and deny rules of a session (behaviour 7)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from permissions_app.models.fields import WordsField
from sessions_app.models import Operation, Session, ToolCall
from sessions_app.models.fields import IdField

_DUE = Q(state="pending", expires_at__isnull=False)


class PermissionRequest(models.Model):
    """One question whether a tool call may run. Open, it is a row and nothing else waits for it."""

    id = IdField(primary_key=True)
    session = models.ForeignKey(
        Session, on_delete=models.CASCADE, related_name="permission_requests", db_index=False
    )
    generation = models.PositiveBigIntegerField()
    """The session's generation when it was asked: an answer must name it."""
    operation = models.ForeignKey(Operation, on_delete=models.CASCADE, related_name="permission_requests")
    tool_call = models.OneToOneField(ToolCall, on_delete=models.CASCADE, related_name="permission_request")
    """A call is asked about once."""
    call_id = models.TextField()
    """As the model named the call."""
    tool_name = models.TextField()
    runtime_identity = models.CharField(max_length=64)
    """The digest of the exact call (`grants.Digests`)."""
    rationale = models.TextField(blank=True)
    tier = models.CharField(max_length=12)
    choices = WordsField()
    fallback = models.CharField(max_length=8)
    """What expiry means: `allow` or `deny`, decided when it was asked."""
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    """Null: it waits for ever."""

    state = models.CharField(max_length=12, default="pending")
    choice = models.CharField(max_length=20, blank=True)
    resolved_by = IdField(blank=True)
    """The principal that answered; empty where none did."""
    resolved_at = models.DateTimeField(null=True)
    reason = models.TextField(blank=True)

    class Meta:
        default_permissions = ("view",)
        constraints = [
            models.CheckConstraint(
                condition=Q(state="pending", choice="", resolved_at=None)
                | ~Q(state="pending") & ~Q(choice="") & Q(resolved_at__isnull=False),
                name="request_resolved_or_pending",
            ),
        ]
        indexes = [
            models.Index(fields=["session", "id"], name="request_listing"),
            models.Index(fields=["session", "state", "id"], name="request_by_state"),
            models.Index(fields=["session", "created_at"], name="request_newest"),
            models.Index(
                fields=["session", "created_at", "id"], name="request_pending", condition=Q(state="pending")
            ),
            models.Index(fields=["expires_at"], name="request_due", condition=_DUE),
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} {self.state}"


class Grant(models.Model):
    """A remembered yes: calls that match it run without asking."""

    id = IdField(primary_key=True)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="grants", db_index=False)
    principal_id = IdField()
    """Who answered."""
    tool_name = models.TextField()
    identity_digest = models.CharField(max_length=64)
    scope = models.CharField(max_length=16)
    state = models.CharField(max_length=8, default="active")
    created_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)
    revocation_reason = models.TextField(blank=True)

    class Meta:
        default_permissions = ("view",)
        constraints = [
            models.CheckConstraint(
                condition=Q(state="active", revoked_at=None) | Q(state="revoked", revoked_at__isnull=False),
                name="grant_revoked_has_time",
            ),
        ]
        indexes = [
            models.Index(fields=["session", "id"], name="grant_listing"),
            models.Index(fields=["principal_id", "id"], name="grant_by_principal"),
            models.Index(fields=["state", "id"], name="grant_by_state"),
            models.Index(fields=["session", "created_at"], name="grant_newest"),
            models.Index(
                fields=["session", "created_at", "id"], name="grant_active", condition=Q(state="active")
            ),
            models.Index(
                fields=["session", "identity_digest"], name="grant_match", condition=Q(state="active")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tool_name} {self.scope} {self.state}"


class DenyRule(models.Model):
    """A remembered no (behaviour 7.4): refuses every call of the session whose shapes include all of its
    own.
    """

    id = IdField(primary_key=True)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="deny_rules", db_index=False)
    principal_id = IdField()
    tool_name = models.TextField()
    shapes = WordsField()
    created_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ("view",)
        indexes = [
            models.Index(
                fields=["session", "created_at"], name="deny_rule_active", condition=Q(revoked_at=None)
            ),
        ]

    def __str__(self) -> str:
        return self.tool_name
