"""Owner leases of owner-bound sessions: every row of the table in behaviour 5.3."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pytest_django import Settings

from jobs_app import sweep
from sessions_app import leases, limits
from sessions_app.commands import attachments
from sessions_app.commands.attachments import Renewed
from sessions_app.errors import (
    Conflict,
    InvalidRequest,
    InvalidState,
    LeaseStale,
    PermissionDenied,
    SessionNotFound,
)
from sessions_app.limits import ServerSettings
from sessions_app.models import Attachment, Session
from sessions_app.records import AttachmentMode, LivenessOwnerBound, StopMode
from sessions_app.summaries import lease_record
from tests.support.replay_law import replay_law
from tests.support.waiting import until
from tests.support.world import Client, World, together

GRACE_MS = 10_000


def owned(
    world: World,
    *,
    start: bool = True,
    stop_mode: StopMode = "graceful",
    transient: bool = False,
    who: str = "ann",
) -> Client:
    """Create an owner-bound session and be its owner."""
    liveness = LivenessOwnerBound(disconnect_grace_ms=GRACE_MS, stop_mode=stop_mode)
    return world.create(
        by=world.client(who), mode="owner_read_write", start=start, liveness=liveness, transient=transient
    )


def lease(world: World, client: Client) -> Session:
    return world.session(client.session_id)


def reclaim(world: World, client: Client, who: str = "ann", token: str | None = None) -> Client:
    """Attach as owner again, over a new connection; others than the creator see the session as administrators."""
    by = world.client(who) if who == "ann" else world.client(who, scopes=frozenset({"configuration.admin"}))
    return world.attach(client.session_id, "owner_read_write", by=by, token=token)


def renew(world: World, client: Client, generation: int = 1, key: str | None = None) -> Renewed:
    call = world.call(client.caller, "session.renew_owner", key)
    return attachments.renew_owner(call, client.session_id, generation)


# Getting it


def test_an_owner_attach_takes_the_lease(timed_world: World) -> None:
    """5.2: "Owner attach: event `attachment.owner_changed` carrying the attachment"; 5.3: "Duration 60 s", generation +1."""
    world = timed_world
    owner = owned(world)
    row = lease(world, owner)
    assert world.story(owner) == [["session.created"], ["owner"]]
    assert (row.owner_attachment, row.owner_principal, row.lease_generation) == (
        owner.attachment_id,
        "pri_ann",
        1,
    )
    assert row.lease_expires_at is not None
    assert row.lease_grace_until is None
    left = row.lease_expires_at - world.clock()
    assert timedelta(seconds=59) < left <= timedelta(seconds=60)


def test_the_token_is_stored_as_a_digest_and_can_be_given_again(world: World) -> None:
    """5.3: "A reclaim token is HMAC(server key, attachment ID)… and is stored only as digest"."""
    owner = owned(world)
    row = lease(world, owner)
    token = leases.reclaim_token(owner.attachment_id)
    assert leases.held_token(row, owner.attachment_id) == token
    assert token.encode() not in bytes(row.reclaim_digest or b"")
    assert leases.held_token(row, "att_other") is None


def test_there_is_one_owner_at_a_time(world: World) -> None:
    """5.3: "second owner while connected | `conflict`", the creator's own second connection included."""
    owner = owned(world)
    before = world.counters(owner)
    for who in ("ann", "bob"):
        with pytest.raises(Conflict):
            reclaim(world, owner, who)
    with pytest.raises(Conflict):
        reclaim(world, owner, token=leases.reclaim_token(owner.attachment_id))
    assert world.counters(owner) == before


def test_others_attach_beside_the_owner(world: World) -> None:
    """5.3: "A read/write client never keeps an owner-bound session alive", and takes no lease."""
    owner = owned(world)
    with world.telling(owner) as story:
        world.attach(owner.session_id, "read_write")
    assert story == []
    assert lease(world, owner).owner_attachment == owner.attachment_id


