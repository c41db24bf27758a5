"""Schedules: made, withdrawn, read, and due (behaviour 10.2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobs_app import recovery, schedules, sweep
from jobs_app.models import Schedule
from jobs_app.schedules import Changed
from sessions_app import clock, ledger, limits, processes
from sessions_app.callers import system
from sessions_app.encoding import encode
from sessions_app.errors import (
    AlreadyResolved,
    IdempotencyConflict,
    InvalidRequest,
    InvalidState,
    PermissionDenied,
    ResourceLimit,
    SessionNotFound,
    to_error,
)
from sessions_app.limits import ServerSettings
from sessions_app.models import Session, SweepLease
from sessions_app.records import (
    ScheduleDue,
    ScheduleDueAfterMs,
    ScheduleDueAt,
    ScheduleMisfire,
    ScheduleStatusDelivered,
    ScheduleStatusFailed,
    ScheduleStatusScheduled,
)
from tests.support.replay_law import replay_law
from tests.support.world import Client, World, together

IN_A_MINUTE = ScheduleDueAfterMs(delay_ms=60_000)


def create(
    world: World,
    client: Client,
    due: ScheduleDue = IN_A_MINUTE,
    *,
    payload: bytes = b'{"say":"hello"}',
    misfire: ScheduleMisfire = "deliver_once_immediately",
    key: str | None = None,
    **options: Any,
) -> Changed:
    call = world.call(client.caller, "schedule.create", key, protected=True, **options)
    return schedules.create_schedule(call, client.session_id, payload, due, misfire)


def cancel(world: World, client: Client, schedule_id: str, key: str | None = None) -> Changed:
    call = world.call(client.caller, "schedule.cancel", key, protected=True)
    return schedules.cancel_schedule(call, client.session_id, schedule_id)


def row(made: Changed) -> Schedule:
    return Schedule.objects.get(pk=made.schedule.id)


# Made


def test_a_schedule_waits_for_its_time(world: World) -> None:
    """ "create | scheduled | schedule.created"; J1."""
    client = world.create()
    revision, sequence = world.counters(client)
    with world.telling(client) as story, replay_law(client.session_id, "schedules"):
        made = create(world, client, key="k")

    assert story == [["schedule.created"]]
    assert (made.revision, made.latest_event_sequence) == (revision + 1, sequence + 1)
    shown = made.schedule
    assert shown == schedules.schedule_record(row(made))
    assert (shown.status, shown.delivery_count) == (ScheduleStatusScheduled(), 0)
    assert (shown.session_id, shown.generation) == (client.session_id, 0)
    assert row(made).next_due_at - row(made).created_at == timedelta(minutes=1)
    world.clock.advance(seconds=30)
    assert create(world, client, key="k") == made, "the due time is reckoned once"
    with pytest.raises(IdempotencyConflict):
        create(world, client, key="k", digest=b"other")


@pytest.mark.parametrize(
    ("due", "at"),
    [
        (ScheduleDueAt(timestamp="2031-02-03T04:05:06.0000019Z"), datetime(2031, 2, 3, 4, 5, 6, 1, UTC)),
        (ScheduleDueAt(timestamp="2031-12-31T24:00:00Z"), datetime(2032, 1, 1, tzinfo=UTC)),
        (ScheduleDueAt(timestamp="0001-01-01T00:00:00Z"), datetime(1, 1, 1, tzinfo=UTC)),
        (ScheduleDueAt(timestamp="9999-12-31T23:59:60Z"), schedules.LATEST),
        (ScheduleDueAfterMs(delay_ms=2**62 - 1), schedules.LATEST),
    ],
)
def test_any_time_of_the_wire_can_be_meant(committed_world: World, due: ScheduleDue, at: datetime) -> None:
    """ "absolute time or delay in ms (≥ 0)"; wire 1: any year from 1 to 9999, and delays that end beyond."""
    client = committed_world.create()
    made = create(committed_world, client, due)
    assert row(made).next_due_at == at
    assert made.schedule.next_due_at == clock.wire_time(at)
    assert clock.parse_wire_time(made.schedule.next_due_at) == at


def test_free_json_is_kept_as_it_was_written(world: World) -> None:
    """Every token stays; white space goes, as a line break would end the message on some transports."""
    client = world.create()
    made = create(
        world, client, payload=b' {"a" :\n[1.0, 2e400, 12345678901234567890123], "b":"\\u00e9 \\n" }\t'
    )
    kept = b'{"a":[1.0,2e400,12345678901234567890123],"b":"\\u00e9 \\n"}'
    assert bytes(made.schedule.payload) == kept
    assert row(made).payload == kept
    for free in (b"null", b"0", b'""'):
        assert row(create(world, client, payload=free)).payload == free


def test_a_payload_is_bounded(world: World) -> None:
    """ "a payload above 256 KiB is `resource_limit`"."""
    client = world.create()
    before = world.counters(client)
    longest = b'"%b"' % (b"x" * (limits.MAX_PAYLOAD_BYTES - 2))
    with pytest.raises(ResourceLimit) as refused:
        create(world, client, payload=longest[:-1] + b'x"')
    assert not refused.value.retryable
    assert world.counters(client) == before
    assert create(world, client, payload=b" " + longest).revision == before[0] + 1


@pytest.mark.parametrize("state", ["stopped", "idle", "running", "failed", "halted"])
def test_a_schedule_is_made_in_any_state(world: World, state: str) -> None:
    """ "Creation works in any state incl. stopped"."""
    client = world.create(start=state != "stopped")
    if state == "running":
        world.turn(client)
    elif state == "failed":
        error = encode(to_error(InvalidState("no")))
        Session.objects.update(observed="failed", failure=error)
    elif state == "halted":
        Session.objects.update(halted=True)
    with world.telling(client) as story:
        create(world, client)
    assert story == [["schedule.created"]]


def test_the_checks_of_a_creation_come_in_their_order(world: World) -> None:
    """5.5: "Nothing… may be touched before this passes": the payload is looked at afterwards."""
    client = world.create()
    too_large = b'"%b"' % (b"x" * limits.MAX_PAYLOAD_BYTES)
    reader = world.attach(client.session_id, "read_only")
    elsewhere = world.create()
    foreign = Client(elsewhere.caller, elsewhere.connection_id, client.session_id)
    for by in (reader, foreign):
        with pytest.raises(PermissionDenied):
            create(world, by, payload=too_large)
    Session.objects.filter(id=client.session_id).update(archived_at=world.clock())
    with pytest.raises(SessionNotFound):
        create(world, client, payload=too_large)
    assert not Schedule.objects.exists()


# Withdrawn


def test_a_waiting_schedule_is_withdrawn(world: World) -> None:
    """ "scheduled | cancel | cancelled | schedule.cancelled"; J1: "+1/+1; `already_resolved`"."""
    client = world.create()
    made = create(world, client)
    with world.telling(client) as story, replay_law(client.session_id, "schedules"):
        cancelled = cancel(world, client, made.schedule.id, "k")

    assert story == [["schedule.cancelled"]]
    assert (cancelled.revision, cancelled.latest_event_sequence) == (
        made.revision + 1,
        made.latest_event_sequence + 1,
    )
    assert cancelled.schedule == schedules.schedule_record(row(made))
    assert cancel(world, client, made.schedule.id, "k") == cancelled
    with pytest.raises(AlreadyResolved):
        cancel(world, client, made.schedule.id)
    assert schedules.next_due() is None


@pytest.mark.parametrize("status", ["delivering", "delivered", "cancelled", "failed"])
def test_what_no_longer_waits_is_resolved(world: World, status: str) -> None:
    """4.6: "not `scheduled` → `already_resolved`"."""
    client = world.create()
    schedule = world.schedule(client.session_id, status, error=encode(to_error(InvalidState("no"))))
    with replay_law(client.session_id), pytest.raises(AlreadyResolved):
        cancel(world, client, schedule.id)


def test_a_withdrawal_names_a_schedule_of_its_session(world: World) -> None:
    """5.5, then 4.6: "schedule.cancel | unknown → `invalid_request`"."""
    client, other = world.create(), world.create()
    foreign = world.schedule(other.session_id)
    for named in (foreign.id, "sch_none"):
        with pytest.raises(InvalidRequest):
            cancel(world, client, named)
        with pytest.raises(InvalidRequest):
            schedules.get_schedule(world.session(client.session_id), named)
        with pytest.raises(PermissionDenied):
            cancel(world, world.attach(client.session_id, "read_only"), named)


# Read


def test_schedules_are_listed_by_id_and_status(world: World) -> None:
    """12.1: "Order: stable, by ID"; "`schedule.list` status name"."""
    client = world.create()
    session = world.session(client.session_id)
    world.schedule(world.create().session_id)
    made = [world.schedule(session.id, status) for status in ("scheduled", "delivered", "scheduled")]
    by_id = sorted(one.id for one in made)

    def listed(limit: int = 10, **wanted: Any) -> list[str]:
        return [schedule.id for schedule in schedules.list_schedules(session, limit=limit, **wanted)]

    assert listed() == by_id
    assert listed(limit=1) == by_id[:2]
    assert listed(after=by_id[0]) == by_id[1:]
    assert listed(status="delivered") == [made[1].id]
    for unknown in ("due", "scheduled\0"):
        assert listed(status=unknown) == []
    assert schedules.get_schedule(session, made[0].id) == schedules.schedule_record(made[0])


# Due


@pytest.fixture
def swept(world: World) -> World:
    """A world in which this process has held the sweep's lease for a while."""
    world.clock.advance(minutes=-5)
    assert sweep.take_lease()
    world.clock.advance(minutes=5)
    return world


