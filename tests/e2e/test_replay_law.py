"""The replay law for every mutation there is, and for every view (design 9).

The mutations are made by the kernel's own commands on real rows; the projection is the client's.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from jobs_app import jobs, recovery, schedules, sweep
from ochat_client import Projection, equal_by_law
from permissions_app import grants, requests
from permissions_app.decisions import PermissionGate
from sessions_app import archives, ledger, processes
from sessions_app.callers import system
from sessions_app.commands import attachments, compaction, operations
from sessions_app.commands.operations import Claim, StreamedItem
from sessions_app.errors import InternalError, PromptUnavailable, to_error
from sessions_app.events import read_payload
from sessions_app.history import user_message
from sessions_app.models import Session
from sessions_app.participants import OperationOutcome
from sessions_app.projection import project_event
from sessions_app.records import LivenessOwnerBound, PermissionChoice, ScheduleDueAfterMs
from sessions_app.records import Session as SessionRecord
from sessions_app.views import FULL
from tests.support.replay_law import VIEWS, leaves, replay_law, snapshot
from tests.support.world import Client, World, assistant

STATE = "session"
HISTORY = "canonical_history"
DEFERRED = "deferred_entries"
OWNED = LivenessOwnerBound(disconnect_grace_ms=1000, stop_mode="cancel")


# The helper itself


def test_a_change_that_is_not_named_fails(world: World) -> None:
    client = world.create()
    with pytest.raises(AssertionError), replay_law(client.session_id):
        world.start(client)


def test_a_named_member_that_stays_fails(world: World) -> None:
    client = world.create()
    with pytest.raises(AssertionError), replay_law(client.session_id, STATE, HISTORY):
        world.start(client)


def test_a_change_that_no_event_tells_fails(world: World) -> None:
    client = world.create()
    with pytest.raises(AssertionError), replay_law(client.session_id, "halted"):
        Session.objects.filter(id=client.session_id).update(halted=True)


def test_an_event_that_tells_less_than_was_changed_fails(world: World) -> None:
    client = world.idle()
    with (
        pytest.raises(AssertionError),
        replay_law(client.session_id, STATE, "halted"),
        ledger.session_txn(client.session_id, system("test")) as txn,
    ):
        txn.session.halted = True
        txn.set_state(desired="stopped", observed="stopped")


# Sessions and attachments


@pytest.mark.parametrize("start", [False, True])
def test_create(world: World, start: bool) -> None:
    """There is no snapshot before: the event alone says what the snapshot says of the session, but for the counters."""
    client = world.create(start=start, labels={"a": "b"})
    (created,) = world.events(client.session_id)

    for view in VIEWS:
        shown = snapshot(client.session_id, view)
        payload = read_payload(project_event(created, view))
        assert isinstance(payload, SessionRecord)
        summary = SessionRecord(**{name: getattr(payload, name) for name in SessionRecord.__struct_fields__})
        # Its counters are those from before its transaction (wire 9).
        summary = replace(summary, revision=shown.revision, latest_event_sequence=1)
        assert equal_by_law(replace(shown, session=summary), shown)


def test_attach_and_detach(world: World) -> None:
    client = world.create()
    with replay_law(client.session_id):
        other = world.attach(client.session_id)
    with replay_law(client.session_id):
        world.detach(other)
    with replay_law(client.session_id):
        world.disconnect(world.attach(client.session_id, "read_only"))


def test_start_and_stop(world: World) -> None:
    client = world.create()
    with replay_law(client.session_id, STATE):
        world.start(client)
    with replay_law(client.session_id):
        world.start(client)
    with replay_law(client.session_id, STATE):
        world.stop(client)
    with replay_law(client.session_id):
        world.stop(client, "cancel")


def test_stop_in_a_turn(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    half = StreamedItem(claim.first_number + 9, "msg_1", "half")
    with replay_law(client.session_id, STATE):
        world.stop(client, "graceful")
    with replay_law(client.session_id, STATE):
        world.start(client)
    with replay_law(client.session_id, STATE, HISTORY):
        world.stop(client, "cancel")
        world.finish(claim, streamed=(half,), outcome="cancelled")


def test_a_stop_does_not_tell_that_it_cancels(world: World) -> None:
    """Its one event is `session.state_changed` (behaviour 4.4, 6.6), which shows no operation. So for as long as the worker
    needs to let go, a snapshot says `cancelling` where a reader who was there before reads `running`.
    """
    client = world.idle()
    claim = world.turn(client)
    before = snapshot(client.session_id)
    world.stop(client, "cancel")
    projection = Projection(before)
    for event in world.events(client.session_id, before.latest_event_sequence):
        projection.apply(project_event(event, FULL))

    found = leaves(projection.snapshot(), snapshot(client.session_id))
    assert {leaf.partition(":")[0] for leaf in found} == {
        ".session.active_operation.state.type",
        ".session.active_operation.updated_at",
        ".session.updated_at",
    }
    world.finish(claim, outcome="cancelled")


def test_stop_that_ends_everything(world: World) -> None:
    """Of an operation that no worker holds: the operation, what waits for it, and jobs, in one go."""
    client = world.idle()
    world.job(client.session_id, "queued")
    with replay_law(client.session_id, STATE, HISTORY):
        world.send(client)
    with replay_law(client.session_id, STATE, "jobs"):
        world.stop(client, "cancel")


def test_the_owner_comes_and_goes(world: World) -> None:
    """No member of a snapshot tells who owns a session, so the events change nothing of it."""
    client = world.create(liveness=OWNED, start=True)
    with replay_law(client.session_id):
        owner = world.attach(client.session_id, "owner_read_write")
    with replay_law(client.session_id):
        world.disconnect(owner)
    with replay_law(client.session_id):
        back = world.attach(client.session_id, "owner_read_write", by=world.client())
    with replay_law(client.session_id):
        world.detach(back)


def test_the_owner_does_not_come_back(timed_world: World) -> None:
    client = timed_world.create(liveness=OWNED, start=True)
    owner = timed_world.attach(client.session_id, "owner_read_write")
    claim = timed_world.turn(owner)
    timed_world.disconnect(owner)
    timed_world.clock.advance(seconds=2)
    with replay_law(client.session_id, STATE):
        sweep.expire_owners()
        timed_world.finish(claim, outcome="completed")


def test_a_session_that_cannot_be_loaded(world: World) -> None:
    """It is told of, and that is all: only a session that enters `failed` has a failure to show."""
    client = world.idle()
    with replay_law(client.session_id, STATE, HISTORY):
        world.send(client)
    operation_id = world.session(client.session_id).active_operation_id or ""
    with replay_law(client.session_id, STATE):
        operations.fail_unloadable(
            client.session_id, operation_id, PromptUnavailable("the prompt is damaged")
        )


# Messages and turns


def test_a_message_starts_a_turn_or_waits(world: World) -> None:
    client = world.idle()
    with replay_law(client.session_id, STATE, HISTORY):
        world.send(client, "one")
    with replay_law(client.session_id, DEFERRED):
        world.send(client, "two")
    with replay_law(client.session_id, STATE):
        claim = world.claim(client)
    with replay_law(client.session_id, DEFERRED):
        world.send(client, "three")
    # The end, and the turn that follows for what waited.
    with replay_law(client.session_id, STATE, HISTORY, DEFERRED):
        world.finish(claim, "answer")


def test_what_waits_is_adopted_before_a_new_message(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    world.send(client, "two")
    with replay_law(client.session_id, STATE):
        world.finish(claim, outcome="interrupted", interruption="worker_lost")
    with replay_law(client.session_id, STATE, HISTORY, DEFERRED):
        world.send(client, "three")


@pytest.mark.parametrize("outcome", ["completed", "failed", "interrupted", "cancelled"])
def test_every_end_of_a_turn(world: World, outcome: str) -> None:
    client = world.idle()
    claim = world.turn(client)
    with replay_law(client.session_id, STATE, HISTORY):
        world.finish(
            claim,
            "answer",
            outcome=outcome,
            streamed=(StreamedItem(claim.first_number + 9, "msg_2", "and half of another"),),
            error=to_error(InternalError("no")) if outcome == "failed" else None,
            interruption="worker_lost" if outcome == "interrupted" else "",
        )


def test_every_step_of_a_turn(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    world.send(client, "later")
    with replay_law(client.session_id, HISTORY):
        operations.commit_said(claim, [assistant("I look.", claim.first_number)])
    with replay_law(client.session_id):
        operations.save_streamed([(claim, [StreamedItem(claim.first_number + 9, "msg_2", "half")])])
    with replay_law(client.session_id):
        operations.reserve_numbers(claim)
    with replay_law(client.session_id, HISTORY):
        world.propose(claim, "run", "deny", "run")
    with replay_law(client.session_id):
        world.advance(claim, (2, "second output"))
    # The prefix is complete: all outputs, and what waited for the safe point.
    with replay_law(client.session_id, HISTORY, DEFERRED):
        world.advance(claim, (0, "first output"))
    with replay_law(client.session_id, STATE, HISTORY):
        world.finish(claim, "done")


def test_cancel_held_and_not_held(world: World) -> None:
    client = world.idle()
    with replay_law(client.session_id, STATE, HISTORY):
        world.send(client)
    with replay_law(client.session_id, STATE):
        world.cancel(client)
    claim = world.turn(client)
    world.propose(claim, "run")
    with replay_law(client.session_id, STATE):
        world.cancel(client)
    with replay_law(client.session_id):
        world.cancel(client)
    with replay_law(client.session_id, STATE, HISTORY):
        world.finish(claim, outcome="cancelled")


def test_the_worker_is_lost(world: World) -> None:
    client = world.idle()
    lost = world.new_process("worker")
    claim = world.turn(client)
    world.propose(claim, "run")
    operations.save_streamed([(claim, [StreamedItem(claim.first_number + 9, "msg_2", "half")])])
    world.job(client.session_id, "running")
    world.schedule(client.session_id, "delivering")
    world.new_process("worker")
    world.let_die(lost)
    with replay_law(client.session_id, STATE, HISTORY, "jobs", "schedules"):
        recovery.end_dead_processes()
    assert processes.expired() == []


# Histories replaced. What a reset, a rebuild and an upgrade change is told in tests/sessions_app/commands.


@pytest.mark.parametrize("outcome", ["completed", "failed", "interrupted", "cancelled"])
def test_a_compaction(world: World, outcome: OperationOutcome) -> None:
    client = world.idle()
    world.finish(world.turn(client), "answer")
    with replay_law(client.session_id, STATE):
        world.compact(client)
    with replay_law(client.session_id, STATE):
        claim = world.claim(client)
    with replay_law(client.session_id, STATE, *([HISTORY] if outcome == "completed" else [])):
        if outcome == "completed":
            compaction.complete(claim, user_message("summary"), archives.write(client.session_id))
        else:
            error = to_error(InternalError("no")) if outcome == "failed" else None
            world.finish(claim, outcome=outcome, error=error, interruption="worker_lost")


# Permissions and grants


def _asking(world: World, **profile: object) -> tuple[Client, Claim]:
    """Return a turn of a session whose profile asks."""
    content = {"tool_default": "ask", "unattended": "wait", **profile}
    client = world.idle(prompt=world.prompt(profile=world.profile(**content)))
    return client, world.turn(client)


@pytest.mark.parametrize(
    ("choice", "grants_made"),
    [
        ("approve_once", []),
        ("approve_session", ["grants"]),
        ("approve_prefix", ["grants"]),
        ("durable_exact", ["grants"]),
        ("deny", []),
    ],
)
def test_a_request_is_opened_and_answered(
    world: World, choice: PermissionChoice, grants_made: list[str]
) -> None:
    client, claim = _asking(world)
    with replay_law(client.session_id, STATE, HISTORY, "permissions"):
        world.propose(claim, "write", "write", gate=PermissionGate())
    first, second = reversed(snapshot(client.session_id).permissions)
    with replay_law(client.session_id, STATE, "permissions", *grants_made):
        _respond(world, client, first.id, choice)
    with replay_law(client.session_id, STATE, "permissions"):
        _respond(world, client, second.id, "approve_once")
    again = world.claim(client)
    with replay_law(client.session_id, *([HISTORY] if choice == "deny" else [])):
        world.advance(again)


def _respond(world: World, client: Client, permission_id: str, choice: PermissionChoice) -> None:
    call = world.call(client.caller, "permission.respond")
    requests.respond(call, client.session_id, permission_id, generation=0, choice=choice)


@pytest.mark.parametrize("fallback", ["allow", "deny"])
def test_a_request_expires(timed_world: World, fallback: str) -> None:
    world = timed_world
    client, claim = _asking(world, approval_timeout_ms=50, approval_fallback=fallback)
    with replay_law(client.session_id, STATE, HISTORY, "permissions"):
        world.propose(claim, "write", gate=PermissionGate())
    world.clock.advance(seconds=1)
    with replay_law(client.session_id, STATE, "permissions"):
        sweep.expire_requests()


@pytest.mark.parametrize("how", ["cancel", "stop"])
def test_a_request_ends_with_its_operation(world: World, how: str) -> None:
    client, claim = _asking(world)
    world.propose(claim, "write", "write", gate=PermissionGate())
    with replay_law(client.session_id, STATE, HISTORY, "permissions"):
        world.cancel(client) if how == "cancel" else world.stop(client, "cancel")


def test_a_grant_is_revoked(world: World) -> None:
    client, claim = _asking(world)
    world.propose(claim, "write", gate=PermissionGate())
    (request,) = snapshot(client.session_id).permissions
    _respond(world, client, request.id, "approve_session")
    (grant,) = snapshot(client.session_id).grants
    with replay_law(client.session_id, "grants"):
        grants.revoke_grant(world.call(client.caller, "grant.revoke"), client.session_id, grant.id, "enough")


# Leases, jobs and schedules


def test_a_lease_is_renewed(world: World) -> None:
    """No member of a snapshot tells of it; see above."""
    owner = world.create(mode="owner_read_write", liveness=OWNED)
    with replay_law(owner.session_id):
        attachments.renew_owner(world.call(owner.caller, "session.renew_owner"), owner.session_id, 1)


@pytest.mark.parametrize("status", ["queued", "running", "waiting_permission", "interrupted"])
def test_a_job_is_cancelled(world: World, status: str) -> None:
    client = world.create()
    job = world.job(client.session_id, status)
    for changed in (["jobs"], []):
        with replay_law(client.session_id, *changed):
            jobs.cancel_job(world.call(client.caller, "job.cancel"), client.session_id, job.id)


@pytest.mark.parametrize("end", ["cancelled", "failed", "missed"])
def test_a_schedule_is_made_and_ends(world: World, end: str) -> None:
    client = world.create()
    with replay_law(client.session_id, "schedules"):
        made = schedules.create_schedule(
            world.call(client.caller, "schedule.create"),
            client.session_id,
            b'{"say": "hello"}',
            ScheduleDueAfterMs(delay_ms=0),
            "skip_if_expired",
        )
    named = client.session_id, made.schedule.id
    with replay_law(client.session_id, "schedules"):
        if end == "cancelled":
            schedules.cancel_schedule(world.call(client.caller, "schedule.cancel"), *named)
        else:
            long_ago = world.clock() - timedelta(days=1)
            assert schedules.deliver(*named, world.clock() if end == "missed" else long_ago)
