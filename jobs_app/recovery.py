"""Ending what dead processes held (behaviour 14.4), and what a stopping one still holds (14.3).

Owns: which rows a process holds, and what becomes of each. Does not own: when (`jobs_app.sweep`, the shutdown of a process), or
the judgement that a process is dead (`sessions_app.processes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog

from jobs_app import schedules
from jobs_app.jobs import WORKER_LOST, end_job
from jobs_app.models import Job, Schedule
from sessions_app import clock, ledger, processes
from sessions_app.callers import system
from sessions_app.commands import attachments, logical, operations
from sessions_app.db import database_now
from sessions_app.errors import Refusal, SessionNotFound
from sessions_app.models import Attachment, Connection, Operation

log = structlog.get_logger(__name__)


def end_dead_processes() -> int:
    """End everything held by processes that no longer beat, then forget them; return how many there were."""
    dead = processes.expired()
    for process_id in dead:
        log.warning("process.lost", process=process_id)
        try:
            release(process_id, operations.WORKER_LOST)
        except Refusal as refusal:
            # One busy session keeps its process on the list, not the other processes'.
            log.warning("recovery.process_kept", process=process_id, code=refusal.code)
        if not _holds(process_id):
            processes.bury(process_id)
    return len(dead)


def take_over() -> None:
    """End everything that other processes held, and forget them: none lives, because this one has the store to itself."""
    for process_id in processes.others():
        release(process_id, operations.WORKER_LOST)
        processes.forget_other(process_id)


def leave(reason: str) -> None:
    """Give up everything that this process holds and take it off the list; for one that stops.

    While something could not be ended it stays on the list, where the others find it dead: taken off, it would leave behind
    operations that nobody holds, and another worker would ask the model again.
    """
    process_id = processes.current_id()
    release(process_id, reason)
    if not _holds(process_id):
        processes.leave()


def release(process_id: str, reason: str) -> None:
    """End everything that one process holds: operations, jobs, deliveries, attachments, connections.

    `reason` is what interrupted operations say: `worker_lost` or `server_shutdown`. Each thing is a transaction of its own, so
    running this twice, or in two processes, is harmless. Raises what the store refused for an attachment, at the end.
    """
    _end_each(
        Operation,
        process_id,
        lambda session_id, row: operations.interrupt(session_id, row, process_id, reason),
        in_archive={"process": None},
    )
    _end_each(
        Job,
        process_id,
        lambda session_id, row: _interrupt_job(session_id, row, process_id),
        in_archive={
            "process": None,
            "status": "interrupted",
            "reason": WORKER_LOST,
            "completed_at": database_now(),
        },
    )
    _end_each(
        Schedule,
        process_id,
        lambda session_id, row: _reschedule(session_id, row, process_id),
        in_archive={"process": None, "status": "scheduled"},
    )
    attachments.disconnect(_held(Attachment, process_id))
    held = Connection.objects.filter(process_id=process_id)
    # A logical connection outlives the process that streamed its events (behaviour 1.4).
    held.filter(transport=logical.TRANSPORT).update(process=None, last_active_at=clock.now())
    held.exclude(transport=logical.TRANSPORT).delete()


def _end_each(
    model: type[Operation | Job | Schedule],
    process_id: str,
    end: Callable[[str, str], None],
    *,
    in_archive: Mapping[str, Any],
) -> None:
    """End every row of a kind; one that cannot be changed just now, or is broken, does not keep the others.

    A session that is archived takes no events: there `in_archive` is what the row becomes, so that nothing is found running
    when the session is restored.
    """
    for session_id, row_id in _held(model, process_id):
        try:
            end(session_id, row_id)
        except SessionNotFound:
            model.objects.filter(id=row_id, process_id=process_id).update(**in_archive)
        except Refusal as refusal:
            log.warning("recovery.row_refused", session=session_id, code=refusal.code)
        except Exception:
            log.exception("recovery.row_failed", session=session_id)


def _holds(process_id: str) -> bool:
    """Tell whether a process still holds something: it is buried only when nothing would be forgotten with it."""
    return any(_held(model, process_id) for model in (Operation, Job, Schedule, Attachment))


def _held(model: type[Operation | Job | Schedule | Attachment], process_id: str) -> list[tuple[str, str]]:
    return list(model.objects.filter(process_id=process_id).values_list("session_id", "id"))


def _interrupt_job(session_id: str, job_id: str, process_id: str) -> None:
    """A job is never run again: whether it had effects is unknown (behaviour 10.1)."""
    with ledger.session_txn(session_id, system(operations.WORKER_LOST)) as txn:
        job = Job.objects.filter(id=job_id, process_id=process_id, status="running").first()
        if job is not None:
            end_job(txn, job, "interrupted", WORKER_LOST)


def _reschedule(session_id: str, schedule_id: str, process_id: str) -> None:
    with ledger.session_txn(session_id, system(operations.WORKER_LOST)) as txn:
        schedule = Schedule.objects.filter(id=schedule_id, process_id=process_id, status="delivering").first()
        if schedule is not None:
            schedules.move(txn, schedule, "scheduled")
