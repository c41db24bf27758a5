"""Every subscription of this process, and how news of a session reach them (behaviour 8.2 to 8.6).

Owns: which sessions have subscribers here, and the two ways to learn that a log has grown: hints, and a look once
a second. Does not own: where hints come from (`Wakes`, `sessions_app.broadcast`), the log (`EventLog`), or what a
subscriber is sent (`session_feed`).

The log is the truth; a hint only says "look". Hints may be lost, doubled or late, and nothing durable is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import structlog

from ochat_site.rpc.live import LiveEvent
from ochat_site.rpc.outbox import Outbox
from ochat_site.rpc.session_feed import Dialect, EventLog, SessionFeed, Subscription

if TYPE_CHECKING:
    from sessions_app.views import View

logger = structlog.get_logger(__name__)

REREAD_SECONDS = 1.0
"""How often one query reads the heads of all sessions of a process again, because hints may be lost."""

CONCURRENT_CATCH_UPS = 2
"""Reads for laggards at a time, of the threads that also do everybody's commands."""


class Wakes(Protocol):
    """Where hints come from; they lead to `FeedHub.wake`, `.live` and `.joined`."""

    def subscribe(self, session_id: str) -> None:
        """Begin to hear of a session."""
        ...

    def unsubscribe(self, session_id: str) -> None:
        """Cease to hear of a session."""
        ...


class FeedHub:
    """The subscriptions of this process, by session."""

    def __init__(self, log: EventLog, wakes: Wakes) -> None:
        """Read from `log`, and listen to `wakes` for the sessions that have subscribers."""
        self._log = log
        self._wakes = wakes
        self._feeds: dict[str, SessionFeed] = {}
        self._catch_ups = asyncio.Semaphore(CONCURRENT_CATCH_UPS)
        self._tasks: set[asyncio.Task[None]] = set()

    def subscribe(
        self,
        session_id: str,
        after: int,
        *,
        outbox: Outbox,
        view: View,
        dialect: Dialect,
        max_event_bytes: int | None,
        on_slow: Callable[[], None],
    ) -> Subscription:
        """Subscribe behind sequence `after`. Nothing is sent before `Subscription.release`.

        `on_slow` must tell the client, by the way of its transport, that it cannot be sent what comes next: it took
        nothing for too long, an event exceeds `max_event_bytes`, or is no longer retained. Then it is closed.
        """
        feed = self._feeds.get(session_id)
        if feed is None:
            feed = SessionFeed(session_id, after, self._log, self._catch_ups, self._spawn)
            self._feeds[session_id] = feed
            self._wakes.subscribe(session_id)
        subscription = Subscription(feed, after, outbox, view, dialect, max_event_bytes, on_slow)
        feed.add(subscription)
        return subscription

    def wake(self, session_id: str, head: int) -> None:
        """Note that the log of a session reaches `head`."""
        feed = self._feeds.get(session_id)
        if feed is not None:
            feed.advance(head)

    def live(self, session_id: str, batch: Sequence[bytes]) -> None:
        """Pass on live events of a session, as their worker encoded them."""
        feed = self._feeds.get(session_id)
        if feed is None:
            return
        for body in batch:
            try:
                event = LiveEvent(body)
            except msgspec.DecodeError:
                logger.warning("feed.live_unreadable", session_id=session_id)
            else:
                feed.pass_live(event)

    def joined(self, session_id: str) -> None:
        """Look for what was committed before the hints of a session began to arrive."""
        if session_id in self._feeds:
            self._spawn(self._reread([session_id]))

    async def run(self) -> None:
        """Re-read the heads of all sessions once a second, until cancelled."""
        while True:
            await asyncio.sleep(REREAD_SECONDS)
            # A feed outlives its last subscriber a little: who comes back at once costs no new membership.
            for session_id in [session_id for session_id, feed in self._feeds.items() if feed.is_empty]:
                del self._feeds[session_id]
                self._wakes.unsubscribe(session_id)
            if self._feeds:
                await self._reread(list(self._feeds))

    async def _reread(self, session_ids: Sequence[str]) -> None:
        try:
            heads = await self._log.read_heads(session_ids)
        except Exception:
            logger.exception("feed.heads")
            return
        for session_id in session_ids:
            self.wake(session_id, heads.get(session_id, 0))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
