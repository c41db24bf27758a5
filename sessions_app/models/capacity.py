"""What running sessions hold, and the line of those that wait for it (behaviour 3.2, 3.3)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from sessions_app.models.fields import IdField
from sessions_app.models.sessions import Session


class CapacityLock(models.Model):
    """The one row whose lock lets one session after the other take capacity; giving it back needs no lock."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(id=1), name="capacity_lock_is_one_row")]

    def __str__(self) -> str:
        return "capacity"


class Claimed(models.Model):
    """What a session takes, whether it has it or waits for it."""

    principal_id = IdField(blank=True)
    """The creator, whose running sessions are counted; empty where nobody's are."""
    prompt_id = IdField()
    domain = models.CharField(max_length=64)
    """Hex SHA-256 of the conflict domain, which may be as long as a path."""
    exclusive = models.BooleanField()
    """Its lease on the domain shuts out every other; else it is shared."""

    class Meta:
        abstract = True


class HeldCapacity(Claimed):
    """The capacity of one session that is not stopped."""

    session = models.OneToOneField(Session, primary_key=True, on_delete=models.CASCADE, related_name="+")

    class Meta:
        indexes = [
            models.Index(fields=["domain", "prompt_id"], name="capacity_by_domain"),
            models.Index(fields=["principal_id"], name="capacity_by_principal"),
            models.Index(fields=["domain"], name="capacity_exclusive", condition=Q(exclusive=True)),
        ]

    def __str__(self) -> str:
        return self.session_id


class StartTicket(Claimed):
    """A session that was started and waits: `queued_for_slot`. Its id is its place in the line."""

    session = models.OneToOneField(Session, on_delete=models.CASCADE, related_name="+")
    blocked_on = models.CharField(max_length=12)
    """What it was last found to lack: a `capacity.Resource`, or `failed` when it had all and could not be loaded."""
    failures = models.PositiveIntegerField(default=0)
    retry_at = models.DateTimeField(null=True)
    """When one that could not be loaded is tried again."""

    class Meta:
        indexes = [
            models.Index(fields=["domain", "prompt_id", "id"], name="ticket_line"),
            models.Index(fields=["blocked_on", "principal_id"], name="ticket_blocked"),
        ]

    def __str__(self) -> str:
        return self.session_id
