"""The store itself, the processes that serve it, and the lease of the sweep."""

from __future__ import annotations

from django.db import models

from sessions_app.models.fields import IdField


class Store(models.Model):
    """The one row that says which store this is."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    server_id = IdField()
    created_at = models.DateTimeField()
    purged_before = models.DateTimeField(null=True)
    probed_at = models.DateTimeField(null=True)
    """Written to find out whether writing works (behaviour 14.1)."""

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="store_is_one_row")]

    def __str__(self) -> str:
        return self.server_id


class Process(models.Model):
    """A `serve`, `worker` or local host process; what it holds ends when its beat is old (behaviour 14.4)."""

    id = IdField(primary_key=True)
    kind = models.CharField(max_length=16)
    host = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField(db_index=True)
    draining = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.pid} on {self.host}"


class SweepLease(models.Model):
    """Which process acts in the sweep loop, and since when due times have been covered without a gap (behaviour 10.2, 14.2)."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    process_id = IdField(blank=True)
    expires_at = models.DateTimeField()
    covered_since = models.DateTimeField()

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="sweep_lease_is_one_row")]

    def __str__(self) -> str:
        return self.process_id
