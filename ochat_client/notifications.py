"""The notifications of one session, from the wire to whoever reads them.

Owns: their order and how much of them is held. Does not own: what they mean (`projection`).
"""

from __future__ import annotations

import asyncio
from collections import deque

from ochat_client.errors import ClientError, Lagged
from sessions_app.events import DurableEvent, LiveEvent

MAX_EVENTS = 1024
MAX_BYTES = 20 * 1024 * 1024
"""What one subscription holds unread. More than one event of the largest size, so that any event fits an empty one."""


class Subscription:
    """An async iterator over durable and live events in the order of the wire, for one reader.

    Holds at most 1,024 events and 20 MiB. When that is not enough, live events are dropped first, because nothing rests on
    them; then everything is dropped and the iterator ends with Lagged. It ends with ConnectionLost (or
    ProtocolViolation) when the connection does, after what came before, and in order after `close`.
    """

    def __init__(self) -> None:
        """Begin empty; must be made in a running loop's thread."""
        self._events: deque[tuple[DurableEvent | LiveEvent, int]] = deque()
        self._bytes = 0
        self._ended: ClientError | None = None
        self._closed = False
        self._news = asyncio.Event()

    def __aiter__(self) -> Subscription:
        """Return itself."""
        return self

    async def __anext__(self) -> DurableEvent | LiveEvent:
        """Return the next event; waits for one."""
        while not self._events:
            if self._ended is not None:
                raise self._ended
            if self._closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        event, size = self._events.popleft()
        self._bytes -= size
        return event

    def put(self, event: DurableEvent | LiveEvent, size: int) -> None:
        """Take the next event, of `size` bytes; ignored once the subscription has ended."""
        if self._closed or self._ended is not None:
            return
        if not self._fits(size) and isinstance(event, DurableEvent):
            self._drop_live()
        if self._fits(size):
            self._events.append((event, size))
            self._bytes += size
            self._news.set()
        elif isinstance(event, DurableEvent):
            self._events.clear()
            self.end(Lagged("events came faster than they were read"))

    def end(self, error: ClientError) -> None:
        """Let the iterator raise `error` once it has handed out what it holds."""
        if self._ended is None:
            self._ended = error
            self._news.set()

    def close(self) -> None:
        """Drop what is held and let the iterator end."""
        self._closed = True
        self._events.clear()
        self._news.set()

    def _fits(self, size: int) -> bool:
        return len(self._events) < MAX_EVENTS and self._bytes + size <= MAX_BYTES

    def _drop_live(self) -> None:
        self._events = deque(held for held in self._events if isinstance(held[0], DurableEvent))
        self._bytes = sum(size for _, size in self._events)
