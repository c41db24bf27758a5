"""Jobs that are read and cancelled (behaviour 10.1)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET

from jobs_app import jobs
from jobs_app.jobs import Cancelled
from jobs_app.models import Job
from sessions_app.encoding import encode
from sessions_app.errors import (
    IdempotencyConflict,
    InvalidRequest,
    InvalidState,
    PermissionDenied,
    SessionNotFound,
    to_error,
)
from sessions_app.models import Session
from tests.support.replay_law import replay_law
from tests.support.world import Client, World

FAILURE = encode(to_error(InvalidState("no")))


def cancel(world: World, client: Client, job: Job, key: str | None = None, **options: Any) -> Cancelled:
    call = world.call(client.caller, "job.cancel", key, protected=True, **options)
    return jobs.cancel_job(call, client.session_id, job.id)


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        ("queued", {}),
        ("queued", {"attempt": 1, "result": b'{"last_error":"no"}'}),
        ("running", {"attempt": 1}),
        ("waiting_permission", {"attempt": 1}),
        ("interrupted", {"reason": "The worker was lost.", "delivery": "pending"}),
        ("interrupted", {"reason": "The worker was lost.", "delivery": "not_required"}),
    ],
)
def test_what_has_not_ended_is_cancelled(world: World, status: str, fields: dict[str, Any]) -> None:
    """10.1: "queued, running, waiting, **interrupted** | cancel | cancelled"; "only cancel may still relabel it, before
    delivery"."""
    client = world.create()
    job = world.job(client.session_id, status, next_run_at=world.clock() + timedelta(hours=1), **fields)
    revision, sequence = world.counters(client)
    with world.telling(client) as story, replay_law(client.session_id, "jobs"):
        cancelled = cancel(world, client, job, "k")

    assert story == [["job.state_changed cancelled"]]
    job.refresh_from_db()
    assert cancelled.job == jobs.job_record(job)
    assert (cancelled.revision, cancelled.latest_event_sequence) == (revision + 1, sequence + 1)
    assert (job.status, job.reason) == ("cancelled", "")
    assert job.process is None
    assert job.next_run_at is None
    assert job.completed_at is not None
    assert job.attempt == fields.get("attempt", 0)
    assert cancel(world, client, job, "k") == cancelled


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        ("succeeded", {"result": b"1"}),
        ("failed", {"error": FAILURE}),
        ("cancelled", {}),
        ("interrupted", {"reason": "The worker was lost.", "delivery": "delivered"}),
    ],
)
def test_what_has_ended_is_returned_unchanged(world: World, status: str, fields: dict[str, Any]) -> None:
    """10.1: "terminal others: returned unchanged"; an interrupted one once its end was delivered."""
    client = world.create()
    now = world.clock()
    job = world.job(client.session_id, status, completed_at=now, delivered_at=now, **fields)
    before, counters = jobs.job_record(job), world.counters(client)
    with replay_law(client.session_id):
        cancelled = cancel(world, client, job)

    assert cancelled.job == before
    assert (cancelled.revision, cancelled.latest_event_sequence) == counters == world.counters(client)


def test_an_interrupted_job_keeps_the_time_of_its_end(world: World) -> None:
    client = world.create()
    ended = world.clock()
    job = world.job(client.session_id, "interrupted", reason="gone", completed_at=ended)
    world.clock.advance(minutes=1)
    cancel(world, client, job)
    job.refresh_from_db()
    assert job.completed_at == ended


def test_the_checks_of_a_cancel_come_in_their_order(world: World) -> None:
    """5.5, then 4.6: "job.cancel / get | unknown → `invalid_request`"."""
    client, other = world.create(), world.create()
    job = world.job(client.session_id)
    foreign = world.job(other.session_id)
    reader = world.attach(client.session_id, "read_only")
    unknown = Job(id="job_none")
    for row in (job, unknown):
        with pytest.raises(PermissionDenied):
            cancel(world, reader, row)
    for row in (unknown, foreign):
        with pytest.raises(InvalidRequest):
            cancel(world, client, row)
    cancel(world, client, job, "k", digest=b"one")
    with pytest.raises(IdempotencyConflict):
        cancel(world, client, job, "k", digest=b"other")
    Session.objects.update(archived_at=world.clock())
    with pytest.raises(SessionNotFound):
        cancel(world, client, job)


def test_a_job_is_read_in_its_session_alone(world: World) -> None:
    client, other = world.create(), world.create()
    job = world.job(client.session_id, "waiting_permission", delivery="pending")
    found = jobs.get_job(world.session(client.session_id), job.id)
    assert (found.id, found.attempt, found.result) == (job.id, 0, UNSET)
    for session_id, named in ((other.session_id, job.id), (client.session_id, "job_none")):
        with pytest.raises(InvalidRequest):
            jobs.get_job(world.session(session_id), named)


def test_jobs_are_listed_by_id_status_and_kind(world: World) -> None:
    """12.1: "Order: stable, by ID"; "`job.list` status name, kind. Filters combine with "and""."""
    client = world.create()
    session = world.session(client.session_id)
    world.job(world.create().session_id)
    made = [
        world.job(session.id, status, kind=kind)
        for status, kind in (
            ("queued", "model_call"),
            ("running", "model_call"),
            ("running", "async_tool"),
            ("cancelled", "async_tool"),
        )
    ]
    by_id = sorted(row.id for row in made)

    def listed(limit: int = 10, **wanted: Any) -> list[str]:
        return [job.id for job in jobs.list_jobs(session, limit=limit, **wanted)]

    assert listed() == by_id
    assert listed(limit=2) == by_id[:3], "one more tells that there are more"
    assert listed(after=by_id[1]) == by_id[2:]
    assert listed(status="running") == sorted([made[1].id, made[2].id])
    assert listed(status="running", kind="async_tool") == [made[2].id]
    for unknown in ("done", "", "running\0"):
        assert listed(status=unknown) == []
