"""Jobs and schedules as records, and their part in what happens to a session (behaviour 10, 6.5, 4.5)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.db import IntegrityError, transaction
from msgspec import UNSET

from jobs_app import jobs, schedules
from jobs_app.jobs import JobParticipant, job_record
from jobs_app.models import Job, Schedule
from jobs_app.schedules import ScheduleParticipant, schedule_record
from sessions_app import clock, ledger, limits, records
from sessions_app.callers import system
from sessions_app.commands import operations
from sessions_app.commands.operations import Ending
from sessions_app.encoding import encode
from sessions_app.errors import InternalError, to_error
from sessions_app.views import View
from tests.support.world import World

ERROR = to_error(InternalError("broken"))
NOW = clock.parse_wire_time("2030-01-01T00:00:00Z")
WIRE = "2030-01-01T00:00:00.000000000Z"


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        ("queued", {}, records.JobStatusQueued()),
        ("running", {}, records.JobStatusRunning()),
        (
            "waiting_permission",
            {"waiting_on": "per_x"},
            records.JobStatusWaitingPermission(permission_id="per_x"),
        ),
        ("succeeded", {}, records.JobStatusSucceeded()),
        ("failed", {"error": encode(ERROR)}, records.JobStatusFailed(error=ERROR)),
        ("cancelled", {}, records.JobStatusCancelled()),
        ("interrupted", {"reason": "lost"}, records.JobStatusInterrupted(reason="lost")),
    ],
)
def test_the_states_of_a_job(world: World, status: str, fields: dict[str, Any], expected: object) -> None:
    """10.1: every state of the table, as the protocol writes it."""
    client = world.create()
    record = job_record(world.job(client.session_id, status, **fields))
    assert record.status == expected
    assert msgspec.json.decode(encode(record), type=records.Job) == record


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"delivery": "not_required"}, records.JobDeliveryNotRequired()),
        ({"delivery": "pending"}, records.JobDeliveryPending()),
        ({"delivery": "delivered", "delivered_at": NOW}, records.JobDeliveryDelivered(delivered_at=WIRE)),
    ],
)
def test_delivery_is_apart_from_execution(world: World, fields: dict[str, Any], expected: object) -> None:
    """10.1: "Delivery is at most once per job, separate from execution"."""
    client = world.create()
    assert job_record(world.job(client.session_id, "succeeded", **fields)).delivery == expected


def test_a_whole_job(world: World) -> None:
    client = world.create()
    policy = records.RetryPolicySafeRetry(max_attempts=3, backoff_ms=10)
    job = world.job(
        client.session_id,
        "succeeded",
        attempt=2,
        retry_policy=encode(policy),
        result=b'{"answer":42}',
        started_at=NOW,
        next_run_at=NOW,
        completed_at=NOW,
    )
    record = job_record(job)
    assert (record.retry_policy, record.attempt, bytes(record.payload)) == (
        policy,
        2,
        b'{"secret":"payload"}',
    )
    assert record.result is not UNSET
    assert bytes(record.result) == b'{"answer":42}'
    assert (record.started_at, record.next_run_at, record.completed_at) == (WIRE, WIRE, WIRE)
    assert job_record(world.job(client.session_id)).started_at is UNSET


@pytest.mark.parametrize("model", [Job, Schedule])
def test_only_what_runs_is_held_by_a_process(world: World, model: type[Job | Schedule]) -> None:
    """0.8: "workers hold claims": a row that does not run names nobody, or recovery would end it again."""
    client = world.create()
    row = world.job(client.session_id) if model is Job else world.schedule(client.session_id)
    with pytest.raises(IntegrityError), transaction.atomic():
        model._default_manager.filter(pk=row.pk).update(process_id=world.new_process())


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        ("scheduled", {}, records.ScheduleStatusScheduled()),
        ("delivering", {}, records.ScheduleStatusDelivering()),
        ("delivered", {"delivery_count": 1, "last_delivery_at": NOW}, records.ScheduleStatusDelivered()),
        ("cancelled", {}, records.ScheduleStatusCancelled()),
        ("failed", {"error": encode(ERROR)}, records.ScheduleStatusFailed(error=ERROR)),
    ],
)
def test_the_states_of_a_schedule(
    world: World, status: str, fields: dict[str, Any], expected: object
) -> None:
    """10.2: every state of the table."""
    client = world.create()
    record = schedule_record(world.schedule(client.session_id, status, **fields))
    assert record.status == expected
    assert record.delivery_count == fields.get("delivery_count", 0)
    assert record.last_delivery_at == (WIRE if "last_delivery_at" in fields else UNSET)
    assert msgspec.json.decode(encode(record), type=records.Schedule) == record


def test_only_the_jobs_of_the_operation_end_with_it(world: World) -> None:
    """6.5.6: "for its reviewer jobs `job.state_changed` (running → interrupted, queued → cancelled)"."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run")
    mine = [
        world.job(client.session_id, status, operation_id=claim.operation_id)
        for status in ("running", "queued", "waiting_permission", "succeeded")
    ]
    others = [world.job(client.session_id, "running"), world.job(client.session_id, operation_id="op_other")]
    with ledger.session_txn(client.session_id, system("test")) as txn:
        operations.end(txn, Ending("cancelled"))
    for job in (*mine, *others):
        job.refresh_from_db()
    assert [job.status for job in mine] == ["interrupted", "cancelled", "cancelled", "succeeded"]
    assert (mine[0].reason, mine[0].process_id is None) == (jobs.OPERATION_ENDED, True)
    assert [job.status for job in others] == ["running", "queued"]


