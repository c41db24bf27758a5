"""What one client is sent: the frames, the order, and the bounds on what may wait (behaviour 1.4, 8.6).

Owns: `Frame`, the queue between a connection and its socket, and the rule what waits, what is dropped and
what ends the connection. Does not own: bytes on a wire (`Socket`, implemented by each transport), whose turn
it is to be told of an event (`feed`), or what an answer says (`dispatch`).

Durable events never wait here: they wait in the log, and are handed over only while the socket takes them. So
the queue holds answers, and live events that found the socket busy; the latter are dropped first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from sessions_app import limits

Framing = Callable[[bytes], bytes]
"""Makes the bytes that one transport writes for a message; a module-level function, because it is a cache
key.
"""


class Frame:
    """One encoded message, and what each transport writes for it, made once for all who are sent it."""

    __slots__ = ("_forms", "body")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self._forms: dict[Framing, bytes] | None = None

    def form(self, framing: Framing) -> bytes:
        """Return the bytes of this message in a transport's framing."""
        if self._forms is None:
            self._forms = {}
        form = self._forms.get(framing)
        if form is None:
            form = self._forms[framing] = framing(self.body)
        return form


class Closing(Enum):
    """Why this side ends a connection; each transport has its own way to say it."""

    SLOW = auto()
    """A reply did not fit, or the client took nothing for too many events (behaviour 1.4, 8.6)."""
    DRAINING = auto()
    """This process stops (behaviour 14.3)."""
    CREDENTIAL_ENDED = auto()
    """The token was revoked or expired, the account disabled, the operator logged out (behaviour 1.4)."""
    ENDED = auto()
    """The client sends nothing more, and has its answers; or what it served goes on elsewhere."""
    FAILED = auto()
    """A fault of this server; the log has it."""


class Socket(Protocol):
    """The sending side of one client's transport. It holds what it is given until the system takes it."""

    def send(self, frame: Frame) -> None:
        """Hand one message over; a closed socket ignores it."""
        ...

    def is_full(self) -> bool:
        """Tell whether enough waits here; the transport calls `drained` when it no longer does."""
        ...

    def buffered(self) -> int:
        """Return how many bytes wait here for the system."""
        ...

    def taken(self) -> int:
        """Return how many bytes the system has taken since the socket was opened."""
        ...

    def pause_reading(self) -> None:
        """Take nothing more from the client for now."""
        ...

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        ...

    def close(self, reason: Closing) -> None:
        """Say goodbye behind what waits here, then end, also when the client never answers."""
        ...


class Outbox:
    """The outgoing queue of one connection, confined to its event loop."""

    def __init__(self, socket: Socket, on_overflow: Callable[[], None]) -> None:
        """Make an empty queue; `on_overflow` must close the connection, because an answer could not be
        queued.
        """
        self._socket = socket
        self._on_overflow = on_overflow
        self._queue: deque[tuple[Frame, bool]] = deque()
        self._queued_bytes = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._closed = False

    @property
    def closed(self) -> bool:
        """Tell whether nothing more is sent."""
        return self._closed

    def answer(self, frame: Frame) -> None:
        """Send an answer behind what waits; if it does not fit the connection ends, it is never dropped."""
        if self._closed:
            return
        if self._is_open():
            self._socket.send(frame)
            return
        if not self._fits(frame):
            self._drop_live()
        if not self._fits(frame):
            self._on_overflow()
            return
        self._push(frame, droppable=False)

    def offer_live(self, frame: Frame) -> None:
        """Send a live event, or queue it if there is room, or drop it."""
        if self._closed:
            return
        if self._is_open():
            self._socket.send(frame)
        elif self._fits(frame):
            self._push(frame, droppable=True)

    def offer_durable(self, frame: Frame) -> bool:
        """Send a durable event if nothing waits before it; otherwise refuse it and return False."""
        if self._closed or not self._is_open():
            return False
        self._socket.send(frame)
        return True

    async def until_open(self) -> None:
        """Wait until `offer_durable` may succeed, or the queue is closed."""
        while not (self._closed or self._is_open()):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def is_stuck(self, taken: int) -> bool:
        """Tell whether something waits and the system has taken nothing since it had taken `taken` bytes."""
        return self._socket.buffered() > 0 and self._socket.taken() == taken

    def taken(self) -> int:
        """Return how many bytes the system has taken so far."""
        return self._socket.taken()

    def drained(self) -> None:
        """Send what waits; the transport calls this when its socket is no longer full."""
        while self._queue and not self._socket.is_full():
            frame, _ = self._queue.popleft()
            self._queued_bytes -= len(frame.body)
            self._socket.send(frame)
        if self._is_open():
            self._wake()

    def close(self) -> None:
        """Drop what waits and let every waiter go."""
        self._closed = True
        self._queue.clear()
        self._queued_bytes = 0
        self._wake()

    def _is_open(self) -> bool:
        return not self._queue and not self._socket.is_full()

    def _fits(self, frame: Frame) -> bool:
        return (
            len(self._queue) < limits.MAX_OUTBOX_FRAMES
            and self._queued_bytes + len(frame.body) <= limits.MAX_OUTBOX_BYTES
        )

    def _push(self, frame: Frame, *, droppable: bool) -> None:
        self._queue.append((frame, droppable))
        self._queued_bytes += len(frame.body)

    def _drop_live(self) -> None:
        self._queue = deque(item for item in self._queue if not item[1])
        self._queued_bytes = sum(len(frame.body) for frame, _ in self._queue)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        # The first one may fill the socket again, and all come back in the order they were woken: so another
        # one is woken first each time.
        for turn in waiting[1:] + waiting[:1]:
            if not turn.done():
                turn.set_result(None)
