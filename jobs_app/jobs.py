"""Jobs: their records and lists, cancelling, and what ends them with a session or an operation (behaviour 10.1).

Owns: the job's row as a record, reading and cancelling jobs, and what an ending operation or a lost worker leaves of one. Does not
own: running one, deciding that a process is lost (`jobs_app.sweep`), or whether a reader may see the session (`permissions_app`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import msgspec
from django.db.models import QuerySet
from msgspec import UNSET, Raw

from jobs_app.models import LIVE, Job
from sessions_app import ledger, limits, records
from sessions_app.clock import wire_time
from sessions_app.errors import InvalidRequest
from sessions_app.participants import Participant, SnapshotPart
from sessions_app.rows import Select
from sessions_app.summaries import error_record

if TYPE_CHECKING:
    from sessions_app.ledger import Txn
    from sessions_app.models import Operation, Session
    from sessions_app.participants import OperationOutcome
    from sessions_app.receipts import Call
    from sessions_app.records import JobKind, StopMode
    from sessions_app.views import View

WORKER_LOST = "The worker that ran the job was lost."
OPERATION_ENDED = "The operation that the job belonged to ended."

_STATUS: Mapping[str, Callable[[Job], records.JobStatus]] = MappingProxyType(
    {
        "queued": lambda _: records.JobStatusQueued(),
        "running": lambda _: records.JobStatusRunning(),
        "waiting_permission": lambda job: records.JobStatusWaitingPermission(permission_id=job.waiting_on),
        "succeeded": lambda _: records.JobStatusSucceeded(),
        "failed": lambda job: records.JobStatusFailed(error=error_record(job.error)),
        "cancelled": lambda _: records.JobStatusCancelled(),
        "interrupted": lambda job: records.JobStatusInterrupted(reason=job.reason),
    }
)


def job_record(job: Job) -> records.Job:
    """Return a job as the protocol shows it."""
    return records.Job(
        id=job.id,
        session_id=job.session_id,
        generation=job.generation,
        kind=cast("records.JobKind", job.kind),
        payload=Raw(job.payload),
        status=_STATUS[job.status](job),
        retry_policy=msgspec.json.decode(job.retry_policy, type=records.RetryPolicy),
        attempt=job.attempt,
        created_at=wire_time(job.created_at),
        started_at=wire_time(job.started_at) if job.started_at else UNSET,
        next_run_at=wire_time(job.next_run_at) if job.next_run_at else UNSET,
        completed_at=wire_time(job.completed_at) if job.completed_at else UNSET,
        result=UNSET if job.result is None else Raw(job.result),
        delivery=_delivery(job),
    )


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """A job after somebody cancelled it, as the mutation left the session."""

    job: records.Job
    revision: int
    latest_event_sequence: int


def cancel_job(call: Call, session_id: str, job_id: str) -> Cancelled:
    """Cancel a job: `job.state_changed`. One that ended otherwise is returned unchanged.

    An interrupted one has ended, too, and is only named otherwise, until its end was delivered (behaviour 10.1). Raises, beside
    what `ledger.command` raises, InvalidRequest for an unknown job.
    """

    def body(txn: Txn) -> Cancelled:
        job = _job(txn.session, job_id)
        undelivered = job.status == "interrupted" and job.delivery != "delivered"
        if job.status in LIVE or undelivered:
            end_job(txn, job, "cancelled")
        return Cancelled(
            job=job_record(job),
            revision=txn.session.revision,
            latest_event_sequence=txn.session.latest_sequence,
        )

    return ledger.command(call, session_id, Cancelled, body)


def get_job(session: Session, job_id: str) -> records.Job:
    """Return one job. Raises InvalidRequest for an unknown one."""
    return job_record(_job(session, job_id))


def list_jobs(
    session: Session, *, status: str | None = None, kind: JobKind | None = None, after: str = "", limit: int
) -> list[records.Job]:
    """Return the jobs of a session behind id `after`: one more than `limit` when there are more.

    `status` is any text; one that names no status matches nothing.
    """
    if status is not None and status not in _STATUS:
        return []
    wanted = Job.objects.filter(session=session, pk__gt=after).order_by("pk")
    if status is not None:
        wanted = wanted.filter(status=status)
    if kind is not None:
        wanted = wanted.filter(kind=kind)
    return [job_record(row) for row in wanted[: limit + 1]]


def _job(session: Session, job_id: str) -> Job:
    job = Job.objects.filter(session=session, pk=job_id).first()
    if job is None:
        raise InvalidRequest("no such job in this session")
    return job


def end_job(txn: Txn, job: Job, status: str, reason: str = "") -> None:
    """Move a job to `cancelled` or `interrupted` and emit `job.state_changed`."""
    job.status = status
    job.reason = reason
    job.completed_at = job.completed_at or txn.now
    job.next_run_at = None
    job.process = None
    job.save(update_fields=["status", "reason", "completed_at", "next_run_at", "process"])
    txn.emit("job.state_changed", job_record(job))


class JobParticipant(Participant):
    """The jobs' part in the transactions of a session."""

    def on_operation_end(self, txn: Txn, operation: Operation, outcome: OperationOutcome) -> None:
        """End the reviewer jobs of the operation: running ones interrupted, queued ones cancelled (behaviour 6.5)."""
        if not operation.calls_made:
            return
        for job in _oldest_first(txn.session).filter(operation_id=operation.id, status__in=LIVE):
            if job.status == "running":
                end_job(txn, job, "interrupted", OPERATION_ENDED)
            else:
                end_job(txn, job, "cancelled")

    def on_stop(self, txn: Txn, mode: StopMode) -> None:
        """Cancel every unfinished job when the stop cancels; a graceful one leaves them alone (behaviour 4.5)."""
        if mode == "cancel":
            for job in _oldest_first(txn.session).filter(status__in=LIVE):
                end_job(txn, job, "cancelled")

    def on_reset(self, txn: Txn, *, keep_grants: bool) -> None:
        """Drop the session's jobs."""
        Job.objects.filter(session=txn.session).delete()

    def snapshot_part(self, session: Session, view: View) -> SnapshotPart:
        """Return the jobs, for readers with session.message.send."""
        return SnapshotPart(jobs=tuple(map(job_record, newest(session))) if view.message_send else ())


