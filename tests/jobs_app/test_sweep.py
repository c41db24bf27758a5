"""The sweep: its lease, each of its steps, and what maintenance removes (behaviour 14.2, 11.5, 8.4, 4.2, 13)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from jobs_app import sweep
from permissions_app.decisions import PermissionGate
from permissions_app.models import AuditRecord, PermissionRequest
from sessions_app import clock, erasure, ids, ledger, limits, participants, processes, receipts
from sessions_app.callers import system
from sessions_app.events import ModeratorNotificationPayload
from sessions_app.limits import ServerSettings
from sessions_app.models import (
    Blob,
    HistoryEntry,
    Operation,
    Process,
    Receipt,
    Session,
    SessionEvent,
    SweepLease,
    WorkspaceInstance,
)
from sessions_app.participants import Participant
from sessions_app.records import StopMode
from tests.support.world import Client, World, together

LEASE = timedelta(milliseconds=limits.server().sweep_lease_ms)
GAP = timedelta(milliseconds=limits.server().misfire_gap_ms)


# The lease


def test_one_process_sweeps(timed_world: World) -> None:
    """14.2: "a lease row (`sweep_lease_ms`) lets one of them act"."""
    world = timed_world
    assert sweep.take_lease()
    assert sweep.take_lease()
    holder = processes.current_id()
    world.new_process()
    assert not sweep.take_lease()
    world.clock.advance(seconds=LEASE.total_seconds() + 1)
    assert sweep.take_lease()
    assert SweepLease.objects.get().process_id == processes.current_id() != holder


def test_the_holder_keeps_the_lease_by_using_it(timed_world: World) -> None:
    world = timed_world
    assert sweep.take_lease()
    for _ in range(4):
        world.clock.advance(seconds=LEASE.total_seconds() * 0.6)
        assert sweep.take_lease()


def test_a_lease_that_is_given_up_is_free_at_once(world: World) -> None:
    assert sweep.take_lease()
    sweep.give_up_lease()
    world.new_process()
    assert sweep.take_lease()


def test_only_the_holder_gives_the_lease_up(world: World) -> None:
    assert sweep.take_lease()
    world.new_process()
    sweep.give_up_lease()
    assert not sweep.take_lease()


@pytest.mark.parametrize(("away", "covered"), [(LEASE + GAP / 2, True), (LEASE + GAP + LEASE, False)])
def test_a_long_gap_is_remembered(timed_world: World, away: timedelta, covered: bool) -> None:
    """10.2: "Overdue = no live sweep lease covered the due time, in a gap longer than `misfire_gap_ms`"."""
    world = timed_world
    sweep.take_lease()
    since = SweepLease.objects.get().covered_since
    world.clock.advance(seconds=away.total_seconds())
    assert sweep.take_lease()
    assert (SweepLease.objects.get().covered_since == since) is covered


def test_processes_race_for_the_lease(committed_world: World) -> None:
    """One row, made once, by whoever is first: all threads here are one process, and every one of them holds it."""
    assert together(*[sweep.take_lease] * 4) == [True] * 4
    assert SweepLease.objects.count() == 1
    sweep.give_up_lease()
    committed_world.new_process()
    assert together(*[sweep.take_lease] * 4).count(True) >= 1


# Turns that nobody took


@pytest.fixture
def lost(timed_world: World) -> tuple[Client, str]:
    """A turn whose message was lost a while ago, and a worker that could run it."""
    world = timed_world
    client = world.idle()
    sent = world.send(client)
    world.clock.advance(seconds=2)
    world.other_process("worker")
    world.dispatched.operations.clear()
    return client, sent.operation_id or ""


def test_a_turn_that_nobody_claimed_is_handed_over_again(
    timed_world: World, lost: tuple[Client, str]
) -> None:
    """14.2: "queues for the workers what is due: turns that were committed and never claimed"."""
    sweep.dispatch_unclaimed()
    assert timed_world.dispatched.operations == [lost[1]]


def test_a_message_on_its_way_is_waited_for(timed_world: World) -> None:
    world = timed_world
    world.other_process("worker")
    world.send(world.idle())
    world.dispatched.operations.clear()
    sweep.dispatch_unclaimed()
    assert world.dispatched.operations == []


def test_nothing_is_handed_over_where_nobody_takes_it(timed_world: World, lost: tuple[Client, str]) -> None:
    """A queue that no worker reads must not grow by a message per turn and second."""
    for row in list(_workers()):
        timed_world.let_die(row)
    sweep.dispatch_unclaimed()
    assert timed_world.dispatched.operations == []
    timed_world.other_process("local")
    sweep.dispatch_unclaimed()
    assert timed_world.dispatched.operations == [lost[1]], "the embedded host runs turns itself"


def _workers() -> list[str]:
    return list(Process.objects.filter(kind="worker").values_list("id", flat=True))


def test_messages_about_one_turn_grow_rare(timed_world: World, lost: tuple[Client, str]) -> None:
    world = timed_world
    world.clock.advance(seconds=0)
    for _ in range(60):
        sweep.dispatch_unclaimed()
        world.clock.advance(milliseconds=100)
    assert 2 <= len(world.dispatched.operations) <= 4, "at once, then after one second, two, four"


@pytest.mark.parametrize("state", ["claimed", "parked", "ended"])
def test_only_what_waits_for_a_worker_is_handed_over(
    timed_world: World, lost: tuple[Client, str], state: str
) -> None:
    world, client = timed_world, lost[0]
    claim = world.claim(client)
    if state == "parked":
        world.propose(claim, "ask")
    if state == "ended":
        world.finish(claim)
    world.clock.advance(seconds=2)
    sweep.dispatch_unclaimed()
    assert world.dispatched.operations == []


def test_an_unclaimed_turn_that_was_cancelled_is_ended(timed_world: World, lost: tuple[Client, str]) -> None:
    """6.6: no worker holds it: whoever finds it ends it. The row is made by hand: commands end theirs themselves."""
    client, operation_id = lost
    Operation.objects.filter(id=operation_id).update(state="cancelling")
    with timed_world.telling(client) as story:
        sweep.dispatch_unclaimed()
    assert story == [["operation.cancelled", "moderator.notification", "state running/idle"]]


def test_turns_that_nobody_takes_hide_none_behind_them(timed_world: World, lost: tuple[Client, str]) -> None:
    """Bounded per pass, but the oldest are not asked about for ever while later ones starve."""
    world, (client, first) = timed_world, lost
    old = Operation.objects.get(id=first)
    for number in range(sweep.BATCH + 5):
        old.pk, old.updated_at = f"op_{number:04}", old.updated_at + timedelta(microseconds=1)
        old.save(force_insert=True)
    world.break_laws()
    sweep.dispatch_unclaimed()
    assert len(world.dispatched.operations) == sweep.BATCH
    sweep.dispatch_unclaimed()
    assert len(set(world.dispatched.operations)) == sweep.BATCH + 6
    assert world.states(client) == ("running", "running_turn")


# Owners, requests, audit


def test_owners_are_expired_whatever_else_fails(timed_world: World) -> None:
    """14.2: "expires … owner leases"; a session that is gone or busy does not stop those behind it."""
    world = timed_world
    owners = [world.idle(mode="owner_read_write", liveness=world.owner_bound(0)) for _ in range(3)]
    for owner in owners:
        world.disconnect(owner)
    Session.objects.filter(id=owners[0].session_id).update(archived_at=clock.now())
    sweep.run_due()
    assert [world.states(owner)[1] for owner in owners] == ["idle", "stopped", "stopped"]


def test_requests_are_expired(timed_world: World) -> None:
    """14.2: "It … expires permissions"; 7.2: "at expiry the fallback choice is applied as an ordinary resolution"."""
    world = timed_world
    world.prompt(profile=world.profile(tool_default="ask", approval_timeout_ms=5000, unattended="wait"))
    client = world.idle()
    world.propose(world.turn(client), "write", gate=PermissionGate())
    assert sweep.next_due() == PermissionRequest.objects.get().expires_at
    sweep.run_due()
    assert PermissionRequest.objects.get().state == "pending"
    world.clock.advance(seconds=6)
    with world.telling(client) as story:
        sweep.run_due()
    assert story == [["permission.resolved denied", "state running/running_turn"]]


def test_audit_records_are_chained(world: World) -> None:
    """14.2: "chains audit records"."""
    world.create()
    sweep.run_due()
    assert not AuditRecord.objects.filter(sequence=None).exists()


class Broken(Participant):
    """A participant with a fault, for one session."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id

    def on_stop(self, txn: ledger.Txn, mode: StopMode) -> None:
        """Fail."""
        if txn.session.id == self._session_id:
            raise LookupError