def test_a_session_without_any_owner_lives_on(timed_world: World) -> None:
    """5.3: "An owner-bound session to which no owner has ever attached has no timer and keeps living"."""
    world = timed_world
    liveness = LivenessOwnerBound(disconnect_grace_ms=0, stop_mode="cancel")
    writer = world.idle(liveness=liveness)
    world.detach(writer)
    world.clock.advance(days=1)
    assert sweep.next_due() is None
    sweep.expire_owners()
    assert world.states(writer) == ("running", "idle")


# Keeping it


def test_renewing_moves_the_lease_on(timed_world: World) -> None:
    """5.3: "renew ok | generation +1, expiry = now + 60 s, same reclaim token; event owner_changed(attachment)"; E6."""
    world = timed_world
    owner = owned(world)
    before = lease(world, owner)
    world.clock.advance(seconds=30)
    with world.telling(owner) as story, replay_law(owner.session_id):
        renewed = renew(world, owner)

    assert story == [["owner"]]
    row = lease(world, owner)
    assert renewed.owner_lease == lease_record(row)
    assert (renewed.revision, renewed.latest_event_sequence) == world.counters(owner)
    assert (row.revision, row.latest_sequence) == (before.revision + 1, before.latest_sequence + 1)
    assert (row.lease_generation, row.reclaim_digest) == (2, before.reclaim_digest)
    assert row.lease_expires_at is not None
    assert timedelta(seconds=59) < row.lease_expires_at - world.clock() <= timedelta(seconds=60)
    world.clock.advance(seconds=50)
    expire(world)
    assert lease(world, owner).owner_attachment == owner.attachment_id


def test_a_renewal_is_of_the_present_generation(world: World) -> None:
    """5.3: "renew: generation differs | `lease_stale`"; 11.3: the same key replays."""
    owner = owned(world)
    first = renew(world, owner, 1, "k")
    for generation in (0, 1, 3):
        with pytest.raises(LeaseStale):
            renew(world, owner, generation)
    assert renew(world, owner, 1, "k") == first
    assert lease(world, owner).lease_generation == 2
    assert renew(world, owner, 2).owner_lease.generation == 3


def test_a_lease_that_expired_is_not_renewed(timed_world: World) -> None:
    """5.3: "renew: in grace, or expired | `lease_stale`", before any sweep has seen it."""
    world = timed_world
    owner = owned(world)
    world.clock.advance(seconds=61)
    before = world.counters(owner)
    with pytest.raises(LeaseStale):
        renew(world, owner)
    assert world.counters(owner) == before


def test_a_lease_in_grace_is_not_renewed(world: World) -> None:
    """5.3, as above: the attachment that its owner let go of is no way back, even if its connection still knew it."""
    owner = owned(world)
    world.detach(owner)
    with pytest.raises(PermissionDenied):
        renew(world, owner)
    Attachment.objects.filter(id=owner.attachment_id).update(connection_id=owner.connection_id)
    with pytest.raises(LeaseStale):
        renew(world, owner)


@pytest.mark.parametrize("mode", ["read_only", "read_write"])
def test_others_do_not_renew(world: World, mode: AttachmentMode) -> None:
    """5.3: "renew by non-owner attachment | `permission_denied`; on a read-only one too"."""
    owner = owned(world)
    other = world.attach(owner.session_id, mode)
    with pytest.raises(PermissionDenied):
        renew(world, other)


def test_what_has_no_lease_cannot_be_renewed(world: World) -> None:
    """5.3: "renew by an owner_read_write attachment that has no lease (detached session) | `invalid_state`"; 5.5: whose
    attachment it is counts before."""
    plain = world.create(mode="owner_read_write")
    with pytest.raises(InvalidState):
        renew(world, plain, 0)
    foreign = world.call(world.create().caller, "session.renew_owner")
    with pytest.raises(PermissionDenied):
        attachments.renew_owner(foreign, plain.session_id, 0)


# Losing it


