"""What a dead process held, and what a stopping one still holds (behaviour 14.3, 14.4)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from jobs_app import recovery
from jobs_app.jobs import WORKER_LOST
from jobs_app.models import Job, Schedule
from permissions_app.decisions import PermissionGate
from sessions_app import clock, ledger, limits, processes, receipts
from sessions_app.callers import system
from sessions_app.commands import operations
from sessions_app.commands.operations import StreamedItem
from sessions_app.errors import Interrupted
from sessions_app.limits import ServerSettings
from sessions_app.models import Attachment, Connection, Operation, Process, Session
from tests.support.world import World, together


def lose(world: World) -> str:
    """Let this process die and go on as another one; the id of the dead one."""
    dead = processes.current_id()
    world.let_die(dead)
    world.new_process()
    return dead


def test_a_lost_turn_is_interrupted_with_its_text(world: World) -> None:
    """14.4: "any other operation | terminal transaction: `operation.interrupted`, reason `worker_lost`, retryable true"; K14: "user
    entry and streamed text kept (status incomplete), session idle"."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run")
    operations.save_streamed([(claim, [StreamedItem(claim.first_number, "msg_1", "I was about to")])])
    dead = lose(world)
    with world.telling(client) as story:
        assert recovery.end_dead_processes() == 1
    assert story[0] == [
        "appended assistant: I was about to…, output: call_0: The call was interrupted before it returned; "
        "what it did is unknown.",
        "operation.interrupted",
        "state running/idle",
    ]
    row = Operation.objects.get()
    assert (row.interruption, row.retryable) == ("worker_lost", True)
    assert not Process.objects.filter(id=dead).exists()
    assert world.send(world.attach(client.session_id), "go on").disposition == "started"


def test_a_lost_turn_that_was_being_cancelled_ends_cancelled(world: World) -> None:
    """14.4: "one in `cancelling` ends cancelled instead"."""
    client = world.idle()
    world.turn(client)
    world.cancel(client)
    lose(world)
    with world.telling(client) as story:
        recovery.end_dead_processes()
    assert story[0] == ["operation.cancelled", "moderator.notification", "state running/idle"]


def test_a_lost_turn_of_a_stopping_session_ends_stopped(world: World) -> None:
    """4.4: "running/compacting | its worker is lost or stops | idle if R, stopped if S"."""
    client = world.idle()
    world.turn(client)
    world.stop(client)
    lose(world)
    recovery.end_dead_processes()
    assert world.states(client) == ("stopped", "stopped")


def test_parked_turns_and_their_requests_stay(world: World) -> None:
    """14.4: "A parked operation is held by no process: it and its requests stay as they are (7.2)"."""
    client = world.idle()
    world.propose(world.turn(client), "write", gate=PermissionGate())
    world.disconnect(client)
    lose(world)
    with world.telling(client) as story:
        recovery.end_dead_processes()
    assert story == []
    assert world.states(client) == ("running", "waiting_for_permission")


def test_jobs_and_deliveries_of_a_lost_process(world: World) -> None:
    """14.4: "a running job | `interrupted`…; a schedule in `delivering` → scheduled"; 10.1: never run again under any policy."""
    client = world.idle()
    running, queued = world.job(client.session_id, "running"), world.job(client.session_id)
    delivering = world.schedule(client.session_id, "delivering")
    world.disconnect(client)
    lose(world)
    with world.telling(client) as story:
        recovery.end_dead_processes()
    assert story == [["job.state_changed interrupted"], ["schedule.state_changed scheduled"]]
    job = Job.objects.get(id=running.id)
    assert (job.status, job.reason, job.process_id is None) == ("interrupted", WORKER_LOST, True)
    assert job.completed_at is not None
    assert Job.objects.get(id=queued.id).status == "queued"
    assert Schedule.objects.get(id=delivering.id).status == "scheduled"


def test_attachments_of_a_lost_web_process_are_detached(world: World) -> None:
    """14.4: "an attachment | detached as by connection loss (5.6); an owner enters its grace, `attachment.owner_changed`(none)"."""
    owner = world.idle(mode="owner_read_write", liveness=world.owner_bound())
    reader = world.attach(owner.session_id, "read_only")
    lose(world)
    survivor = world.attach(owner.session_id)
    with world.telling(owner) as story:
        recovery.end_dead_processes()
    assert story == [["owner none"]]
    assert {row.id for row in Attachment.objects.all()} == {owner.attachment_id, survivor.attachment_id}
    assert world.session(owner.session_id).lease_grace_until is not None
    assert list(Connection.objects.values_list("id", flat=True)) == [survivor.connection_id]
    assert world.states(reader) == ("running", "idle")
    world.send(survivor)


def test_a_pending_receipt_of_a_lost_process_is_interrupted(world: World) -> None:
    """14.4: "a pending receipt | answers `interrupted` (11.3)", also once its process is forgotten."""
    client = world.create()
    receipts.open_pending(world.call(client.caller, "session.start", "k"), client.session_id)
    lose(world)
    recovery.end_dead_processes()
    with pytest.raises(Interrupted):
        world.start(client, key="k")


