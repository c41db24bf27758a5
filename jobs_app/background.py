"""What every serving process does beside its own work: beat, sweep, watch (behaviour 14.2).

Owns: the loops and their stopping. Does not own: the steps (`jobs_app.sweep`), nor what else a process watches each second,
which it hands in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime

import structlog

from jobs_app import sweep
from jobs_app.wake import LONGEST_PAUSE, SWEEP_SIGNAL
from sessions_app import limits, processes
from sessions_app.broadcast import Broadcast
from sessions_app.capacity import CAPACITY_SIGNAL
from sessions_app.db import beside_db, database_now, in_db

log = structlog.get_logger(__name__)

_LONGEST_PAUSE = LONGEST_PAUSE.total_seconds()
"""Seconds between two passes at most."""
_SHORTEST_PAUSE = 0.05
"""Seconds between two passes at least, however much is due."""

Watch = Callable[[], Awaitable[None]]


class Background:
    """The loops of one process. Start it inside the process's event loop, once the process is registered."""

    def __init__(
        self,
        broadcast: Broadcast,
        *,
        on_lost: Callable[[], None],
        follow: Watch,
        watches: Sequence[Watch] = (),
    ) -> None:
        """`on_lost` is called when the others took this process for dead; `follow` looks at the catalog every
        `config_poll_ms`; `watches` run once a second each.
        """
        self._on_lost = on_lost
        self._follow = follow
        self._watches = watches
        self._wake = asyncio.Event()
        self._draining = False
        self._maintained = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        for signal in (SWEEP_SIGNAL, CAPACITY_SIGNAL):
            broadcast.on_signal(signal, lambda _subject: self._wake.set())

    def start(self) -> None:
        """Begin to beat, to sweep and to watch."""
        beats = limits.server().process_heartbeat_ms / 1000
        polls = limits.server().config_poll_ms / 1000
        loops = [
            _repeat(self._beat, lambda: asyncio.sleep(beats)),
            _repeat(self._sweep, self._pause),
            _repeat(self._follow, lambda: asyncio.sleep(polls)),
            *(_repeat(watch, lambda: asyncio.sleep(_LONGEST_PAUSE)) for watch in self._watches),
        ]
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def drain(self) -> None:
        """Tell the others that this process takes no new work."""
        self._draining = True
        await self._beat()

    async def stop(self) -> None:
        """Stop every loop and let another process sweep."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await in_db(sweep.give_up_lease)

    async def _beat(self) -> None:
        # Beside the others: who fills their line must not make this process look dead, and end everybody's connections.
        if not await beside_db(processes.beat, draining=self._draining):
            log.error("process.taken_for_dead")
            self._on_lost()

    async def _sweep(self) -> None:
        """One pass, if this process holds the lease; the slow steps, or those of its machine, every `maintenance_ms`."""
        acts = await in_db(sweep.take_lease)
        if acts:
            await in_db(sweep.run_due)
        now = asyncio.get_running_loop().time()
        if now - self._maintained >= limits.server().maintenance_ms / 1000:
            self._maintained = now
            await in_db(sweep.maintain if acts else sweep.maintain_machine)

    async def _pause(self) -> None:
        """Sleep until something is due, a signal, or a second has passed."""
        pause = await in_db(_until_due)
        await asyncio.sleep(_SHORTEST_PAUSE)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause - _SHORTEST_PAUSE):
                await self._wake.wait()
        self._wake.clear()


def _until_due() -> float:
    """Return the seconds until the next step is due, between the shortest and the longest pause."""
    due: datetime | None = sweep.next_due()
    seconds = _LONGEST_PAUSE if due is None else (due - database_now()).total_seconds()
    return min(max(seconds, _SHORTEST_PAUSE), _LONGEST_PAUSE)


async def _repeat(action: Watch, pause: Watch) -> None:
    """Run `action` for ever with a pause after each; a failure is logged and the next one tried."""
    while True:
        try:
            await action()
            await pause()
        except Exception:
            log.exception("background.failed", action=getattr(action, "__qualname__", "watch"))
            await asyncio.sleep(_LONGEST_PAUSE)
