"""Lines: one envelope per line, over a Unix socket or with a program's standard streams (behaviour 1.4).

Owns: reading and writing lines on a connected stream socket, connecting to a path, starting a program. Nothing is read before it
is asked for, so that a server learns from the system that we are slow.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio.subprocess import Process
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ochat_client.errors import ConnectionLost, ConnectionRefused, ProtocolViolation

CHUNK_BYTES = 256 * 1024
EXIT_SECONDS = 40.0
"""How long a program may take to end once its input has ended: a host's own grace, and a little more."""


class LineTransport:
    """A connected stream socket; see `Transport`."""

    def __init__(self, stream: socket.socket, max_frame_bytes: int) -> None:
        """Take over a connected, non-blocking socket."""
        self._stream = stream
        self._max_frame_bytes = max_frame_bytes
        self._received = bytearray()
        self._searched = 0
        self._sending = asyncio.Lock()
        self._waiting = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._closed = False

    async def send(self, frame: bytes) -> None:
        """Send one envelope."""
        async with self._sending:
            with self._use() as stream:
                await asyncio.get_running_loop().sock_sendall(stream, frame + b"\n")

    async def receive(self) -> bytes:
        """Return the next envelope."""
        while (end := self._received.find(b"\n", self._searched)) < 0:
            self._searched = len(self._received)
            if self._searched > self._max_frame_bytes:
                raise ProtocolViolation("the server sent a line that is too long")
            self._received += await self._next()
        frame = bytes(self._received[:end])
        del self._received[: end + 1]
        self._searched = 0
        return frame

    async def close(self) -> None:
        """End the connection."""
        if not self._closed:
            self._closed = True
            # Wakes whoever still waits in here; closing alone would not.
            with suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)
            await self._unused.wait()
            self._stream.close()

    async def end_input(self) -> None:
        """Tell the server that nothing more comes; its answers may still be received."""
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_WR)

    async def _next(self) -> bytes:
        with self._use() as stream:
            data = await asyncio.get_running_loop().sock_recv(stream, CHUNK_BYTES)
        if not data:
            raise ConnectionLost("the server closed the connection")
        return data

    @contextmanager
    def _use(self) -> Iterator[socket.socket]:
        """Keep the socket open through the block, in which its failures are ConnectionLost."""
        if self._closed:
            raise ConnectionLost("the connection was closed here")
        self._waiting += 1
        self._unused.clear()
        try:
            yield self._stream
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error.strerror or error}") from None
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._unused.set()


class ProgramTransport(LineTransport):
    """A program that speaks the protocol on its standard input and output; see `Transport`."""

    def __init__(self, stream: socket.socket, max_frame_bytes: int, program: Process) -> None:
        """Take over our end of the socket that is a running program's input and output."""
        super().__init__(stream, max_frame_bytes)
        self.program = program

    async def close(self) -> None:
        """End the program's input and wait until it ends; one that does not is killed."""
        await super().close()
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                await self.program.wait()
        except TimeoutError:
            self.program.kill()
            await self.program.wait()


async def connect(path: str, *, max_frame_bytes: int) -> LineTransport:
    """Connect to a Unix socket. Raises ConnectionRefused, final where the path itself is wrong."""
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stream.settimeout(0)
    try:
        await asyncio.get_running_loop().sock_connect(stream, path)
    except OSError as error:
        stream.close()
        reason = error.strerror or str(error)  # Python's own word for a path that is too long has no number.
        final = error.errno is None or isinstance(error, PermissionError | NotADirectoryError)
        raise ConnectionRefused(f"cannot connect to {path}: {reason}", final=final) from None
    return LineTransport(stream, max_frame_bytes)


async def start(command: Sequence[str], *, max_frame_bytes: int) -> ProgramTransport:
    """Start a program and speak with it. Raises ConnectionRefused when it cannot be started."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.settimeout(0)
    try:
        program = await asyncio.create_subprocess_exec(
            *command, stdin=theirs.fileno(), stdout=theirs.fileno()
        )
    except OSError as error:
        ours.close()
        raise ConnectionRefused(f"cannot start {command[0]}: {error.strerror}", final=True) from None
    finally:
        theirs.close()
    return ProgramTransport(ours, max_frame_bytes, program)
