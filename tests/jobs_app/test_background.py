"""The loops of a process: they beat, sweep, follow and watch until they are stopped (behaviour 14.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from channels.layers import InMemoryChannelLayer

from jobs_app.background import Background
from permissions_app.models import AuditRecord
from sessions_app import limits, processes
from sessions_app.broadcast import Broadcast
from sessions_app.db import database_now, in_db
from sessions_app.limits import ServerSettings
from sessions_app.models import Process, SweepLease
from tests.support.waiting import eventually, until
from tests.support.world import World

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FAST = ServerSettings(process_heartbeat_ms=10, config_poll_ms=10, maintenance_ms=10)


class Owner:
    """Who runs the loops: gives them their work and counts what they do."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.failures = 0

    def counts(self, name: str) -> Callable[[], Awaitable[None]]:
        """Return work that is counted under `name`."""

        async def count() -> None:
            self.done[name] += 1
            if self.failures:
                self.failures -= 1
                raise LookupError

        return count

    def lose(self) -> None:
        """Take note that this process was taken for dead."""
        self.done["lost"] += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Background]:
        """Run the loops of this process inside the block."""
        broadcast = Broadcast(InMemoryChannelLayer())
        await broadcast.start()
        with limits.using(FAST):
            background = Background(
                broadcast, on_lost=self.lose, follow=self.counts("followed"), watches=[self.counts("watched")]
            )
            background.start()
            try:
                yield background
            finally:
                await background.stop()
                await broadcast.stop()


def beat_at() -> object:
    return Process.objects.get(id=processes.current_id()).beat_at


async def test_a_process_beats_follows_watches_and_sweeps(stored_world: World) -> None:
    """14.2: "Every web and worker process runs the sweep loop"; 0.8: "each process has one heartbeat"; "Config poll in each
    process"."""
    owner = Owner()
    await in_db(stored_world.create)
    before = await in_db(beat_at)
    async with owner.running():
        await eventually(lambda: owner.done["followed"] > 1 and owner.done["watched"], "the watches")
        await in_db(until, lambda: beat_at() != before, "a beat")
        await in_db(until, lambda: not AuditRecord.objects.filter(sequence=None).exists(), "a pass")
    assert owner.done["lost"] == 0


async def test_a_stopped_process_lets_another_one_sweep(stored_world: World) -> None:
    """14.2: "a lease row lets one of them act"."""
    async with Owner().running():
        await in_db(until, _is_led, "the lease")
    assert not await in_db(_is_led)


def _is_led() -> bool:
    """Tell whether a process beside this one is kept from sweeping."""
    here = processes.current_id()
    lease = SweepLease.objects.filter(id=1, process_id=here).first()
    return lease is not None and lease.expires_at > database_now()


async def test_a_draining_process_says_so(stored_world: World) -> None:
    """14.3: a process that stops takes no new work, and tells the others."""
    async with Owner().running() as background:
        await background.drain()
        assert (await in_db(Process.objects.get, id=processes.current_id())).draining
        await in_db(until, lambda: Process.objects.filter(draining=True).exists(), "it stays so")


async def test_a_process_that_was_taken_for_dead_is_told(stored_world: World) -> None:
    """14.4: what it held was ended by others: it must stop."""
    owner = Owner()
    async with owner.running():
        await in_db(Process.objects.all().delete)
        await eventually(lambda: owner.done["lost"] > 0, "the loss")


async def test_a_failing_watch_is_tried_again(stored_world: World) -> None:
    owner = Owner()
    owner.failures = 1
    async with owner.running():
        await eventually(lambda: owner.done["followed"] + owner.done["watched"] > 3, "more of it")