def newest(session: Session) -> list[Job]:
    """Return the jobs a snapshot shows: unfinished ones first, newest first, at most 256 (behaviour 8.8)."""
    # What goes beyond the bytes that all lists share is cut where they are put together (`queries.snapshot`).
    most, room = limits.MAX_SNAPSHOT_ITEMS, limits.MAX_SNAPSHOT_LIST_BYTES
    live = _NEWEST_LIVE.within(session.id, *LIVE, at_most=most, max_bytes=room)
    return live + _NEWEST_OVER.within(session.id, *LIVE, at_most=most - len(live), max_bytes=room)


_NEWEST_FIRST = "created_at DESC, id DESC"
_NEWEST_LIVE = Select(Job, "session_id = %s AND status IN (%s, %s, %s)", order=_NEWEST_FIRST, heavy="payload")
_NEWEST_OVER = Select(
    Job, "session_id = %s AND status NOT IN (%s, %s, %s)", order=_NEWEST_FIRST, heavy="payload"
)


def _oldest_first(session: Session) -> QuerySet[Job]:
    return Job.objects.filter(session=session).order_by("created_at", "id")


def _delivery(job: Job) -> records.JobDelivery:
    if job.delivery == "delivered" and job.delivered_at is not None:
        return records.JobDeliveryDelivered(delivered_at=wire_time(job.delivered_at))
    return records.JobDeliveryPending() if job.delivery == "pending" else records.JobDeliveryNotRequired()
