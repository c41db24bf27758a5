"""The protocol over lines: one envelope per `\\n`-terminated line, on a Unix socket or on stdio (behaviour 1.4).

Owns: putting lines together and their bound, the framing of what is sent, a stream socket as a connection sees it. Does not own:
who may connect (`unix`, `peers`), the streams of stdio (`stdio`), what a line says (`rpc.connection`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

import structlog

from ochat_site.rpc.outbox import Closing, Frame
from sessions_app import limits

if TYPE_CHECKING:
    from ochat_site.rpc.connection import Receiver

logger = structlog.get_logger(__name__)

FULL_BYTES = 64 * limits.KIB
"""When more waits here for the system, a socket is full until the system has taken all of it."""

CLOSE_SECONDS = 10
"""How long a client may take nothing of what waits for it once its socket is closed."""


def line(body: bytes) -> bytes:
    """Return a message as it is written; no frame holds a line end (`rpc.envelope`)."""
    return body + b"\n"


class LineTooLong(Exception):
    """A line above the limit: what follows in the stream means nothing any more."""


class Lines:
    """Puts lines together from pieces as they arrive, and keeps no more than one line of the largest size."""

    def __init__(self, limit: int = limits.MAX_FRAME_BYTES) -> None:
        """Take lines of at most `limit` bytes, their ends not counted."""
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that a piece ends, without their ends. Raises LineTooLong behind those before it."""
        *ended, begun = data.split(b"\n")
        for piece in ended:
            self._add(piece)
            yield self.rest()
        self._add(begun)

    def rest(self) -> bytes:
        """Return the line that is not ended, and begin another."""
        whole = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self._size = [], 0
        return whole

    def _add(self, piece: bytes) -> None:
        if not piece:
            return
        self._size += len(piece)
        if self._size > self._limit:
            self._parts = []
            raise LineTooLong
        self._parts.append(piece)


class LineIntake:
    """Hands what arrives on a stream to a receiver, line by line; the same for every line transport."""

    def __init__(self, receiver: Receiver, name: str) -> None:
        """`name` says in the log what carried a line."""
        self._receiver = receiver
        self._name = name
        self._lines = Lines()
        self._over = False

    def data(self, data: bytes) -> bool:
        """Take a piece; False when nothing more is to be read, because a line was too long."""
        if self._over:
            return False
        try:
            for body in self._lines.feed(data):
                self._receiver.received(body)
        except LineTooLong:
            logger.info("lines.too_long", transport=self._name)
            self._over = True
            self._receiver.ended()
            return False
        return True

    def eof(self) -> None:
        """Learn that nothing more comes. A last line that lacks its end counts: half an object is none, whoever cut it."""
        if self._over:
            return
        self._over = True
        rest = self._lines.rest()
        if rest:
            self._receiver.received(rest)
        self._receiver.ended()


class LineSocket(asyncio.Protocol):
    """A connected stream socket as a connection sees it: `rpc.outbox.Socket`. It reads nothing before `listen`."""

    def __init__(self, on_open: Callable[[LineSocket], None], on_gone: Callable[[LineSocket], None]) -> None:
        """`on_open` is called when it is connected, `on_gone` when its descriptor is closed."""
        self._on_open = on_open
        self._on_gone = on_gone
        self._receiver: Receiver | None = None
        self._full = False
        self._lost = False
        self._written = 0

    @property
    def transport(self) -> asyncio.Transport:
        """What carries it."""
        return self._transport

    def listen(self, receiver: Receiver) -> None:
        """Tell `receiver` what the client sends from now on, and when it is gone; once."""
        self._receiver = receiver
        self._intake = LineIntake(receiver, "unix_socket")
        if self._lost:
            receiver.lost()
        else:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, whatever waits."""
        self._transport.abort()

    # For the connection

    def send(self, frame: Frame) -> None:
        """Send one line."""
        if not self._transport.is_closing():
            data = frame.form(line)
            self._written += len(data)
            self._transport.write(data)

    def is_full(self) -> bool:
        """Tell whether more than 64 KiB wait here, or did so and have not all been taken yet."""
        return self._full

    def buffered(self) -> int:
        """Return how many bytes wait here for the system."""
        return self._transport.get_write_buffer_size()

    def taken(self) -> int:
        """Return how many bytes the system has taken."""
        return self._written - self.buffered()

    def pause_reading(self) -> None:
        """Take nothing more from the client for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        self._transport.resume_reading()

    def close(self, reason: Closing) -> None:
        """Close behind what waits, without a word: lines have no closing codes. Who takes nothing of it is cut off."""
        self._transport.close()
        if not self._lost:
            self._watch(self.taken())

    def _watch(self, taken: int) -> None:
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._cut_off, taken)

    def _cut_off(self, taken: int) -> None:
        if self._lost:
            return
        if self.taken() == taken:
            self._transport.abort()
        else:
            self._watch(self.taken())

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`, as all below."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=FULL_BYTES, low=0)
        self._transport.pause_reading()
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        if not self._intake.data(data):
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._intake.eof()
        return True  # The client may still read: it is closed behind its answers.

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        if self._receiver is not None and not self._lost:
            self._receiver.drained()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        if self._receiver is not None:
            self._receiver.lost()
        self._on_gone(self)