@pytest.mark.parametrize("how", ["detach", "disconnect"])
def test_an_owner_who_leaves_has_its_grace(timed_world: World, how: str) -> None:
    """5.3: "owner detach or connection loss | grace = min(now + grace_ms, expires_at); event owner_changed(none); attachment kept
    as disconnected"."""
    world = timed_world
    owner = owned(world)
    with world.telling(owner) as story:
        world.detach(owner) if how == "detach" else world.disconnect(owner)
    assert story == [["owner none"]]
    row = lease(world, owner)
    assert row.lease_grace_until is not None
    left = row.lease_grace_until - world.clock()
    assert timedelta(milliseconds=GRACE_MS - 1000) < left <= timedelta(milliseconds=GRACE_MS)
    kept = Attachment.objects.filter(connection=None, process=None)
    assert [row.id for row in kept] == [owner.attachment_id]
    assert world.states(owner) == ("running", "idle")


def test_grace_never_outlasts_the_lease(timed_world: World) -> None:
    """5.3: "grace = min(now + grace_ms, expires_at)"."""
    world = timed_world
    owner = owned(world)
    world.clock.advance(seconds=55)
    world.detach(owner)
    row = lease(world, owner)
    assert row.lease_grace_until == row.lease_expires_at


def test_the_loss_is_told_once(world: World) -> None:
    """5.6: connection loss behind a detach, or a second sweep of a dead process, finds the grace running."""
    owner = owned(world)
    world.detach(owner)
    with world.telling(owner) as story:
        world.disconnect(owner)
    assert story == []


def test_what_runs_goes_on_during_the_grace(world: World) -> None:
    """5.6: "running turn, jobs, schedules | go on during grace"; pending messages of writers are taken."""
    owner = owned(world)
    writer = world.attach(owner.session_id)
    claim = world.turn(writer)
    world.disconnect(owner)
    world.send(writer, "more")
    world.finish(claim, "done")
    assert world.states(owner) == ("running", "running_turn")


def test_mutations_of_an_owner_whose_lease_expired_are_stale(timed_world: World) -> None:
    """5.3: "any mutation by an owner in grace or expired | `lease_stale`", before any sweep has seen it."""
    world = timed_world
    owner = owned(world)
    world.clock.advance(seconds=61)
    with pytest.raises(LeaseStale):
        world.send(owner)


# Its end


def expire(world: World) -> None:
    """Let the sweep do what is due, as often as it likes."""
    sweep.expire_owners()
    sweep.expire_owners()


@pytest.mark.parametrize("stop_mode", ["graceful", "cancel"])
def test_after_the_grace_the_session_stops_by_its_mode(timed_world: World, stop_mode: StopMode) -> None:
    """5.3: "deadline passes | attachment removed, owner_changed(none), then stop with the session's stop mode"."""
    world = timed_world
    owner = owned(world, stop_mode=stop_mode)
    claim = world.turn(owner)
    world.disconnect(owner)
    world.clock.advance(milliseconds=GRACE_MS + 1000)
    with world.telling(owner) as story:
        expire(world)

    assert story == [["owner none"], ["state stopped/running_turn"]]
    assert not Attachment.objects.filter(id=owner.attachment_id).exists()
    row = lease(world, owner)
    assert (row.owner_attachment, row.owner_principal, row.lease_expires_at, row.lease_grace_until) == (
        "",
        "",
        None,
        None,
    )
    assert row.reclaim_digest is None
    assert row.active_operation is not None
    assert row.active_operation.state == ("cancelling" if stop_mode == "cancel" else "running")
    world.finish(claim, "done")
    assert world.states(owner) == ("stopped", "stopped")


def test_an_idle_session_stops_at_once(timed_world: World) -> None:
    """E12: "grace 150 ms, owner leaves: desired and observed stopped soon; an observer's connection is irrelevant"."""
    world = timed_world
    owner = owned(world)
    world.attach(owner.session_id, "read_only")
    world.disconnect(owner)
    world.clock.advance(milliseconds=GRACE_MS + 1000)
    with world.telling(owner) as story:
        expire(world)
    assert story == [["owner none"], ["state stopped/stopped"]]


