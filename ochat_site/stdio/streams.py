"""Standard input and output as a connection sees them (behaviour 1.4).

Owns: taking the two streams away from everything else in the process, reading and writing them whatever they are, noticing that
nobody reads any more. Does not own: putting lines together (`transports.lines`), or who answers them (`host`, `gateway`).

A thread reads and a thread writes: a pipe, a terminal, a socket and a file all block alike, and none of them has to be changed,
which whoever shares it would notice. Both are daemons, because nothing wakes a thread out of a terminal.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ochat_site.env import ConfigError
from ochat_site.rpc.outbox import Closing, Frame
from ochat_site.transports.lines import CLOSE_SECONDS, FULL_BYTES, LineIntake, line
from sessions_app.limits import KIB

if TYPE_CHECKING:
    from ochat_site.rpc.connection import Receiver

READ_BYTES = 64 * KIB
WRITE_BYTES = 64 * KIB
"""A piece of what waits, so that it can be seen how much was taken."""


def take_streams() -> tuple[int, int]:
    """Return descriptors of standard input and output, which from now on are nobody else's.

    Whatever prints, prints to standard error, and whatever reads finds the end. Refuses with ConfigError a closed stream.
    """
    try:
        source, sink = os.dup(0), os.dup(1)
    except OSError:
        raise ConfigError("standard input and output must be open.") from None
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return source, sink


class Streams:
    """Two descriptors as one socket: `rpc.outbox.Socket`. Confined to the running loop, but for its two threads."""

    def __init__(self, source: int, sink: int) -> None:
        """Read from `source` and write to `sink`; both belong to this object. It reads nothing before `listen`."""
        self.closed = asyncio.Event()
        """All is written, or nobody reads any more."""
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._sink = sink
        self._receiver: Receiver | None = None
        self._may_read = threading.Event()
        self._paused = False
        self._ended = False
        self._writing = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._buffered = 0
        self._taken = 0
        self._full = False
        self._closing = False
        self._over = False
        self._roused, self._rouse = os.pipe()
        threading.Thread(target=self._write, name="stdout", daemon=True).start()

    def listen(self, receiver: Receiver) -> None:
        """Tell `receiver` what comes from now on; once."""
        self._receiver = receiver
        self._intake = LineIntake(receiver, "stdio")
        threading.Thread(target=self._read, name="stdin", daemon=True).start()
        if self.closed.is_set():
            receiver.lost()
        elif not self._paused:
            self._may_read.set()

    def end(self) -> None:
        """Take the input for ended, because this process is told to."""
        if not self._ended and self._receiver is not None:
            self._ended = True
            self._intake.eof()

    # For the connection

    def send(self, frame: Frame) -> None:
        """Write one line."""
        data = frame.form(line)
        with self._writing:
            if self._closing or self.closed.is_set():
                return
            for start in range(0, len(data), WRITE_BYTES):
                self._waiting.append(data[start : start + WRITE_BYTES])
            self._buffered += len(data)
            self._full = self._full or self._buffered > FULL_BYTES
        self._wake_writer()

    def is_full(self) -> bool:
        """Tell whether more than 64 KiB wait here, or did so and have not all been taken yet."""
        return self._full

    def buffered(self) -> int:
        """Return how many bytes wait here for the system."""
        return self._buffered

    def taken(self) -> int:
        """Return how many bytes the system has taken."""
        return self._taken

    def pause_reading(self) -> None:
        """Take nothing more for now, but for what is on its way."""
        self._paused = True
        self._may_read.clear()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        self._paused = False
        self._may_read.set()

    def close(self, reason: Closing) -> None:
        """End behind what waits; who takes nothing of it is not waited for."""
        with self._writing:
            self._closing = True
        self._wake_writer()
        self._watch(self._taken)

    # Reading

    def _read(self) -> None:
        data = b"."
        while data:
            self._may_read.wait()
            self._may_read.clear()
            try:
                data = self._read_some()
            except OSError:  # a terminal that hung up
                data = b""
            self._tell(self._arrived, data)
        os.close(self._source)

    def _read_some(self) -> bytes:
        while True:
            try:
                return os.read(self._source, READ_BYTES)
            except BlockingIOError:  # somebody else made it so
                select.select([self._source], [], [])

    def _arrived(self, data: bytes) -> None:
        if self._ended:
            return
        if not data:
            self.end()
        elif self._intake.data(data) and not self._paused:
            self._may_read.set()

    # Writing

    def _write(self) -> None:
        watch = select.poll()
        watch.register(self._roused, select.POLLIN)
        # Of the sink only what is always told: that it broke. A file never does.
        watch.register(self._sink, 0)
        try:
            while not self._is_done():
                if any(descriptor == self._sink for descriptor, _ in watch.poll()):
                    break
                os.read(self._roused, READ_BYTES)
                self._write_waiting()
        except OSError:  # nobody reads any more
            pass
        with self._writing:
            self._waiting.clear()
            self._over = True
            _end_output(self._sink)
            for descriptor in (self._sink, self._roused, self._rouse):
                os.close(descriptor)
        self._tell(self._gone)

    def _is_done(self) -> bool:
        with self._writing:
            return self._closing and not self._waiting

    def _write_waiting(self) -> None:
        while True:
            with self._writing:
                if not self._waiting:
                    return
                piece = self._waiting[0]
            try:
                written = os.write(self._sink, piece)
            except BlockingIOError:
                select.select([], [self._sink], [])
                continue
            with self._writing:
                self._waiting.popleft()
                if written < len(piece):
                    self._waiting.appendleft(piece[written:])
                self._buffered -= written
                self._taken += written
                emptied = self._full and not self._buffered
            if emptied:
                self._tell(self._emptied)

    def _emptied(self) -> None:
        with self._writing:
            if self._buffered:
                return  # Filled again meanwhile: this comes again.
            self._full = False
        if self._receiver is not None:
            self._receiver.drained()

    def _gone(self) -> None:
        with self._writing:
            self._waiting.clear()
            self._buffered = 0
        self.closed.set()
        if self._receiver is not None:
            self._receiver.lost()

    # Between the threads

    def _wake_writer(self) -> None:
        with self._writing:
            if not self._over:
                os.write(self._rouse, b".")

    def _tell(self, function: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # The loop is closed: the process ends.
            self._loop.call_soon_threadsafe(function, *args)

    def _watch(self, taken: int) -> None:
        self._loop.call_later(CLOSE_SECONDS, self._give_up, taken)

    def _give_up(self, taken: int) -> None:
        if self.closed.is_set():
            return
        if self._taken == taken:
            self._gone()
        else:
            self._watch(self._taken)


def _end_output(sink: int) -> None:
    """Let the reader see the end also where the input is the same socket, which is still open."""
    if stat.S_ISSOCK(os.fstat(sink).st_mode):
        with suppress(OSError), socket.socket(fileno=os.dup(sink)) as stream:
            stream.shutdown(socket.SHUT_WR)
