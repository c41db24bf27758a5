"""What the server and the transports say to each other through a scope, beside ASGI. Knows no Django: the server does not, either.

Owns: the names, and what stands behind them for an HTTP request. Does not own: the other end (`ochat_site.sockets`,
`ochat_site.server`), or what a WebSocket gets (`websocket.RawSocket`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

SOCKET_EXTENSION = "ochat.socket"
"""Where the `websocket.RawSocket` of a handshake is."""

STREAM_EXTENSION = "ochat.stream"
"""Where the `RawStream` of a request is."""

BODY_EXTENSION = "ochat.body_too_large"
"""In the scope of a request whose body exceeds the limit; the body is left out."""


class RawStream(Protocol):
    """A response that does not end: how it is written, and how much of it waits."""

    def listen(self, drained: Callable[[], None]) -> None: ...
    def send_part(self, data: bytes) -> None: ...
    def is_full(self) -> bool: ...
    def buffered(self) -> int: ...
    def taken(self) -> int: ...
    def end_response(self) -> None: ...
