"""The protocol over WebSocket: one envelope per text message (behaviour 1.4).

Owns: the handshake, the framing of what is sent, the closing codes. Does not own: the socket and its limits
(`ochat_site.server`), how a credential is checked (`Authenticate`), what a message says (`rpc.connection`).
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl

import structlog

from ochat_site.rpc.outbox import Closing, Frame
from ochat_site.transports.extensions import SOCKET_EXTENSION
from sessions_app.errors import Refusal, Unauthenticated

if TYPE_CHECKING:
    from ochat_site.rpc.connection import Connection, Receiver
    from ochat_site.rpc.outbox import Socket
    from permissions_app.principals import Identity

logger = structlog.get_logger(__name__)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

CLOSE_CODES: Mapping[Closing, int] = MappingProxyType(
    {
        Closing.SLOW: 4408,
        Closing.DRAINING: 1012,
        Closing.CREDENTIAL_ENDED: 4401,
        Closing.ENDED: 1000,
        Closing.FAILED: 1011,
    }
)

Authenticate = Callable[[Scope], Awaitable["Identity"]]
"""Returns who asks for a connection, by its headers and peer; raises a `Refusal` for nobody."""

Connect = Callable[["Identity", "Socket"], "Connection"]
"""Makes the connection of an authenticated client and counts it among the open ones; raises a `Refusal` to
refuse it.
"""


class RawSocket(Protocol):
    """What the server offers of a WebSocket beside ASGI."""

    def listen(self, receiver: Receiver) -> None: ...
    def write(self, data: bytes) -> None: ...
    def is_full(self) -> bool: ...
    def buffered(self) -> int: ...
    def taken(self) -> int: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, code: int) -> None: ...


def text_message(body: bytes) -> bytes:
    """Return a whole, unmasked text message (RFC 6455, 5.2)."""
    size = len(body)
    if size < 126:
        return struct.pack("!BB", 0x81, size) + body
    if size < 1 << 16:
        return struct.pack("!BBH", 0x81, 126, size) + body
    return struct.pack("!BBQ", 0x81, 127, size) + body


class WebSocketSocket:
    """A WebSocket as a connection sees it: `rpc.outbox.Socket`."""

    __slots__ = ("_raw", "buffered", "is_full", "pause_reading", "resume_reading", "taken")

    def __init__(self, raw: RawSocket) -> None:
        """Send over `raw`."""
        self._raw = raw
        self.is_full = raw.is_full
        self.buffered = raw.buffered
        self.taken = raw.taken
        self.pause_reading = raw.pause_reading
        self.resume_reading = raw.resume_reading

    def send(self, frame: Frame) -> None:
        """Send one message."""
        self._raw.write(frame.form(text_message))

    def close(self, reason: Closing) -> None:
        """Close with the code of a reason."""
        self._raw.close(CLOSE_CODES[reason])


class WebSocketEndpoint:
    """The ASGI application of one WebSocket path."""

    def __init__(self, authenticate: Authenticate, connect: Connect) -> None:
        """Let in whom `authenticate` knows and `connect` takes; everybody else is refused with 403."""
        self._authenticate = authenticate
        self._connect = connect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one client from its handshake to its end."""
        await receive()
        raw: RawSocket = scope["extensions"][SOCKET_EXTENSION]
        try:
            if _carries_token(scope):
                raise Unauthenticated("credentials do not belong into a URL")
            identity = await self._authenticate(scope)
            connection = self._connect(identity, WebSocketSocket(raw))
        except Refusal as refusal:
            logger.info("websocket.refused", code=refusal.code)
            await send({"type": "websocket.close"})
            return
        raw.listen(connection)
        await send({"type": "websocket.accept"})
        # Everything else goes past here; the server ends with this application, and draining waits for it.
        await receive()
        await connection.wait_closed()


def _carries_token(scope: Scope) -> bool:
    names = (name for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
    return any(name.lower() == "access_token" for name in names)
