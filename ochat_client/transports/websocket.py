"""WebSocket: one envelope per text message (behaviour 1.4).

Owns: the handshake and what its failures mean, and close codes. The library answers pings and sends its own,
so that a dead peer is noticed within a minute.
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import websockets
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_connection

from ochat_client.errors import ConnectionLost, ConnectionRefused

DEFAULT_PATH = "/v1/ws"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
UNREAD_FRAMES = 16
"""When so many frames wait to be received the socket is read no further, which is how a server learns that we are slow."""
FINAL_STATUSES = (400, 401, 403, 404, 405)
"""What a handshake is refused with when the same handshake will be refused again: credentials or address are wrong."""


class WebSocket:
    """An open WebSocket; see `Transport`."""

    def __init__(self, connection: ClientConnection) -> None:
        """Take over a connection whose handshake is done."""
        self._connection = connection

    async def send(self, frame: bytes) -> None:
        """Send one envelope."""
        try:
            await self._connection.send(frame, text=True)
        except websockets.ConnectionClosed as closed:
            raise _lost(closed) from None

    async def receive(self) -> bytes:
        """Return the next envelope."""
        try:
            return await self._connection.recv(decode=False)
        except websockets.ConnectionClosed as closed:
            raise _lost(closed) from None

    async def close(self) -> None:
        """Say goodbye and wait for the peer to do so too, for a few seconds at most."""
        await self._connection.close()


async def connect(uri: str, *, token: str | None, max_frame_bytes: int) -> WebSocket:
    """Open a WebSocket; see `open_transport`."""
    address = urlsplit(uri)
    if address.path in ("", "/"):
        address = address._replace(path=DEFAULT_PATH)
    try:
        connection = await open_connection(
            urlunsplit(address),
            additional_headers={"Authorization": f"Bearer {token}"} if token else None,
            max_size=max_frame_bytes,
            max_queue=UNREAD_FRAMES,
            compression=None,  # Answers are short or local; inflating would only add a way to be made to hold much.
            proxy=None if address.hostname in LOOPBACK else True,
        )
    except websockets.InvalidStatus as refusal:
        raise _refused(refusal.response.status_code) from None
    except (OSError, TimeoutError, websockets.InvalidHandshake, EOFError) as failure:
        raise ConnectionRefused(
            f"cannot connect: {str(failure) or type(failure).__name__}", final=False
        ) from None
    except websockets.InvalidURI:
        raise ConnectionRefused("this is no WebSocket address", final=True) from None
    return WebSocket(connection)


def _refused(status: int) -> ConnectionRefused:
    if status in (401, 403):
        return ConnectionRefused(f"the server does not accept these credentials (HTTP {status})", final=True)
    return ConnectionRefused(
        f"the server refused the handshake (HTTP {status})", final=status in FINAL_STATUSES
    )


def _lost(closed: websockets.ConnectionClosed) -> ConnectionLost:
    frame = closed.rcvd or closed.sent
    if frame is None:
        return ConnectionLost("the connection broke")
    return ConnectionLost(
        f"the connection was closed ({frame.code}{' ' + frame.reason if frame.reason else ''})",
        close_code=frame.code,
    )
