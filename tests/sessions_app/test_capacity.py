"""Capacity: limits, leases, the line, and who is next (behaviour 3.2, 3.3, 4.4, 4.5)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from jobs_app import sweep
from sessions_app import capacity, ids, limits, pinned
from sessions_app.commands import lifecycle
from sessions_app.encoding import encode
from sessions_app.errors import InvalidState, ResourceLimit, WorkspaceUnavailable
from sessions_app.limits import ServerSettings
from sessions_app.models import (
    HeldCapacity,
    PromptDefinition,
    PromptRevision,
    Receipt,
    Session,
    StartTicket,
    WorkspaceDefinition,
)
from sessions_app.records import PromptLimit, WorkspaceAccess, WorkspaceOverflow
from tests.support.replay_law import replay_law
from tests.support.world import Client, World, together

STARTED = [["state running/starting"], ["state running/idle"]]
QUEUED = [["state running/queued_for_slot"]]


def workspace(
    world: World,
    name: str = "limited",
    *,
    most: int | None = None,
    overflow: WorkspaceOverflow = "queue",
    access: WorkspaceAccess = "shared_write",
    domain: str = "",
) -> WorkspaceDefinition:
    """Configure a workspace that takes at most `most` sessions of the demo prompt."""
    prompt = PromptDefinition.objects.first() or world.prompt()
    limit = PromptLimit(prompt_id=prompt.id, max_root_agents=most or 1, overflow=overflow)
    (world.folder / name).mkdir()
    made = WorkspaceDefinition.objects.create(
        id=ids.derived_id("wsd", name),
        name=name,
        kind="physical",
        path=str(world.folder / name),
        access=access,
        conflict_domain=domain,
        prompt_limits=encode([limit] if most else []),
    )
    prompt.allowed_workspaces.add(made)
    return made


@contextmanager
def server(**settings: Any) -> Iterator[None]:
    """Run with these settings."""
    with limits.using(ServerSettings(**settings)):
        yield


def observed(world: World, *clients: Client) -> list[str]:
    return [world.states(client)[1] for client in clients]


def start(world: World, client: Client, *, queue: bool = True, key: str | None = None) -> Any:
    call = world.call(client.caller, "session.start", key)
    return lifecycle.start_session(call, client.session_id, queue=queue)


def holders() -> set[str]:
    return set(HeldCapacity.objects.values_list("session_id", flat=True))


# What is full, and what follows


def test_a_full_limit_that_rejects(world: World) -> None:
    """D5, K5: "s2 `resource_limit`, still stopped; after stopping s1 a new key succeeds", the same key gives "same error"."""
    place = workspace(world, most=1, overflow="reject")
    first, second = (world.create(workspace=place) for _ in range(2))
    world.start(first)
    before = world.counters(second)
    for queue in (True, False):
        with pytest.raises(ResourceLimit) as refused:
            start(world, second, queue=queue, key=f"k{queue}")
        assert refused.value.retryable
    assert (world.states(second), world.counters(second)) == (("stopped", "stopped"), before)
    assert not StartTicket.objects.exists()
    world.stop(first)
    with pytest.raises(ResourceLimit):
        start(world, second, key="kTrue")
    with world.telling(second) as story:
        start(world, second, key="other")
    assert story == STARTED


def test_a_full_limit_that_queues(world: World) -> None:
    """D6: "s2 `queued_for_slot`, then idle by itself"; 4.4: "R, queued | slot free | state(R,starting); state(R,idle)"."""
    place = workspace(world, most=1)
    first, second = (world.create(workspace=place) for _ in range(2))
    world.start(first)
    with world.telling(second) as story, replay_law(second.session_id, "session"):
        answer = start(world, second)
        assert (answer.revision, answer.latest_event_sequence) == world.counters(second)
        sweep.activate_queued()
        assert start(world, second).revision == answer.revision, "4.4: R, queued | start | unchanged"
        with pytest.raises(InvalidState) as refused:
            world.send(second)
        assert refused.value.retryable
        world.stop(first)
        sweep.activate_queued()
        sweep.activate_queued()
    assert story == [*QUEUED, *STARTED]
    assert holders() == {second.session_id}
    assert not StartTicket.objects.exists()


def test_whoever_does_not_want_to_wait_is_refused(world: World) -> None:
    """3.3: "`queue_if_limited` false | `resource_limit`, retryable, nothing changes"."""
    place = workspace(world, most=1)
    first, second = (world.create(workspace=place) for _ in range(2))
    world.start(first)
    with pytest.raises(ResourceLimit) as refused:
        start(world, second, queue=False)
    assert refused.value.retryable
    assert world.states(second) == ("stopped", "stopped")


@pytest.mark.parametrize("setting", ["max_running_sessions", "max_running_sessions_per_principal"])
def test_limits_of_the_server_and_of_a_principal(world: World, setting: str) -> None:
    """3.3: "running sessions of the server… of the principal"; both settable, and both let whoever wants wait."""
    ann, ann_too = world.create(), world.create()
    bob = world.create(by=world.client("bob"))
    with server(**{setting: 1}):
        world.start(ann)
        with pytest.raises(ResourceLimit):
            start(world, ann_too, queue=False)
        start(world, ann_too)
        start(world, bob)
        of_others = "queued_for_slot" if setting == "max_running_sessions" else "idle"
        assert observed(world, ann, ann_too, bob) == ["idle", "queued_for_slot", of_others]
        world.stop(ann)
        sweep.activate_queued()
        assert observed(world, ann, ann_too, bob) == ["stopped", "idle", of_others]


def test_an_exclusive_lease_shuts_out_every_other(world: World) -> None:
    """D12: "first two run; exclusive start refused/queued while any holds; and vice versa"."""
    shared = workspace(world, "shared", domain="d")
    reading = workspace(world, "reading", domain="d", access="read_only")
    alone = workspace(world, "alone", domain="d", access="exclusive")
    elsewhere = workspace(world, "elsewhere", access="exclusive")
    first, second, exclusive, other = (
        world.create(workspace=place) for place in (shared, reading, alone, elsewhere)
    )
    for client in (first, second, other):
        start(world, client, queue=False)
    with pytest.raises(ResourceLimit):
        start(world, exclusive, queue=False)
    start(world, exclusive)
    world.stop(first)
    sweep.activate_queued()
    assert observed(world, exclusive) == ["queued_for_slot"]
    world.stop(second)
    sweep.activate_queued()
    assert observed(world, exclusive) == ["idle"]
    with pytest.raises(ResourceLimit):
        start(world, first, queue=False)
    start(world, first)
    start(world, second)
    world.stop(exclusive)
    sweep.activate_queued()
    assert observed(world, first, second) == ["idle", "idle"]


def test_capacity_is_held_until_stopped(world: World) -> None:
    """3.3: "held through idle/turn/compaction/waiting, released when observed becomes `stopped`"."""
    client = world.idle()
    claim = world.turn(client)
    world.stop(client)
    assert holders() == {client.session_id}
    world.finish(claim, "done")
    assert world.states(client) == ("stopped", "stopped")
    assert not holders()
    world.start(client)
    assert holders() == {client.session_id}


def test_a_stopped_session_is_compacted_without_any(world: World) -> None:
    """Starting it meanwhile takes capacity, or is refused: it cannot wait in the line while its operation runs."""
    first, second = (world.create(workspace=workspace(world, name, most=1, domain="one")) for name in "ab")
    for client in (first, second):
        world.compact(client)
    assert not HeldCapacity.objects.exists()
    world.start(first)
    with pytest.raises(ResourceLimit) as full:
        world.start(second)
    assert full.value.retryable
    assert world.states(second) == ("stopped", "compacting")
    world.finish(world.claim(first), outcome="interrupted", interruption="worker_lost")
    assert (world.states(first), HeldCapacity.objects.count()) == (("running", "idle"), 1)


def test_what_cannot_be_loaded_holds_nothing(world: World) -> None:
    """4.5: "If loading fails, newly taken capacity is released and the error returned"."""
    client = world.create()
    PromptRevision.objects.update(manifest=b'{"root":"gone","sources":{}}')
    pinned.forget()
    with pytest.raises(Exception, match="prompt"):
        world.start(client)
    assert not holders()


# Creating


def test_a_session_is_created_into_the_line(world: World) -> None:
    """3.3: "For `session.create` with `start_immediately` the queue preference counts as true"; 4.2.7: no starting event."""
    place = workspace(world, most=1)
    first = world.create(workspace=place, start=True)
    second = world.create(workspace=place, start=True)
    assert observed(world, first, second) == ["idle", "queued_for_slot"]
    assert world.story(first) == world.story(second) == [["session.created"]]
    world.stop(first)
    with world.telling(second) as story:
        sweep.activate_queued()
    assert story == STARTED


def test_a_creation_that_may_not_wait_leaves_nothing(world: World) -> None:
    """3.3: "with overflow `reject` the whole creation fails and leaves nothing"."""
    place = workspace(world, most=1, overflow="reject")
    world.create(workspace=place, start=True)
    with pytest.raises(ResourceLimit):
        world.create(workspace=place, start=True)
    assert Session.objects.count() == HeldCapacity.objects.count() == 1
    assert not StartTicket.objects.exists()


# The line


def test_who_waits_is_served_in_order(world: World) -> None:
    """D7: "activated in request order"; a stop removes the ticket (3.3) and tells one state (4.4)."""
    place = workspace(world, most=1)
    first, *waiting = (world.create(workspace=place) for _ in range(5))
    world.start(first)
    order = [waiting[2], waiting[0], waiting[3], waiting[1]]
    for client in order:
        start(world, client)
    gone = order.pop(1)
    with world.telling(gone) as story:
        world.stop(gone)
    assert story == [["state stopped/stopped"]]
    running = first
    for client in order:
        world.stop(running)
        late = world.create(workspace=place)
        with pytest.raises(ResourceLimit):
            start(world, late, queue=False)
        sweep.activate_queued()
        assert holders() == {client.session_id}
        running = client


def test_a_blocked_head_blocks_only_who_needs_the_same(world: World) -> None:
    """3.3: "a head blocked on one resource does not block heads needing other resources"; and whoever needs the same comes
    behind it: sharers do not starve one who wants the domain alone."""
    limited = workspace(world, "narrow", most=1)
    shared = workspace(world, "shared", domain="d")
    alone = workspace(world, "alone", domain="d", access="exclusive")
    runs, blocked = (world.create(workspace=limited) for _ in range(2))
    sharer, late_sharer = (world.create(workspace=shared) for _ in range(2))
    exclusive = world.create(workspace=alone)
    for client in (runs, blocked, sharer, exclusive, late_sharer):
        start(world, client)
    assert observed(world, blocked, exclusive, late_sharer) == ["queued_for_slot"] * 3
    world.stop(sharer)
    sweep.activate_queued()
    assert observed(world, blocked, exclusive, late_sharer) == ["queued_for_slot", "idle", "queued_for_slot"]
    world.stop(exclusive)
    sweep.activate_queued()
    assert observed(world, blocked, late_sharer) == ["queued_for_slot", "idle"]


def test_what_came_free_is_for_those_who_wait(world: World) -> None:
    """3.3: FIFO: whoever comes between a stop and the next look at the line does not overtake it."""
    with server(max_running_sessions=1):
        first, second, third = (world.create() for _ in range(3))
        world.start(first)
        start(world, second)
        world.stop(first)
        with pytest.raises(ResourceLimit):
            start(world, third, queue=False)
        start(world, third)
        sweep.activate_queued()
        assert observed(world, second, third) == ["idle", "queued_for_slot"]


def test_a_ticket_outlives_everybody(world: World) -> None:
    """3.3: "Tickets are rows and outlive every connection and process"."""
    place = workspace(world, most=1)
    first, second = (world.create(workspace=place) for _ in range(2))
    world.start(first)
    start(world, second)
    world.disconnect(second)
    world.new_process("worker")
    world.stop(first)
    sweep.activate_queued()
    assert observed(world, second) == ["idle"]


def test_one_that_cannot_be_loaded_is_tried_again(timed_world: World) -> None:
    """3.3: "A failing activation releases capacity and is retried with growing delay", and holds up nobody meanwhile."""
    world = timed_world
    place, broken = workspace(world, most=2), workspace(world, "broken", domain="x")
    with server(max_running_sessions=1):
        first, behind = (world.create(workspace=place) for _ in range(2))
        unlucky = world.create(workspace=broken)
        for client in (first, unlucky, behind):
            start(world, client)
        (world.folder / "broken").rmdir()
        world.stop(first)
        with world.telling(unlucky) as story:
            sweep.activate_queued()
            sweep.activate_queued()
        assert story == [["session.error"]]
        assert observed(world, unlucky, behind) == ["queued_for_slot", "idle"]
        ticket = StartTicket.objects.get()
        assert (ticket.failures, ticket.retry_at, sweep.next_due()) == (1, ticket.retry_at, ticket.retry_at)
        world.stop(behind)
        world.clock.advance(seconds=2)
        sweep.activate_queued()
        assert StartTicket.objects.get().failures == 2
        with pytest.raises(WorkspaceUnavailable):
            start(world, unlucky)
        (world.folder / "broken").mkdir()
        world.clock.advance(seconds=3)
        world.start(first)
        sweep.activate_queued()
        assert (observed(world, unlucky), sweep.next_due()) == (["queued_for_slot"], None), (
            "not looked for in vain"
        )
        world.stop(first)
        sweep.activate_queued()
        assert observed(world, unlucky) == ["idle"]


def test_one_that_is_tried_again_and_lacks_capacity_waits_for_no_time(timed_world: World) -> None:
    """14.2: the sweep "sleeps until the next due time": a ticket whose time is past and that waits for a place is none."""
    world = timed_world
    broken, place = workspace(world, "broken", domain="x"), workspace(world, most=2)
    with server(max_running_sessions=1):
        first, other = (world.create(workspace=place) for _ in range(2))
        unlucky = world.create(workspace=broken)
        for client in (first, unlucky):
            start(world, client)
        (world.folder / "broken").rmdir()
        world.stop(first)
        sweep.activate_queued()
        start(world, other)
        world.clock.advance(seconds=2)
        sweep.activate_queued()
        ticket = StartTicket.objects.get()
        assert (ticket.blocked_on, ticket.retry_at, sweep.next_due()) == ("server", None, None)
        (world.folder / "broken").mkdir()
        world.stop(other)
        sweep.activate_queued()
        assert observed(world, unlucky) == ["idle"]


def test_lowered_limits_affect_later_starts(world: World) -> None:
    """3.1: "Existing sessions are untouched; lowered limits only affect later starts"; a raised one serves who waits."""
    place = workspace(world, most=2)
    clients = [world.create(workspace=place) for _ in range(4)]
    for client in clients[:2]:
        world.start(client)

    def limit(most: int) -> None:
        prompt = clients and world.session(clients[0].session_id).prompt_id
        encoded = encode([PromptLimit(prompt_id=str(prompt), max_root_agents=most, overflow="queue")])
        WorkspaceDefinition.objects.filter(id=place.id).update(prompt_limits=encoded)

    limit(1)
    start(world, clients[2])
    world.stop(clients[0])
    sweep.activate_queued()
    assert observed(world, *clients[:3]) == ["stopped", "idle", "queued_for_slot"]
    limit(2)
    sweep.activate_queued()
    assert observed(world, clients[2]) == ["idle"]


def test_a_look_at_the_line_is_one_cost(world: World) -> None:
    """Design 1.8: with nobody waiting, a pass of the sweep asks one question."""
    world.idle()
    assert capacity.ready(world.clock(), 10) == []


# At the same moment, on both databases


def test_of_many_starts_as_many_run_as_may(committed_world: World) -> None:
    """3.3: "All acquired in one transaction or not at all": four clients start at once where two may run."""
    world = committed_world
    place = workspace(world, most=2)
    clients = [world.create(workspace=place) for _ in range(4)]
    together(*[partial(start, world, client) for client in clients])
    assert sorted(observed(world, *clients)) == ["idle", "idle", "queued_for_slot", "queued_for_slot"]
    assert len(holders()) == StartTicket.objects.count() == 2


def test_a_stop_and_a_start_at_once_lose_no_place(committed_world: World) -> None:
    """3.3: whatever comes first, the place is taken, or its ticket finds it free."""
    world = committed_world
    place = workspace(world, most=1)
    first, second = (world.create(workspace=place) for _ in range(2))
    world.start(first)
    together(lambda: world.stop(first), lambda: start(world, second))
    together(sweep.activate_queued, sweep.activate_queued)
    assert observed(world, first, second) == ["stopped", "idle"]
    assert holders() == {second.session_id}


def test_a_cancelled_start_and_its_activation_at_once(committed_world: World) -> None:
    """3.3: a stop and the sweep meet at a ticket: stopped in the end, and nothing is held."""
    world = committed_world
    place = workspace(world, most=1)
    first, second = (world.create(workspace=place) for _ in range(2))
    world.start(first)
    start(world, second)
    world.stop(first)
    together(lambda: world.stop(second), sweep.activate_queued)
    assert world.states(second) == ("stopped", "stopped")
    assert not holders()
    assert not StartTicket.objects.exists()


def test_one_key_sent_twice_at_once_is_one_ticket(committed_world: World) -> None:
    """11.3: a concurrent duplicate of a start that waits replays it."""
    world = committed_world
    place = workspace(world, most=1)
    first, second = (world.create(workspace=place) for _ in range(2))
    world.start(first)
    call = world.call(second.caller, "session.start", "k")
    answers = together(*[lambda: lifecycle.start_session(call, second.session_id)] * 2)
    assert answers[0] == answers[1]
    assert StartTicket.objects.count() == Receipt.objects.filter(key="k").count() == 1
