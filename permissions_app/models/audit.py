"""The audit log and the count of failed authentications (behaviour 15)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from sessions_app.models.fields import EncodedField, IdField

_CHAINED = Q(sequence__isnull=False)


class AuditRecord(models.Model):
    """One thing that was done or refused. No foreign keys: it outlives what it speaks of."""

    sequence = models.PositiveBigIntegerField(null=True, unique=True)
    """From 1, without gaps; null until chained."""
    digest = models.BinaryField(max_length=32, null=True)
    """SHA-256 over the digest before it and everything this record says; null until chained."""
    at = models.DateTimeField()
    level = models.CharField(max_length=8)
    name = models.CharField(max_length=100)
    session_id = IdField(blank=True)
    principal_id = IdField(blank=True)
    payload = EncodedField()

    class Meta:
        default_permissions = ("view",)
        constraints = [
            models.CheckConstraint(
                condition=Q(sequence=None, digest=None) | Q(sequence__isnull=False, digest__isnull=False),
                name="audit_chained_whole",
            ),
        ]
        # Partial, so that the insert inside a command's transaction does not maintain them. What waits for
        # the chain is found by the unique index, under null.
        indexes = [
            models.Index(fields=["session_id", "sequence"], name="audit_by_session", condition=_CHAINED),
            models.Index(fields=["level", "sequence"], name="audit_by_level", condition=_CHAINED),
            models.Index(fields=["name", "sequence"], name="audit_by_name", condition=_CHAINED),
            models.Index(fields=["principal_id", "sequence"], name="audit_by_principal", condition=_CHAINED),
        ]

    def __str__(self) -> str:
        return f"{self.sequence} {self.name}"


class AuditChain(models.Model):
    """The one row that says where the chain begins and ends; its lock makes one chainer."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    anchor_sequence = models.PositiveBigIntegerField(default=0)
    """The last record that retention cut away; 0: none."""
    anchor_digest = models.BinaryField(max_length=32, default=b"")
    head_sequence = models.PositiveBigIntegerField(default=0)
    head_digest = models.BinaryField(max_length=32, default=b"")

    class Meta:
        default_permissions = ()
        constraints = [models.CheckConstraint(condition=Q(id=1), name="audit_chain_is_one_row")]

    def __str__(self) -> str:
        return f"{self.anchor_sequence} to {self.head_sequence}"


class AuthFailure(models.Model):
    """Bad credentials of one source that no audit record tells yet: there is one record per source and
    minute.
    """

    source = models.CharField(max_length=255, primary_key=True)
    count = models.PositiveBigIntegerField(default=0)
    since = models.DateTimeField()
    """When the first of them came, or when the source was last recorded."""
    recorded = models.BooleanField(default=False)
    """A record was written at `since`: the next one may follow a minute later."""

    class Meta:
        default_permissions = ()
        indexes = [models.Index(fields=["since"], name="auth_failure_due")]

    def __str__(self) -> str:
        return self.source
