"""Scenarios D: the life of a session."""

from __future__ import annotations

from functools import partial

import pytest

from tests.conformance import fixture
from tests.conformance.peers import Hold, Peer, refusal, told
from tests.conformance.sites import Site


async def test_d1(site: Site) -> None:
    """create, start, stop: idle, then stopped, with the events of each."""
    peer = await site.peer()
    hold = await peer.create()
    before = (await hold.counters())[0]

    started = await hold.start()
    assert started.session.observed_state.__struct_config__.tag == "idle"
    stopped = await hold.stop()
    assert stopped.session.observed_state.__struct_config__.tag == "stopped"
    assert before < started.revision < stopped.revision

    replayed = await peer.attach(hold.session_id, after=0)
    assert told(replayed.events) == [
        ["session.created"],
        ["state(running,starting)"],
        ["state(running,idle)"],
        ["state(stopped,stopped)"],
    ]
    created, *_ = (event.revision for event in replayed.events)
    # Two attaches, and the two revisions of the start, lie between.
    assert [event.revision - created for event in replayed.events] == [0, 2, 3, 4]
    await hold.until(lambda: hold.sequence == 4)
    assert told(hold.events) == told(replayed.events)[1:]


async def test_d2(site: Site) -> None:
    """start when idle and stop when stopped succeed and change nothing."""
    hold = await (await site.peer()).create()

    async def unchanged_by(call: object) -> None:
        before = await hold.counters()
        result = await call  # type: ignore[misc]  # a mutation
        assert (result.revision, result.latest_event_sequence) == before == await hold.counters()

    await hold.start()
    await unchanged_by(hold.start())
    await hold.stop()
    await unchanged_by(hold.stop())
    await unchanged_by(hold.stop("cancel"))


@pytest.mark.parametrize("queue", [True, False])
async def test_d5(site: Site, queue: bool) -> None:
    """A full limit with overflow reject: resource_limit; once there is room a new key succeeds."""
    first, second = await _created(await site.peer(), fixture.REJECTING, fixture.REJECTING)
    await first.start(queue_if_limited=queue)
    before = await second.counters()

    refused = await refusal(second.start(queue_if_limited=queue))
    assert (refused.code, refused.retryable) == ("resource_limit", True)
    assert (_states(second), await second.counters()) == (("stopped", "stopped"), before)

    await first.stop()
    await second.start(queue_if_limited=queue)
    await second.until(partial(_is_idle, second))
    await second.stop()


async def test_d6(site: Site) -> None:
    """A full limit with overflow queue: queued_for_slot, then idle by itself."""
    first, second = await _created(await site.peer(), fixture.QUEUEING, fixture.QUEUEING)
    await first.start()

    queued = await second.start()
    assert queued.session.observed_state.__struct_config__.tag == "queued_for_slot"
    assert (queued.revision, queued.latest_event_sequence) == await second.counters()
    await first.stop()
    await second.until(partial(_is_idle, second))

    assert told(second.events) == [
        ["state(running,queued_for_slot)"],
        ["state(running,starting)"],
        ["state(running,idle)"],
    ]
    await second.stop()


async def test_d7(site: Site) -> None:
    """Three waiters are activated in request order."""
    running, *waiting = await _created(await site.peer(), *[fixture.QUEUEING] * 4)
    await running.start()
    order = [waiting[1], waiting[2], waiting[0]]
    for hold in order:
        await hold.start()

    for place, hold in enumerate(order):
        await running.stop()
        await hold.until(partial(_is_idle, hold))
        behind = [(await other.snapshot()).session for other in order[place + 1 :]]
        assert [session.observed_state.__struct_config__.tag for session in behind] == [
            "queued_for_slot"
        ] * len(behind)
        running = hold
    await running.stop()


async def test_d12(site: Site) -> None:
    """Sharers of a conflict domain run together; one who wants it alone waits, and is waited for."""
    peer = await site.peer()
    one, two, alone = await _created(peer, fixture.SHARING, fixture.SHARING, fixture.EXCLUSIVE)
    await one.start(queue_if_limited=False)
    await two.start(queue_if_limited=False)

    assert (await refusal(alone.start(queue_if_limited=False))).code == "resource_limit"
    await alone.start()
    await one.stop()
    assert (await alone.snapshot()).session.observed_state.__struct_config__.tag == "queued_for_slot"
    await two.stop()
    await alone.until(partial(_is_idle, alone))

    assert (await refusal(one.start(queue_if_limited=False))).code == "resource_limit"
    await one.start()
    await alone.stop()
    await one.until(partial(_is_idle, one))
    await one.stop()


async def _created(peer: Peer, *workspaces: str) -> list[Hold]:
    """Create a session in each of the workspaces."""
    return [await peer.create(workspace=workspace) for workspace in workspaces]


def _states(hold: Hold) -> tuple[str, str]:
    """Return desired and observed, as the client was told."""
    session = hold.view.session
    return session.desired_state, str(session.observed_state.__struct_config__.tag)


def _is_idle(hold: Hold) -> bool:
    return _states(hold) == ("running", "idle")