def test_a_fault_stops_neither_the_sessions_nor_the_steps_behind_it(timed_world: World) -> None:
    """14.2: each step is bounded and tried again: what is broken must not keep the rest."""
    world = timed_world
    broken, sound = (world.idle(mode="owner_read_write", liveness=world.owner_bound(0)) for _ in range(2))
    for owner in (broken, sound):
        world.disconnect(owner)
    participants.install((*participants.installed(), Broken(broken.session_id)), world.dispatched)
    sweep.run_due()
    assert (world.states(broken)[1], world.states(sound)[1]) == ("idle", "stopped")
    assert not AuditRecord.objects.filter(sequence=None).exists()


# Maintenance


def test_expired_receipts_are_pruned(timed_world: World) -> None:
    """11.5: "Maintenance prunes expired **standard** receipts; protected ones are never pruned by it"."""
    world = timed_world
    client = world.idle()
    world.send(client, key="protected")
    world.stop(client, key="standard")
    receipts.open_pending(world.call(client.caller, "session.start", "abandoned"), client.session_id)
    world.clock.advance(hours=23)
    world.start(client, key="young")
    sweep.maintain()
    assert Receipt.objects.filter(key__in=["protected", "standard", "abandoned", "young"]).count() == 4
    world.clock.advance(hours=2)
    sweep.maintain()
    assert set(Receipt.objects.values_list("key", flat=True)) & {"standard", "abandoned"} == set()
    assert set(Receipt.objects.values_list("key", flat=True)) >= {"protected", "young"}


