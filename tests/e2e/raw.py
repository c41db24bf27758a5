"""A WebSocket client that sends what no library would (RFC 6455, 5): any opcode, any bytes, half of a message."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

from tests.conformance.peers import WAIT_SECONDS
from tests.golden.contract import flaw_of

TEXT, BINARY, CLOSE, PING = 1, 2, 8, 9


class RawSocket:
    """One connection behind its handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(
        cls, port: int, headers: Sequence[tuple[bytes, bytes]], *, receive_buffer: int | None = None
    ) -> RawSocket:
        """Connect and shake hands."""
        client = socket.socket()
        client.setblocking(False)
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=client, limit=2**16)
        lines = [
            b"GET /v1/ws HTTP/1.1",
            b"host: 127.0.0.1",
            b"upgrade: websocket",
            b"connection: Upgrade",
            b"sec-websocket-version: 13",
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
            *(name + b": " + value for name, value in headers),
        ]
        writer.write(b"\r\n".join([*lines, b"", b""]))
        async with asyncio.timeout(WAIT_SECONDS):
            answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101"), answer
        return cls(reader, writer)

    async def send(self, payload: bytes, opcode: int = TEXT, *, final: bool = True) -> None:
        """Send one frame, masked with zeros; what the server no longer takes is dropped."""
        first, size = (0x80 if final else 0) | opcode, len(payload)
        if size < 126:
            head = struct.pack("!BB", first, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", first, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", first, 0x80 | 127, size)
        self.write(head + bytes(4) + payload)
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)

    async def receive(self) -> tuple[int, bytes]:
        """Return opcode and payload of the next frame. Raises EOFError behind the last."""
        async with asyncio.timeout(WAIT_SECONDS):
            first, size = await self._reader.readexactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", await self._reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self._reader.readexactly(8))
            return first & 0x0F, await self._reader.readexactly(size)

    async def text(self) -> bytes:
        """Return the next text message, which must be one that a server may send."""
        while True:
            opcode, payload = await self.receive()
            assert opcode != CLOSE, f"closed with {payload!r}"
            if opcode == TEXT:
                message = json.loads(payload)
                assert flaw_of(_definition(message), payload, message) is None
                return payload

    async def close_code(self) -> int:
        """Read to the closing frame and return its code."""
        while True:
            opcode, payload = await self.receive()
            if opcode == CLOSE:
                code: int = struct.unpack("!H", payload[:2])[0]
                return code

    async def close(self) -> None:
        """Break off."""
        self._writer.transport.abort()
        await asyncio.sleep(0)


def _definition(message: Any) -> str:
    """Return what a message of a server is, by itself: an answer does not say to what."""
    if "method" in message:
        return "SessionLiveEventNotification" if "live" in message["method"] else "SessionEventNotification"
    return "ErrorEnvelope" if "error" in message else "Envelope"