def test_a_lease_that_expires_while_connected_is_lost_and_ended(timed_world: World) -> None:
    """5.3: "lease expires unrenewed while connected | marked lost, grace capped at the already passed expiry, so the stop follows
    at once (two owner_changed(none) events)"."""
    world = timed_world
    owner = owned(world)
    world.clock.advance(seconds=61)
    with world.telling(owner) as story:
        expire(world)
    assert story == [["owner none"], ["owner none"], ["state stopped/stopped"]]


def test_an_owner_that_was_dropped_is_no_longer_active(timed_world: World) -> None:
    """5.5: "attachment live in the session → else `invalid_request`", for as long as its connection names it; 5.4: a detach
    "removes it from connection and session", where it is no change any more."""
    world = timed_world
    owner = owned(world)
    world.clock.advance(seconds=61)
    expire(world)
    assert attachments.gone([owner.attachment_id]) == {owner.attachment_id}
    with limits.using(ServerSettings(max_attachments_per_session=1)):
        world.attach(owner.session_id)
    for act in (world.start, world.send, lambda client: renew(world, client)):
        with pytest.raises(InvalidRequest):
            act(owner)
    before = world.counters(owner)
    world.detach(owner)
    assert world.counters(owner) == before
    with pytest.raises(PermissionDenied):
        world.start(owner)


def test_nothing_expires_early(timed_world: World) -> None:
    """5.3: "Timers are only wake-ups; every decision re-reads the stored lease"."""
    world = timed_world
    owner = owned(world)
    world.clock.advance(seconds=50)
    expire(world)
    assert lease(world, owner).owner_attachment == owner.attachment_id
    due = sweep.next_due()
    assert due == lease(world, owner).lease_expires_at
    world.disconnect(owner)
    assert sweep.next_due() == lease(world, owner).lease_grace_until


def test_a_transient_session_is_dropped_when_its_owner_is_gone(timed_world: World) -> None:
    """4.2: "when everything died, the expired owner lease stops them" and "delete them when they stop"."""
    world = timed_world
    owner = owned(world, transient=True)
    world.disconnect(owner)
    world.clock.advance(milliseconds=GRACE_MS + 1000)
    with pytest.raises(SessionNotFound):
        reclaim(world, owner)
    expire(world)
    assert lease(world, owner).archived_at is not None


# Getting it back


def test_the_principal_reclaims_in_grace(world: World) -> None:
    """5.3: "reclaim in grace | allowed if caller's principal ID equals the lease principal… New attachment ID, generation +1, **new
    token**; old token dead"."""
    owner = owned(world)
    world.disconnect(owner)
    with world.telling(owner) as story:
        again = reclaim(world, owner)

    assert story == [["owner"]]
    row = lease(world, owner)
    assert again.attachment_id != owner.attachment_id
    assert (row.owner_attachment, row.lease_generation, row.lease_grace_until) == (
        again.attachment_id,
        2,
        None,
    )
    assert leases.held_token(row, owner.attachment_id) is None
    assert leases.held_token(row, again.attachment_id) is not None
    assert not Attachment.objects.filter(id=owner.attachment_id).exists()
    world.send(again)


def test_the_token_reclaims_for_anybody_and_changes(world: World) -> None:
    """E9, E10: "owner closes; other principal reclaims with the token: ok; new token ≠ old; generation higher. Third principal
    tries the old token, then the new one: `permission_denied`, then ok"."""
    owner = owned(world)
    world.disconnect(owner)
    first = leases.reclaim_token(owner.attachment_id)
    second_owner = reclaim(world, owner, "bob", token=first)
    second = leases.reclaim_token(second_owner.attachment_id)
    world.disconnect(second_owner)
    for token in (first, None, ""):
        with pytest.raises(PermissionDenied):
            reclaim(world, owner, "carol", token=token)
    assert second != first
    third_owner = reclaim(world, owner, "carol", token=second)
    assert lease(world, owner).owner_attachment == third_owner.attachment_id
    assert lease(world, owner).lease_generation == 3