def sweep_once() -> None:
    sweep.deliver_schedules()


def status(made: Changed) -> Any:
    return schedules.schedule_record(row(made)).status


def test_a_due_schedule_fails_where_nobody_can_take_it(swept: World) -> None:
    """ "In a prompt without a moderator a due schedule ends `failed` with `invalid_state`", by way of `delivering`."""
    client = swept.create()
    made = create(swept, client)
    sweep_once()
    assert status(made) == ScheduleStatusScheduled()
    assert sweep.next_due() == row(made).next_due_at
    swept.clock.advance(seconds=61)
    with swept.telling(client) as story, replay_law(client.session_id, "schedules"):
        sweep_once()
        sweep_once()

    assert story == [["schedule.state_changed delivering"], ["schedule.state_changed failed"]]
    ended = row(made)
    assert isinstance(status(made), ScheduleStatusFailed)
    assert status(made).error.code == "invalid_state"
    assert ended.delivery_count == 0
    assert ended.last_delivery_at is None
    assert ended.process is None
    assert sweep.next_due() is None
    assert swept.history(client) == ["developer: Be brief."], "a schedule is no message"


@pytest.mark.parametrize("misfire", ["deliver_once_immediately", "skip_if_expired", "fail"])
def test_lateness_alone_is_no_misfire(swept: World, misfire: ScheduleMisfire) -> None:
    """ "Overdue = no live sweep lease covered the due time…; any other lateness is just delivered"."""
    client = swept.create()
    made = create(swept, client, misfire=misfire)
    swept.clock.advance(minutes=4)
    SweepLease.objects.update(expires_at=swept.clock() - timedelta(seconds=14))
    swept.new_process("web")
    assert sweep.take_lease(), "a gap that is no longer than the bound"
    with swept.telling(client) as story:
        sweep_once()
    assert story[0] == ["schedule.state_changed delivering"]
    assert status(made).error.code == "invalid_state"