def log_of(world: World, count: int) -> Client:
    client = world.create()
    for _ in range(count):
        with ledger.session_txn(client.session_id, system("test")) as txn:
            txn.emit("moderator.notification", ModeratorNotificationPayload(message="x"))
    return client


def test_events_that_no_replay_may_use_are_pruned(world: World) -> None:
    """8.4: "The replay window is the last `max_events_per_session`… Older rows are removed later, in batches"."""
    kept = log_of(world, 5)
    with limits.using(ServerSettings(max_events_per_session=3)):
        trimmed = log_of(world, 5)
    assert len(world.events(trimmed.session_id)) == 6
    sweep.maintain()
    assert [event.sequence for event in world.events(trimmed.session_id)] == [4, 5, 6]
    assert len(world.events(kept.session_id)) == 6


def test_maintenance_removes_more_than_one_statement_may(world: World) -> None:
    """14.2: each statement removes a bounded number of rows; one pass removes what a busy minute left."""
    client = world.create()
    world.break_laws()
    count = erasure.PURGED_AT_ONCE + 10
    SessionEvent.objects.bulk_create(
        SessionEvent(
            session_id=client.session_id, sequence=number, revision=1, at=clock.now(), kind="x", payload=b"{}"
        )
        for number in range(2, count)
    )
    Session.objects.update(oldest_sequence=count - 1)
    sweep.prune_events()
    assert SessionEvent.objects.count() == 1


def test_uploads_that_nobody_took_are_removed(timed_world: World) -> None:
    """13: "TTL 1 h for temporary ones; removed by the 60 s maintenance; adopting into a session removes the expiry"."""
    world = timed_world
    client = world.create()

    def blob(**options: Any) -> str:
        made = Blob.objects.create(
            id=ids.new_id("blb"),
            kind="file",
            media_type="x",
            byte_length=0,
            sha256="",
            created_at=clock.now(),
            **options,
        )
        return made.id

    taken = blob(session_id=client.session_id)
    young = blob(expires_at=clock.after(3_600_000))
    blob(expires_at=clock.after(-1000))
    sweep.maintain()
    assert set(Blob.objects.values_list("id", flat=True)) == {taken, young}


@pytest.mark.parametrize("cleanup", ["on_session_delete", "on_session_stop", "retain"])
def test_transient_sessions_are_erased_once_they_stopped(world: World, cleanup: str) -> None:
    """4.2: transient sessions: "delete them when they stop"; 3.2: the workspace's folder "deleted only when server-created, …policy
    allows"."""
    definition = world.temporary()
    type(definition).objects.update(cleanup=cleanup)
    durable = world.create()
    gone, stays = (
        world.idle(transient=True, liveness=world.owner_bound(), workspace=definition) for _ in range(2)
    )
    world.finish(world.turn(gone), "done")
    world.stop(gone)
    folder = world.folder_of(gone.session_id)
    assert folder.exists()
    sweep.maintain()
    left = set(Session.objects.values_list("id", flat=True))
    assert left == {durable.session_id, stays.session_id}
    assert not HistoryEntry.objects.filter(session_id=gone.session_id).exists()
    assert folder.exists() is (cleanup == "retain")
    assert WorkspaceInstance.objects.count() == 2
    assert Receipt.objects.filter(session_id=gone.session_id).exists(), "11.3: receipts outlive their session"
