"""How frames reach a server: the seam behind which every transport looks alike.

Owns: what a transport is, and which one a URI asks for. Does not own: what frames mean (`wire`), who answers
which (`client`). A transport moves whole envelopes, one per frame, in both directions at once. Transports that
have requests and a stream of their own fit too: they send each frame as a request and hand out answers and
stream alike through `receive`.
"""

from __future__ import annotations

import shlex
from typing import Protocol
from urllib.parse import unquote, urlsplit

from ochat_client.transports import http, lines, websocket

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""The largest envelope that a server may send us, and the event size that we announce (wire 2, 4)."""


class Transport(Protocol):
    """One open connection. After it has ended, every method but `close` raises ConnectionLost."""

    async def send(self, frame: bytes) -> None:
        """Send one envelope; waits while the server takes nothing."""
        ...

    async def receive(self) -> bytes:
        """Return the next envelope; called by one task at a time."""
        ...

    async def close(self) -> None:
        """End the connection in order; may be called again."""
        ...


async def open_transport(uri: str, *, token: str | None) -> Transport:
    """Connect to `ws://` or `wss://` (without a path the protocol's own is taken), `http://` or `https://`, to
    `unix:///path/of.sock`, or start a program that speaks on its standard streams, `stdio:COMMAND`.

    `token` is the bearer token, if the server wants one; sockets and programs of this machine know us without. Raises
    ConnectionRefused, and ValueError for a URI that no transport serves.
    """
    scheme = urlsplit(uri).scheme
    if scheme in ("ws", "wss"):
        return await websocket.connect(uri, token=token, max_frame_bytes=MAX_FRAME_BYTES)
    if scheme in ("http", "https"):
        return await http.connect(uri, token=token)
    if scheme == "unix":
        return await lines.connect(unix_path(uri), max_frame_bytes=MAX_FRAME_BYTES)
    if scheme == "stdio":
        command = shlex.split(uri.removeprefix("stdio:"))
        if not command:
            raise ValueError("stdio: needs a command")
        return await lines.start(command, max_frame_bytes=MAX_FRAME_BYTES)
    raise ValueError(
        f"no transport for {scheme or uri!r}: use ws://, wss://, http://, https://, unix:// or stdio:"
    )


def unix_path(uri: str) -> str:
    """Return the path that a `unix://` URI names; a relative one may stand where a host would."""
    address = urlsplit(uri)
    path = unquote(address.netloc + address.path)
    if not path:
        raise ValueError("unix:// needs the path of a socket, as in unix:///run/ochat/agent.sock")
    return path