def test_an_ended_job_waits_for_nothing(world: World) -> None:
    """4.5: "cancel stop turns every queued/running/waiting job into `cancelled`": with a time, without a next run."""
    client = world.idle()
    job = world.job(client.session_id, next_run_at=NOW)
    world.stop(client, "cancel")
    job.refresh_from_db()
    assert (job.status, job.next_run_at) == ("cancelled", None)
    assert job.completed_at is not None


def test_jobs_of_other_sessions_are_left_alone(world: World) -> None:
    one, other = world.idle(), world.idle()
    job = world.job(other.session_id)
    world.stop(one, "cancel")
    job.refresh_from_db()
    assert job.status == "queued"


@pytest.mark.parametrize("message_send", [True, False])
def test_lists_need_the_right_to_send(world: World, message_send: bool) -> None:
    """8.8: "jobs, schedules | message.send"."""
    client = world.create()
    world.job(client.session_id)
    world.schedule(client.session_id)
    session, view = world.session(client.session_id), View(True, True, message_send)
    assert len(JobParticipant().snapshot_part(session, view).jobs) == message_send
    assert len(ScheduleParticipant().snapshot_part(session, view).schedules) == message_send


def test_lists_have_an_end(world: World) -> None:
    """8.8: "at most 256 each", unfinished ones first however old they are."""
    client = world.create()
    oldest = world.job(client.session_id, created_at=NOW - timedelta(days=1))
    due = world.schedule(client.session_id, created_at=NOW - timedelta(days=1))
    fields: dict[str, Any] = {
        "session_id": client.session_id,
        "generation": 0,
        "payload": b"{}",
        "created_at": NOW,
    }
    Job.objects.bulk_create(
        Job(id=f"job_{n}", kind="model_call", status="succeeded", retry_policy=b'{"type":"never"}', **fields)
        for n in range(limits.MAX_SNAPSHOT_ITEMS)
    )
    Schedule.objects.bulk_create(
        Schedule(id=f"sch_{n}", status="delivered", next_due_at=NOW, misfire="fail", **fields)
        for n in range(limits.MAX_SNAPSHOT_ITEMS)
    )
    session = world.session(client.session_id)
    for found, first in ((jobs.newest(session), oldest), (schedules.newest(session), due)):
        assert len(found) == limits.MAX_SNAPSHOT_ITEMS
        assert found[0].pk == first.pk


def test_a_reset_drops_jobs_and_schedules(world: World) -> None:
    """9.4: "deferred, permissions, jobs, schedules | cleared"."""
    one, other = world.create(), world.create()
    for client in (one, other):
        world.job(client.session_id)
        world.schedule(client.session_id)
    with ledger.session_txn(one.session_id, system("test")) as txn:
        JobParticipant().on_reset(txn, keep_grants=True)
        ScheduleParticipant().on_reset(txn, keep_grants=True)
    assert list(Job.objects.values_list("session_id", flat=True)) == [other.session_id]
    assert list(Schedule.objects.values_list("session_id", flat=True)) == [other.session_id]
