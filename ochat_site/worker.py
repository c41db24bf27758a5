"""The worker process: Celery takes messages, one asyncio loop runs everything they speak of (design 4, 5).

Owns: start and end of a worker in order. Does not own: turns (`sessions_app.runtime.host`), the sweep (`jobs_app.background`), or
Celery's own settings (`ochat_site.celery`).

Celery's solo pool runs a task in its consumer's thread; a task only hands an id to the loop, so the consumer never waits and one
loop keeps the pooled connections to model servers.
"""

from __future__ import annotations

import asyncio
import warnings
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack

import structlog
from celery.exceptions import SecurityWarning
from django.conf import settings

from jobs_app import recovery, tasks
from jobs_app.background import Background
from ochat_site import configuration, wiring
from ochat_site.celery import app
from sessions_app import db, limits, processes
from sessions_app.broadcast import Broadcast
from sessions_app.commands.operations import OPERATION_SIGNAL, SERVER_SHUTDOWN
from sessions_app.db import in_db
from sessions_app.runtime.models.registry import Models

log = structlog.get_logger(__name__)


class Worker:
    """One worker process."""

    def __init__(self) -> None:
        """Put the parts together; nothing runs and nothing is read before `run`."""
        self._follower = configuration.follower()
        self._models = Models(settings.ENV.model_provider)
        self._host = wiring.turn_host(self._models)
        self._broadcast = Broadcast()
        self._broadcast.on_signal(OPERATION_SIGNAL, self._host.look)
        self._background = Background(
            self._broadcast, on_lost=self._taken_for_dead, follow=self._follow_catalog
        )
        self._registering: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, then let what runs finish within the grace and give up everything held.

        Raises what kept it from starting, or from giving up in order; the others then end what it held.
        """
        ready: Future[None] = Future()
        ending: Future[None] = Future()
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="turns") as thread:
            life = thread.submit(lambda: asyncio.run(self._live(ready, ending)))
            wait([ready, life], return_when=FIRST_COMPLETED)
            try:
                if ready.done():
                    _consume()
            finally:
                ending.set_result(None)
                life.result()
        db.shutdown()

    async def _live(self, ready: Future[None], ending: Future[None]) -> None:
        async with AsyncExitStack() as parts:
            await self._start(parts)
            ready.set_result(None)
            await asyncio.wrap_future(ending)

    async def _start(self, parts: AsyncExitStack) -> None:
        """Start every part, and leave in `parts` how it ends: the last one first, each of them whatever befalls another."""
        parts.push_async_callback(self._models.aclose)
        await self._broadcast.start()
        parts.push_async_callback(self._broadcast.stop)
        await in_db(processes.register, "worker")
        parts.push_async_callback(in_db, recovery.leave, SERVER_SHUTDOWN)
        await in_db(self._follower.start)
        self._background.start()
        parts.push_async_callback(self._background.stop)
        parts.push_async_callback(self._host.stop, limits.server().shutdown_grace_ms / 1000)
        parts.push_async_callback(self._background.drain)
        loop = asyncio.get_running_loop()

        def submit(operation_id: str) -> None:
            loop.call_soon_threadsafe(self._host.submit, operation_id)

        tasks.on_turn(submit)
        parts.callback(tasks.on_turn, None)

    def _taken_for_dead(self) -> None:
        """The others ended what this process held; under a new name its old claims are void and it goes on."""
        self._registering = asyncio.create_task(self._register_again())

    async def _register_again(self) -> None:
        try:
            await in_db(processes.register, "worker")
        except Exception:  # the boundary of a task of its own: the next beat finds it missing again
            log.exception("worker.not_registered")

    async def _follow_catalog(self) -> None:
        await in_db(self._follower.reload_if_changed)


def _consume() -> None:
    """Take messages until a signal ends it. In the main thread, where signals arrive."""
    # Celery warns of every worker that runs as root; it accepts JSON alone, which cannot run anything.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    consumer = app.Worker(
        pool="solo",
        concurrency=1,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )
    log.info("worker.ready", process=processes.current_id())
    consumer.start()