def test_the_principal_of_the_lease_counts_not_the_creator(world: World) -> None:
    """5.3: "equals the lease principal (or the creator if none)"."""
    owner = owned(world)
    world.disconnect(owner)
    bob = reclaim(world, owner, "bob", token=leases.reclaim_token(owner.attachment_id))
    world.disconnect(bob)
    with pytest.raises(PermissionDenied):
        reclaim(world, owner, "ann")
    Session.objects.filter(id=owner.session_id).update(owner_principal="")
    assert reclaim(world, owner, "ann").attachment_id


def test_nobody_in_particular_is_no_owner(world: World) -> None:
    """2.6: "A session without creator is visible to shares and admins only": being nobody is no claim on it."""
    owner = owned(world)
    world.disconnect(owner)
    Session.objects.filter(id=owner.session_id).update(owner_principal="", creator="")
    with pytest.raises(PermissionDenied):
        leases.check_takeover(lease(world, owner), "", None)


def test_a_reclaim_after_the_deadline_first_stops_the_session(timed_world: World) -> None:
    """5.3: "reclaim after the deadline | the expiry is processed first (session stops), then a plain owner attach succeeds"."""
    world = timed_world
    owner = owned(world)
    world.disconnect(owner)
    world.clock.advance(milliseconds=GRACE_MS + 1000)
    with world.telling(owner) as story:
        reclaim(world, owner, "bob")
    assert story == [["owner none"], ["state stopped/stopped"], ["owner"]]
    assert lease(world, owner).owner_principal == "pri_bob"


def test_a_token_outlives_its_secret_key(world: World, settings: Settings) -> None:
    """5.3: "HMAC(server key, attachment ID), so that a replayed receipt can give it again", through a rotation of the key."""
    owner = owned(world)
    token = leases.reclaim_token(owner.attachment_id)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another"
    assert leases.held_token(lease(world, owner), owner.attachment_id) == token
    settings.SECRET_KEY_FALLBACKS = []
    assert leases.held_token(lease(world, owner), owner.attachment_id) is None
    world.disconnect(owner)
    assert reclaim(world, owner, "bob", token=token).attachment_id


# At the same moment, on both databases


def test_of_many_reclaims_one_wins(committed_world: World) -> None:
    """5.3: "One owner at a time": the others find it connected, whichever comes first."""
    world = committed_world
    owner = owned(world)
    world.disconnect(owner)

    def try_it() -> str:
        try:
            return reclaim(world, owner).attachment_id
        except Conflict as refusal:
            return refusal.code

    answers = together(*[try_it] * 4)
    row = lease(world, owner)
    assert sorted(answers) == sorted([row.owner_attachment, *["conflict"] * 3])
    assert (row.lease_generation, Attachment.objects.count()) == (2, 1)


def test_renewals_of_one_generation_are_one(committed_world: World) -> None:
    """5.3: "generation differs | `lease_stale`": of two renewals at once the second is of the past."""
    world = committed_world
    owner = owned(world)

    def try_it() -> int | str:
        try:
            return renew(world, owner).owner_lease.generation
        except LeaseStale as refusal:
            return refusal.code

    assert sorted(together(*[try_it] * 2), key=str) == [2, "lease_stale"]
    assert lease(world, owner).lease_generation == 2


# On the database's own clock


def test_grace_runs_by_the_clock_of_the_database(committed_world: World) -> None:
    """Design 3: "Lease, claim and heartbeat times come from the database's clock"."""
    world = committed_world
    liveness = LivenessOwnerBound(disconnect_grace_ms=0, stop_mode="graceful")
    owner = world.idle(mode="owner_read_write", liveness=liveness)
    expire(world)
    assert world.states(owner) == ("running", "idle")
    world.disconnect(owner)
    expire(world)
    assert world.states(owner) == ("stopped", "stopped")

    with limits.using(ServerSettings(owner_lease_duration_ms=1)):
        again = world.attach(owner.session_id, "owner_read_write")
    world.clock.advance(milliseconds=5)
    until(lambda: leases.has_lapsed(lease(world, owner)), "the end of the lease")
    with pytest.raises(LeaseStale):
        world.start(again)