@pytest.mark.parametrize(
    ("misfire", "told"),
    [
        ("deliver_once_immediately", [["delivering"], ["failed"]]),
        ("skip_if_expired", [["delivered"]]),
        ("fail", [["failed"]]),
    ],
)
def test_what_came_due_while_nobody_looked_goes_by_its_misfire(
    swept: World, misfire: ScheduleMisfire, told: list[list[str]]
) -> None:
    """J6: "all processes down over the due time and longer than `misfire_gap_ms`, each misfire"."""
    client = swept.create()
    missed = create(swept, client, misfire=misfire)
    sweep.take_lease()
    swept.clock.advance(minutes=2)
    later = create(swept, client, ScheduleDueAfterMs(delay_ms=0), misfire=misfire)
    swept.new_process("web")
    assert sweep.take_lease(), "the gap has ended"
    Schedule.objects.filter(pk=later.schedule.id).update(next_due_at=swept.clock())
    with swept.telling(client) as story, replay_law(client.session_id, "schedules"):
        sweep_once()

    expected = [[f"schedule.state_changed {one}" for one in revision] for revision in told]
    assert story[: len(told)] == expected
    assert status(later).error.code == "invalid_state", "what is due since then is delivered"
    shown = schedules.schedule_record(row(missed))
    assert shown.delivery_count == 0
    if misfire == "skip_if_expired":
        assert shown.status == ScheduleStatusDelivered()
    else:
        code = "interrupted" if misfire == "fail" else "invalid_state"
        assert isinstance(shown.status, ScheduleStatusFailed)
        assert (shown.status.error.code, shown.status.error.retryable) == (code, False)


