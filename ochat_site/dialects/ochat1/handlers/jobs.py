"""`job.*` and `schedule.*`: work beside the turn, and what a session is to be told at a time (behaviour 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs_app import jobs, schedules
from ochat_site.dialects.ochat1.handlers.pages import given, page_of
from ochat_site.dialects.ochat1.types import JobCancelResult, ScheduleMutationResult
from permissions_app.scopes import access_session

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import (
        JobCancelParams,
        JobGetParams,
        JobListParams,
        Page,
        ScheduleCancelParams,
        ScheduleCreateParams,
        ScheduleGetParams,
        ScheduleListParams,
    )
    from ochat_site.rpc.context import Context
    from sessions_app.records import Job, Schedule


def job_list(context: Context, params: JobListParams) -> Page[Job]:
    """Return a page of the jobs of a session."""
    session = access_session(context.caller, params.session_id)

    def read(after: str, limit: int) -> list[Job]:
        return jobs.list_jobs(
            session, status=given(params.status), kind=given(params.kind), after=after, limit=limit
        )

    return page_of(context, params, read)


def job_get(context: Context, params: JobGetParams) -> Job:
    """Return one job."""
    return jobs.get_job(access_session(context.caller, params.session_id), params.job_id)


def job_cancel(context: Context, params: JobCancelParams) -> JobCancelResult:
    """Cancel a job; one that has ended is returned as it is."""
    cancelled = jobs.cancel_job(context.call, params.session_id, params.job_id)
    return JobCancelResult(
        job=cancelled.job,
        revision=cancelled.revision,
        latest_event_sequence=cancelled.latest_event_sequence,
    )


def schedule_list(context: Context, params: ScheduleListParams) -> Page[Schedule]:
    """Return a page of the schedules of a session."""
    session = access_session(context.caller, params.session_id)

    def read(after: str, limit: int) -> list[Schedule]:
        return schedules.list_schedules(session, status=given(params.status), after=after, limit=limit)

    return page_of(context, params, read)


def schedule_get(context: Context, params: ScheduleGetParams) -> Schedule:
    """Return one schedule."""
    return schedules.get_schedule(access_session(context.caller, params.session_id), params.schedule_id)


def schedule_create(context: Context, params: ScheduleCreateParams) -> ScheduleMutationResult:
    """Make a schedule."""
    return _mutation(
        schedules.create_schedule(context.call, params.session_id, params.payload, params.due, params.misfire)
    )


def schedule_cancel(context: Context, params: ScheduleCancelParams) -> ScheduleMutationResult:
    """Withdraw a schedule that still waits for its time."""
    return _mutation(schedules.cancel_schedule(context.call, params.session_id, params.schedule_id))


def _mutation(changed: schedules.Changed) -> ScheduleMutationResult:
    return ScheduleMutationResult(
        schedule=changed.schedule,
        revision=changed.revision,
        latest_event_sequence=changed.latest_event_sequence,
    )
