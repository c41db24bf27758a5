"""Jobs and schedules (behaviour 10)."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from sessions_app.records.base import (
    Error,
    IdempotencyKey,
    Int62NonNeg,
    Int62Pos,
    JobId,
    PermissionId,
    ScheduleId,
    SessionId,
    Timestamp,
)
from sessions_app.records.enums import JobKind, ScheduleMisfire


class JobStatusQueued(Struct, frozen=True, kw_only=True, tag_field="type", tag="queued"):
    """Waiting for a worker, or for its next attempt."""


class JobStatusRunning(Struct, frozen=True, kw_only=True, tag_field="type", tag="running"):
    """Claimed by a worker."""


class JobStatusWaitingPermission(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="waiting_permission"
):
    """Waiting for a person."""

    permission_id: PermissionId


class JobStatusSucceeded(Struct, frozen=True, kw_only=True, tag_field="type", tag="succeeded"):
    """Ended with a result."""


class JobStatusFailed(Struct, frozen=True, kw_only=True, tag_field="type", tag="failed"):
    """Ended with an error."""

    error: Error


class JobStatusCancelled(Struct, frozen=True, kw_only=True, tag_field="type", tag="cancelled"):
    """Ended because somebody said so."""


class JobStatusInterrupted(Struct, frozen=True, kw_only=True, tag_field="type", tag="interrupted"):
    """Ended because its process is gone."""

    reason: str


JobStatus = (
    JobStatusQueued
    | JobStatusRunning
    | JobStatusWaitingPermission
    | JobStatusSucceeded
    | JobStatusFailed
    | JobStatusCancelled
    | JobStatusInterrupted
)


class RetryPolicyNever(Struct, frozen=True, kw_only=True, tag_field="type", tag="never"):
    """One attempt."""


class RetryPolicySafeRetry(Struct, frozen=True, kw_only=True, tag_field="type", tag="safe_retry"):
    """More attempts, for work without outside effects."""

    max_attempts: Int62Pos
    backoff_ms: Int62NonNeg


class RetryPolicyIdempotent(Struct, frozen=True, kw_only=True, tag_field="type", tag="idempotent"):
    """More attempts, under one key that the other side knows."""

    key: IdempotencyKey
    max_attempts: Int62Pos
    backoff_ms: Int62NonNeg


RetryPolicy = RetryPolicyNever | RetryPolicySafeRetry | RetryPolicyIdempotent


class JobDeliveryNotRequired(Struct, frozen=True, kw_only=True, tag_field="type", tag="not_required"):
    """Nobody waits for the result."""


class JobDeliveryPending(Struct, frozen=True, kw_only=True, tag_field="type", tag="pending"):
    """The session has not been given the result yet."""


class JobDeliveryDelivered(Struct, frozen=True, kw_only=True, tag_field="type", tag="delivered"):
    """The session has been given the result."""

    delivered_at: Timestamp


JobDelivery = JobDeliveryNotRequired | JobDeliveryPending | JobDeliveryDelivered


class Job(Struct, frozen=True, kw_only=True):
    """A piece of work beside the turn; `payload` and `result` are free JSON."""

    id: JobId
    session_id: SessionId
    generation: Int62NonNeg
    kind: JobKind
    payload: Raw
    status: JobStatus
    retry_policy: RetryPolicy
    attempt: Int62NonNeg
    created_at: Timestamp
    started_at: Timestamp | UnsetType = UNSET
    next_run_at: Timestamp | UnsetType = UNSET
    completed_at: Timestamp | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    delivery: JobDelivery


class ScheduleStatusScheduled(Struct, frozen=True, kw_only=True, tag_field="type", tag="scheduled"):
    """Waiting for its time."""


class ScheduleStatusDelivering(Struct, frozen=True, kw_only=True, tag_field="type", tag="delivering"):
    """Due, and being handed to the session."""


class ScheduleStatusDelivered(Struct, frozen=True, kw_only=True, tag_field="type", tag="delivered"):
    """Done."""


class ScheduleStatusCancelled(Struct, frozen=True, kw_only=True, tag_field="type", tag="cancelled"):
    """Withdrawn."""


class ScheduleStatusFailed(Struct, frozen=True, kw_only=True, tag_field="type", tag="failed"):
    """Given up."""

    error: Error


ScheduleStatus = (
    ScheduleStatusScheduled
    | ScheduleStatusDelivering
    | ScheduleStatusDelivered
    | ScheduleStatusCancelled
    | ScheduleStatusFailed
)


class ScheduleDueAt(Struct, frozen=True, kw_only=True, tag_field="type", tag="at"):
    """At a point in time."""

    timestamp: Timestamp


class ScheduleDueAfterMs(Struct, frozen=True, kw_only=True, tag_field="type", tag="after_ms"):
    """A number of milliseconds from now."""

    delay_ms: Int62NonNeg


ScheduleDue = ScheduleDueAt | ScheduleDueAfterMs


class Schedule(Struct, frozen=True, kw_only=True):
    """Something the session is to be told at a time; `payload` is free JSON."""

    id: ScheduleId
    session_id: SessionId
    generation: Int62NonNeg
    payload: Raw
    created_at: Timestamp
    next_due_at: Timestamp
    misfire: ScheduleMisfire
    status: ScheduleStatus
    delivery_count: Int62NonNeg
    last_delivery_at: Timestamp | UnsetType = UNSET
