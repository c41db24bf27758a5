"""A client that costs almost nothing, so that what is measured is the server.

Owns: the opening handshake, whole unmasked text messages, matching answers to calls, the time at which each notification
arrived. Does not own: the shapes of params and results, which are the protocol's (`ochat_site.dialects.ochat1.types`), nor
anything a client must do to be correct: that is `ochat_client`, which decodes and checks every frame.

On two cores the client and the server share the processors. A frame costs this client about 10 µs.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ochat_client.methods import INITIALIZE, Method, P, R
from ochat_client.wire import request
from ochat_site.dialects.ochat1.types import PROTOCOL_VERSION, Implementation, InitializeParams

T = TypeVar("T")

MAX_EVENT_BYTES = 16 * 1024 * 1024
CALL_SECONDS = 60.0
"""No call takes nearly as long; reaching this bound fails the run."""

_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA
_ANSWER = b'{"jsonrpc":"2.0","id":'


class BenchError(Exception):
    """The server did not do what it was asked; the figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Told:
    """One notification, and when it arrived by `time.perf_counter`."""

    at: float
    frame: bytes


class _Answer(Struct):
    id: int
    result: Raw = Raw(b"null")
    error: Raw | UnsetType = UNSET


class WebSocket(asyncio.Protocol):
    """One WebSocket connection; `on_text` is called with every text message."""

    def __init__(self, host: str, path: str, headers: dict[str, str]) -> None:
        """Ask for `path` once the socket is open."""
        self.on_text: Callable[[bytes], None] = lambda _frame: None
        self.open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        lines = {
            "Host": host,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key,
            **headers,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._handshake = f"GET {path} HTTP/1.1\r\n{head}\r\n".encode()
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._handshake)

    def connection_lost(self, error: Exception | None) -> None:
        """Let everybody know who waits for the handshake or for the end."""
        if not self.open.done():
            self.open.set_exception(BenchError(f"the connection was refused: {error}"))
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Take the handshake's answer, then frames."""
        self._buffer = data if not self._buffer else self._buffer + data
        if not self.open.done():
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                return
            status = head.split(b" ", 2)[1]
            if status != b"101":
                self.open.set_exception(BenchError(f"the handshake was answered with {status.decode()}"))
                self.abort()
                return
            self._buffer = rest
            self.open.set_result(None)
        self._read_frames()

    def send(self, text: bytes) -> None:
        """Send a text message. A mask of zeros is a mask: the text stays as it is."""
        self._write(_TEXT, text)

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _write(self, opcode: int, payload: bytes) -> None:
        assert self._transport is not None
        size = len(payload)
        first = 0x80 | opcode
        if size < 126:
            head = struct.pack("!BB", first, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", first, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", first, 0x80 | 127, size)
        self._transport.write(head + b"\0\0\0\0" + payload)

    def _read_frames(self) -> None:
        buffer, start = self._buffer, 0
        while len(buffer) - start >= 2:
            size, body = buffer[start + 1], start + 2
            if size == 126:
                body += 2
            elif size == 127:
                body += 8
            if len(buffer) < body:
                break
            if size >= 126:
                size = int.from_bytes(buffer[start + 2 : body], "big")
            if len(buffer) < body + size:
                break
            self._take(buffer[start] & 0x0F, buffer[body : body + size])
            start = body + size
        self._buffer = buffer[start:]

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == _TEXT:
            self.on_text(payload)
        elif opcode == _PING:
            self._write(_PONG, payload)
        elif opcode == _CLOSE:
            self.abort()


async def open_websocket(port: int, path: str, **headers: str) -> WebSocket:
    """Return an open WebSocket to this machine. Raises BenchError or OSError when there is none to be had."""
    _, protocol = await asyncio.get_running_loop().create_connection(
        lambda: WebSocket(f"127.0.0.1:{port}", path, headers), "127.0.0.1", port
    )
    await protocol.open
    return protocol


class Peer:
    """One client of the protocol: calls one at a time or many, and what it is told."""

    def __init__(self, socket: WebSocket) -> None:
        """Speak over `socket`, which is open."""
        self.told: list[Told] = []
        self._socket = socket
        self._waiting: dict[int, asyncio.Future[_Answer]] = {}
        self._watches: list[tuple[tuple[bytes, ...], asyncio.Future[Told]]] = []
        self._next_id = 0
        socket.on_text = self._take

    @classmethod
    async def connect(cls, port: int, token: str) -> Peer:
        """Return an initialized client."""
        peer = cls(await open_websocket(port, "/v1/ws", Authorization=f"Bearer {token}"))
        await peer.call(
            INITIALIZE,
            InitializeParams(
                implementation=Implementation(name="bench", version="1"),
                protocol_min=PROTOCOL_VERSION,
                protocol_max=PROTOCOL_VERSION,
                features=(),
                event_encodings=("json",),
                max_inbound_event_bytes=MAX_EVENT_BYTES,
            ),
        )
        return peer

    async def __aenter__(self) -> Peer:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self.close()

    async def call(self, method: Method[P, R], params: P) -> R:
        """Call a method and return its result. Raises BenchError when it is refused."""
        return msgspec.json.decode(await self.ask(method.name, params), type=method.result)

    async def ask(self, method: str, params: object) -> Raw:
        """Call a method and return its result still encoded."""
        self._next_id += 1
        answered: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._waiting[self._next_id] = answered
        self._socket.send(request(self._next_id, method, params))
        async with asyncio.timeout(CALL_SECONDS):
            answer = await answered
        if answer.error is not UNSET:
            raise BenchError(f"{method} was refused: {bytes(answer.error).decode()}")
        return answer.result

    def watch(self, *marks: bytes) -> asyncio.Future[Told]:
        """Return the next notification that holds one of `marks`, once it is there."""
        seen: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
        self._watches.append((marks, seen))
        return seen

    async def close(self) -> None:
        """Drop the connection."""
        self._socket.abort()
        await self._socket.closed

    def _take(self, frame: bytes) -> None:
        now = time.perf_counter()
        if frame.startswith(_ANSWER):
            answer: Any = msgspec.json.decode(frame, type=_Answer)
            self._waiting.pop(answer.id).set_result(answer)
            return
        told = Told(now, frame)
        self.told.append(told)
        for watch in self._watches:
            marks, seen = watch
            if any(mark in frame for mark in marks):
                self._watches.remove(watch)
                seen.set_result(told)
                return
