"""Connections and attachments as rows, so that any process may serve any call (design 3, behaviour 5)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from sessions_app.models.fields import EncodedField, IdField
from sessions_app.models.processes import Process
from sessions_app.models.sessions import Session


class Connection(models.Model):
    """One client connection, whatever carries it."""

    id = IdField(primary_key=True)
    process = models.ForeignKey(Process, null=True, on_delete=models.SET_NULL, related_name="connections")
    """The process that holds its socket; null for a logical connection between requests."""
    transport = models.CharField(max_length=16)
    principal = EncodedField()
    """The whole `Principal` it is bound to."""
    initialized = models.BooleanField(default=False)
    successor = IdField(blank=True)
    """Of a logical connection: the event stream that waits for the present one to end (behaviour 1.4)."""
    closed_at = models.DateTimeField(null=True)
    """Set first when a logical connection ends: it takes no more calls, then its attachments go, then the row."""
    max_inbound_event_bytes = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField()
    last_active_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["last_active_at"], name="connection_idle", condition=Q(process=None))]

    def __str__(self) -> str:
        return self.id


class Attachment(models.Model):
    """One client's hold on one session; belongs to one connection (behaviour 5.1)."""

    id = IdField(primary_key=True)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="attachments")
    connection = models.ForeignKey(
        Connection, null=True, on_delete=models.SET_NULL, related_name="attachments"
    )
    """Null once an owner is disconnected and its lease is in grace."""
    process = models.ForeignKey(Process, null=True, on_delete=models.SET_NULL, related_name="attachments")
    principal_id = IdField()
    mode = models.CharField(max_length=16)
    hidden = models.BooleanField(default=False)
    """Held by an HTTP session stream, and named to no client."""
    live = models.BooleanField(default=True)
    """False once its session has dropped it while its connection still names it: an owner whose time was over."""
    answers = models.BooleanField(default=False)
    """Its principal may answer permission requests (behaviour 7.1)."""
    handed_sequence = models.PositiveBigIntegerField(null=True)
    """Of a logical connection: the last durable sequence given to its event stream (behaviour 1.4); null: it wants no events."""
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.id
