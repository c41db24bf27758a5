"""Operations and the calls they make (behaviour 6.4, 6.5)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from sessions_app.models.fields import IdField, OptionalEncodedField
from sessions_app.models.processes import Process
from sessions_app.models.sessions import Session

ENDED = ("completed", "failed", "cancelled", "interrupted")


class Operation(models.Model):
    """A turn or a compaction: at most one is active in a session."""

    id = IdField(primary_key=True)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="operations")
    generation = models.PositiveBigIntegerField()
    kind = models.CharField(max_length=12)
    reason = models.CharField(max_length=20, blank=True)
    state = models.CharField(max_length=12)
    error = OptionalEncodedField()
    interruption = models.CharField(max_length=40, blank=True)
    retryable = models.BooleanField(default=False)
    started_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    principal_id = IdField(blank=True)
    """Who started it; empty for the server itself."""
    origin = models.CharField(max_length=16, default="ochat")
    """`ochat`, `ocp`, `schedule`, `console` or `agent`: decides whether a question may wait (behaviour 7.1)."""

    process = models.ForeignKey(Process, null=True, on_delete=models.SET_NULL, related_name="operations")
    """The worker whose claim it is; null: unclaimed, parked or ended."""
    attempt = models.PositiveIntegerField(default=0)
    """Raised by every claim, so that a late result of an old one is known (behaviour 6.6)."""
    at_work = models.BooleanField(default=False)
    """Under its claim a model may have been asked or a tool started: nobody else can begin where the claim began."""
    given_back = models.PositiveSmallIntegerField(default=0)
    """How often a claim was lost before that, so that another worker took it."""
    parked = models.BooleanField(default=False)
    """Every call is done or waiting: nothing runs until an answer commits."""
    calls_made = models.PositiveIntegerField(default=0)
    """How many rows of `ToolCall` it has: an operation without any needs no look at them."""
    streamed = OptionalEncodedField()
    """`[StreamedItem]`: what the model said and no entry holds yet. Written outside the session's transactions, at most twice
    a second, by the worker that holds the claim."""
    live_sequence = models.PositiveBigIntegerField(default=0)
    """The last live sequence handed out by an earlier claim."""

    class Meta:
        indexes = [
            models.Index(
                fields=["updated_at"],
                name="operation_unclaimed",
                condition=Q(process=None, parked=False) & ~Q(state__in=ENDED),
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=~Q(state__in=ENDED) | Q(process=None), name="operation_ended_is_free"
            ),
            models.CheckConstraint(
                condition=Q(parked=False) | Q(process=None), name="operation_parked_is_free"
            ),
        ]

    def __str__(self) -> str:
        return self.id


class ToolCall(models.Model):
    """One call of an operation. `running` is committed before the tool starts; no call is ever started twice."""

    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="calls", db_index=False)
    operation = models.ForeignKey(Operation, on_delete=models.CASCADE, related_name="calls", db_index=False)
    position = models.PositiveIntegerField()
    call_id = models.TextField()
    name = models.TextField()
    kind = models.CharField(max_length=8)
    """`function` or `custom`."""
    arguments = models.TextField()
    state = models.CharField(max_length=8)
    """`proposed`, `waiting`, `running` or `done`."""
    approved = models.BooleanField(default=False)
    """A request about it was answered with yes: it starts without asking again."""
    started = OptionalEncodedField()
    """Its whole `tool.started` live event, shown in snapshots while it runs."""
    output = OptionalEncodedField()
    """The output item that goes, or went, into history."""
    committed = models.BooleanField(default=False)
    """The output is in history."""

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["operation", "position"], name="call_position_once"),
            models.CheckConstraint(
                condition=~Q(state="done") | Q(output__isnull=False), name="call_done_has_output"
            ),
        ]
        indexes = [models.Index(fields=["session"], name="call_running", condition=Q(state="running"))]

    def __str__(self) -> str:
        return f"{self.name} {self.state}"
