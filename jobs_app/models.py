"""Jobs and schedules of sessions (behaviour 10)."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from sessions_app.models import Process, Session
from sessions_app.models.fields import EncodedField, IdField, OptionalEncodedField

LIVE = ("queued", "running", "waiting_permission")
"""Job states from which something may still happen by itself."""


class Job(models.Model):
    """A piece of work beside the turn: its execution and, apart from it, its delivery (behaviour 10.1)."""

    id = IdField(primary_key=True)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="jobs", db_index=False)
    generation = models.PositiveBigIntegerField()
    operation_id = IdField(blank=True)
    """The operation it belongs to, for reviewer jobs that end with it."""
    kind = models.CharField(max_length=20)
    payload = EncodedField()
    status = models.CharField(max_length=20)
    waiting_on = IdField(blank=True)
    """The permission that `waiting_permission` names."""
    reason = models.TextField(blank=True)
    """Of an interrupted one."""
    error = OptionalEncodedField()
    retry_policy = EncodedField()
    attempt = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    next_run_at = models.DateTimeField(null=True)
    completed_at = models.DateTimeField(null=True)
    result = OptionalEncodedField()
    delivery = models.CharField(max_length=12, default="not_required")
    delivered_at = models.DateTimeField(null=True)
    process = models.ForeignKey(Process, null=True, on_delete=models.SET_NULL, related_name="jobs")

    class Meta:
        indexes = [
            models.Index(fields=["next_run_at", "created_at"], name="job_due", condition=Q(status="queued")),
            models.Index(fields=["session", "id"], name="job_listing"),
            models.Index(fields=["session", "status", "id"], name="job_by_status"),
            models.Index(fields=["session", "kind", "id"], name="job_by_kind"),
            models.Index(fields=["session", "-created_at"], name="job_newest"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status="running") | Q(process=None), name="job_only_running_is_held"
            )
        ]


class Schedule(models.Model):
    """One thing a session is to be told once, at a time (behaviour 10.2)."""

    id = IdField(primary_key=True)
    session = models.ForeignKey(Session, on_delete=models.CASCADE, related_name="schedules", db_index=False)
    generation = models.PositiveBigIntegerField()
    payload = EncodedField()
    created_at = models.DateTimeField()
    next_due_at = models.DateTimeField()
    misfire = models.CharField(max_length=28)
    status = models.CharField(max_length=12)
    error = OptionalEncodedField()
    delivery_count = models.PositiveIntegerField(default=0)
    last_delivery_at = models.DateTimeField(null=True)
    process = models.ForeignKey(Process, null=True, on_delete=models.SET_NULL, related_name="schedules")

    class Meta:
        indexes = [
            models.Index(fields=["next_due_at"], name="schedule_due", condition=Q(status="scheduled")),
            models.Index(fields=["session", "id"], name="schedule_listing"),
            models.Index(fields=["session", "status", "id"], name="schedule_by_status"),
            models.Index(fields=["session", "-created_at"], name="schedule_newest"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status="delivering") | Q(process=None), name="schedule_only_delivering_is_held"
            )
        ]