def test_a_time_before_anybody_looked_was_not_covered(swept: World) -> None:
    client = swept.create()
    past = ScheduleDueAt(timestamp="2001-01-01T00:00:00Z")
    made = create(swept, client, past, misfire="skip_if_expired")
    sweep_once()
    assert status(made) == ScheduleStatusDelivered()


def test_the_gap_that_counts_is_set(swept: World) -> None:
    client = swept.create()
    with limits.using(ServerSettings(misfire_gap_ms=1000)):
        made = create(swept, client, misfire="fail")
        sweep.take_lease()
        swept.clock.advance(seconds=65)
        SweepLease.objects.update(expires_at=swept.clock() - timedelta(seconds=2))
        swept.new_process("web")
        sweep.take_lease()
    sweep_once()
    assert status(made).error.code == "interrupted"


def test_one_session_that_cannot_be_changed_does_not_stop_the_others(swept: World) -> None:
    worn, client = swept.create(), swept.create()
    stuck, made = create(swept, worn), create(swept, client)
    Session.objects.filter(id=worn.session_id).update(revision=ledger.COUNTER_MAX)
    swept.clock.advance(seconds=61)
    sweep_once()
    assert (row(stuck).status, row(made).status) == ("scheduled", "failed")


def test_what_belongs_to_an_archived_session_waits_for_its_restoring(swept: World) -> None:
    """And is nobody's deadline meanwhile."""
    gone = swept.create()
    hidden = create(swept, gone)
    Session.objects.filter(id=gone.session_id).update(archived_at=swept.clock())
    swept.clock.advance(seconds=61)
    sweep_once()
    assert row(hidden).status == "scheduled"
    assert schedules.next_due() is None
    Session.objects.filter(id=gone.session_id).update(archived_at=None)
    sweep_once()
    assert row(hidden).status == "failed"


def test_what_is_due_is_found_in_bounds(swept: World) -> None:
    client = swept.create()
    made = [create(swept, client, ScheduleDueAfterMs(delay_ms=ms)) for ms in (3, 1, 2)]
    swept.clock.advance(seconds=1)
    in_order = [(client.session_id, made[index].schedule.id) for index in (1, 2, 0)]
    assert schedules.list_due(swept.clock(), 2) == in_order[:2], "the longest due first"
    assert schedules.list_due(swept.clock(), 9) == in_order


def test_what_a_lost_process_was_delivering_waits_again(swept: World) -> None:
    """ "delivering | its worker is lost or stops | scheduled | state_changed"."""
    client = swept.create()
    worker = swept.new_process()
    schedule = swept.schedule(client.session_id, "delivering", process_id=worker)
    swept.new_process("web")
    with swept.telling(client) as story, replay_law(client.session_id, "schedules"):
        recovery.release(worker, "worker_lost")
        recovery.release(worker, "worker_lost")
    assert story == [["schedule.state_changed scheduled"]]
    schedule.refresh_from_db()
    assert schedule.process_id is None


def test_two_sweeps_and_a_withdrawal_end_it_once(committed_world: World) -> None:
    """14.2: "Each step is bounded, idempotent and safe to run twice at once"."""
    world = committed_world
    clients = [world.create() for _ in range(4)]
    made = [create(world, client, ScheduleDueAfterMs(delay_ms=0)) for client in clients]
    due = max(row(one).next_due_at for one in made)

    def deliver() -> int:
        found = schedules.list_due(due, 64)
        return sum(schedules.deliver(*names, due - timedelta(hours=1)) for names in found)

    def withdraw() -> int:
        try:
            cancel(world, clients[-1], made[-1].schedule.id)
        except AlreadyResolved:
            return 0
        return 1

    assert sum(together(deliver, deliver, withdraw)) == len(made)
    for client in clients:
        ends = [told for [told] in world.story(client) if told.startswith("schedule.")]
        assert ends[1:] in (
            ["schedule.state_changed delivering", "schedule.state_changed failed"],
            ["schedule.cancelled"],
        )


def test_a_claim_names_the_process(world: World) -> None:
    """What `recovery` needs, should the process be lost once delivering takes longer than its transaction."""
    client = world.create()
    schedule = world.schedule(client.session_id)
    with ledger.session_txn(client.session_id, system("test")) as txn:
        schedules.move(txn, schedule, "delivering")
    assert Schedule.objects.get().process_id == processes.current_id()