def test_ending_twice_changes_nothing(committed_world: World) -> None:
    """14.2: "Each step is bounded, idempotent and safe to run twice at once"."""
    world = committed_world
    client = world.idle(mode="owner_read_write", liveness=world.owner_bound())
    world.turn(client)
    world.job(client.session_id, "running")
    lose(world)
    before = world.counters(client)[1]
    together(*[recovery.end_dead_processes] * 3)
    recovery.end_dead_processes()
    story = world.story(client, before)
    assert sorted(event for revision in story for event in revision) == [
        "job.state_changed interrupted",
        "operation.interrupted",
        "owner none",
        "state running/idle",
    ]


def test_the_living_keep_what_they_hold(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    assert recovery.end_dead_processes() == 0
    world.finish(claim, "done")


def test_a_late_result_of_a_process_taken_for_dead_is_ignored(world: World) -> None:
    """6.6: "Results with a stale operation ID or claim are ignored"."""
    client = world.idle()
    claim = world.turn(client)
    here = processes.current_id()
    world.let_die(here)
    recovery.end_dead_processes()
    with pytest.raises(operations.ClaimLost):
        world.finish(claim, "too late")
    assert not processes.beat(), "it learns of it with its next beat"


def test_nothing_runs_on_in_an_archived_session(world: World) -> None:
    """14.4: "Archived sessions are skipped": a process is forgotten all the same, and a restored session has nothing running."""
    client = world.idle()
    job, schedule = world.job(client.session_id, "running"), world.schedule(client.session_id, "delivering")
    Session.objects.update(archived_at=clock.now())
    dead = lose(world)
    recovery.end_dead_processes()
    assert not Process.objects.filter(id=dead).exists()
    job.refresh_from_db()
    schedule.refresh_from_db()
    assert (job.status, job.reason, schedule.status) == ("interrupted", WORKER_LOST, "scheduled")
    assert not Attachment.objects.exists()
    assert len(world.events(client.session_id)) == 1


def test_a_busy_session_keeps_its_dead_process_on_the_list(committed_world: World) -> None:
    """Each thing is a transaction of its own: what cannot be ended now is ended in the next pass, the rest at once."""
    world = committed_world
    busy, free = world.idle(), world.idle()
    for client in (busy, free):
        world.turn(client)
    dead = lose(world)

    def recover() -> None:
        settings = ServerSettings(session_lock_timeout_ms=50, store_lock_timeout_ms=50)
        try:
            with limits.using(settings):
                recovery.end_dead_processes()
        finally:
            connections.close_all()

    with ledger.session_txn(busy.session_id, system("test")), ThreadPoolExecutor(1) as other:
        other.submit(recover).result(60)
    assert Process.objects.filter(id=dead).exists()
    assert world.states(busy) == ("running", "running_turn")
    recovery.end_dead_processes()
    assert not Process.objects.filter(id=dead).exists()
    assert (world.states(busy), world.states(free)) == (("running", "idle"), ("running", "idle"))


def test_a_broken_turn_does_not_keep_the_others(world: World) -> None:
    """A row that cannot be read, a bug in other words, is logged in every pass; what it held of others is ended."""
    broken, sound = world.idle(), world.idle()
    for client in (broken, sound):
        world.turn(client)
    Operation.objects.filter(session_id=broken.session_id).update(streamed=b"no json")
    dead = lose(world)
    recovery.end_dead_processes()
    assert (world.states(broken)[1], world.states(sound)[1]) == ("running_turn", "idle")
    assert Process.objects.filter(id=dead).exists()


def test_a_stopping_worker_gives_up_what_it_holds(world: World) -> None:
    """14.3: "what still runs near its end is ended as in 14.4, reason `server_shutdown`. Parked operations and their requests are
    left alone"."""
    running, parked = world.idle(), world.idle()
    world.turn(running)
    world.propose(world.turn(parked), "ask")
    recovery.release(processes.current_id(), operations.SERVER_SHUTDOWN)
    assert Operation.objects.get(session_id=running.session_id).interruption == "server_shutdown"
    assert world.states(parked) == ("running", "running_turn")
    assert Operation.objects.get(session_id=parked.session_id).parked
    assert not Attachment.objects.exists()


def test_a_process_that_stops_leaves_the_list(world: World) -> None:
    """14.3: what it still holds is ended, then it is gone: nobody has to find it dead."""
    client = world.idle()
    world.turn(client)
    here = processes.current_id()
    recovery.leave(operations.SERVER_SHUTDOWN)
    assert not Process.objects.filter(id=here).exists()
    assert world.states(client) == ("running", "idle")


def test_a_process_that_could_not_end_everything_stays_on_the_list(world: World) -> None:
    """Taken off, it would leave operations that nobody holds: another worker would ask the model again."""
    client = world.idle()
    world.turn(client)
    Operation.objects.update(streamed=b"no json")
    here = processes.current_id()
    recovery.leave(operations.SERVER_SHUTDOWN)
    assert Process.objects.filter(id=here).exists()
    assert Operation.objects.get().process_id == here
