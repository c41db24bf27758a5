"""Scenarios D: the life of a session."""

from __future__ import annotations

from tests.conformance.peers import told
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
