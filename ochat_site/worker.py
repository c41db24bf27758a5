"""The worker process: Celery takes messages, one asyncio loop runs everything they speak of (design 4, 5).

Owns: start and end of a worker in order. Does not own: turns (`sessions_app.runtime.host`), the sweep (`jobs_app.background`), or
Celery's own settings (`ochat_site.celery`).

Celery's solo pool runs a task in its consumer's thread; a task only hands an id to the loop, so the consumer never waits and one
loop keeps the pooled connections to model servers.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Coroutine

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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turns", daemon=True)

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, then let what runs finish within the grace and give up everything held."""
        # Celery warns of every worker that runs as root; it accepts JSON alone, which cannot run anything.
        warnings.filterwarnings("ignore", category=SecurityWarning)
        self._thread.start()
        try:
            self._wait(self._start())
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
        finally:
            self._wait(self._stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            db.shutdown()

    async def _start(self) -> None:
        await in_db(processes.register, "worker")
        self._follower = configuration.follower()
        await in_db(self._follower.start)
        self._models = Models(settings.ENV.model_provider)
        self._host = wiring.turn_host(self._models)
        self._broadcast = Broadcast()
        self._broadcast.on_signal(OPERATION_SIGNAL, self._host.look)
        self._background = Background(
            self._broadcast, on_lost=self._taken_for_dead, follow=self._follow_catalog
        )
        await self._broadcast.start()
        self._background.start()
        tasks.on_turn(self._submit)

    async def _stop(self) -> None:
        grace = limits.server().shutdown_grace_ms / 1000
        await self._background.drain()
        await self._host.stop(grace)
        await self._background.stop()
        await in_db(recovery.release, processes.current_id(), SERVER_SHUTDOWN)
        await in_db(processes.leave)
        await self._models.aclose()
        await self._broadcast.stop()

    def _submit(self, operation_id: str) -> None:
        self._loop.call_soon_threadsafe(self._host.submit, operation_id)

    def _taken_for_dead(self) -> None:
        """The others ended what this process held; under a new name its old claims are void and it goes on."""
        db_work = in_db(processes.register, "worker")
        self._loop.create_task(db_work)

    async def _follow_catalog(self) -> None:
        await in_db(self._follower.reload_if_changed)

    def _wait(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()
