"""Exactly one outcome per idempotency key (behaviour 11)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from sessions_app.models.fields import IdField, OptionalEncodedField


class Receipt(models.Model):
    """The outcome of a keyed call. No foreign keys: a receipt outlives its session and its process."""

    principal_id = IdField()
    session_id = IdField(blank=True)
    """Empty for `session.create`."""
    method = models.CharField(max_length=64)
    key = models.CharField(max_length=256)
    digest = models.BinaryField(max_length=32)
    state = models.CharField(max_length=8)
    """`pending`, `success` or `refusal`."""
    outcome = OptionalEncodedField()
    process_id = IdField(blank=True)
    """Of a pending one: the process that works on it."""
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    """Null: protected, never pruned."""

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["principal_id", "session_id", "method", "key"], name="receipt_once"
            ),
            models.CheckConstraint(
                condition=Q(state="pending") | Q(outcome__isnull=False), name="receipt_settled_has_outcome"
            ),
        ]
        indexes = [
            models.Index(fields=["expires_at"], name="receipt_expiry", condition=Q(expires_at__isnull=False)),
            models.Index(fields=["process_id"], name="receipt_pending", condition=Q(state="pending")),
        ]

    def __str__(self) -> str:
        return f"{self.method} {self.state}"
