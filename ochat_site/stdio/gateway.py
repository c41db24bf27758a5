"""A gateway: lines on standard input and output, and a server behind any other transport (behaviour 1.4).

Owns: the rules of lines that the server behind never sees (malformed ones, order, the end of input), and the bounds on what waits
here. Does not own: the way to the server (`ochat_client.transports`), or anything that is said.

Calls go to the server one after another, each when the one before is answered: so their answers come in order also where the way
there knows none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import structlog
from msgspec import UNSET, Raw, Struct, UnsetType

from ochat_client.errors import ClientError
from ochat_site.dialects.ochat1.errors import to_error
from ochat_site.rpc import envelope
from ochat_site.rpc.envelope import Malformed, Notification, Request
from ochat_site.rpc.outbox import Closing, Frame
from sessions_app import limits
from sessions_app.errors import IncompatibleProtocol, Refusal, ResourceLimit

if TYPE_CHECKING:
    from ochat_client.transports import Transport
    from ochat_site.stdio.streams import Streams

logger = structlog.get_logger(__name__)

INBOX_LINES = 64
INBOX_BYTES = limits.MIB
"""When so much waits to be sent, no more is read until half of it is."""


class _Answered(Struct):
    id: Raw | UnsetType = UNSET
    method: str | UnsetType = UNSET


_read_head = msgspec.json.Decoder(_Answered).decode


class Gateway:
    """One client on the streams, one connection to the server."""

    def __init__(self, streams: Streams, upstream: Transport, uri: str) -> None:
        """Stand between `streams` and `upstream`, which `uri` led to."""
        self._streams = streams
        self._upstream = upstream
        self._by_requests = urlsplit(uri).scheme in ("http", "https")
        self._opened = False
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        self._gone = False
        self._answer: asyncio.Future[None] | None = None

    async def run(self) -> int:
        """Stand between them until one ends; return the exit code: 0 for the client's end, 1 for the server's."""
        self._streams.listen(self)
        loop = asyncio.get_running_loop()
        sending, receiving = loop.create_task(self._send_all()), loop.create_task(self._receive_all())
        await asyncio.wait([sending, receiving], return_when=asyncio.FIRST_COMPLETED)
        code = 0 if sending.done() and sending.exception() is None else 1
        for task in (sending, receiving):
            task.cancel()
        ended = await asyncio.gather(sending, receiving, return_exceptions=True)
        for error in ended:
            if isinstance(error, ClientError):
                logger.warning("gateway.lost", reason=str(error))
            elif isinstance(error, Exception):
                logger.error("gateway.failed", exc_info=error)
        self._streams.close(Closing.ENDED)
        await asyncio.gather(self._upstream.close(), self._streams.closed.wait())
        return code

    # What the streams tell: `rpc.connection.Receiver`

    def received(self, body: bytes) -> None:
        """Take one line; it is sent when its turn comes."""
        self._inbox.append(body)
        self._inbox_bytes += len(body)
        if len(self._inbox) >= INBOX_LINES or self._inbox_bytes >= INBOX_BYTES:
            self._streams.pause_reading()
        self._news.set()

    def drained(self) -> None:
        """Learn that the client takes more."""
        self._room.set()

    def ended(self) -> None:
        """Learn that no line follows."""
        self._ended = True
        self._news.set()

    def lost(self) -> None:
        """Learn that the client reads no more."""
        self._gone = True
        self._inbox.clear()
        self._news.set()
        self._room.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    # To the server

    async def _send_all(self) -> None:
        while not self._gone:
            if self._inbox:
                body = self._inbox.popleft()
                self._inbox_bytes -= len(body)
                if len(self._inbox) <= INBOX_LINES // 2 and self._inbox_bytes <= INBOX_BYTES // 2:
                    self._streams.resume_reading()
                await self._pass_on(body)
            elif self._ended:
                return
            else:
                self._news.clear()
                await self._news.wait()

    async def _pass_on(self, body: bytes) -> None:
        """Send a call and wait for its answer; what no server would take is answered here, or nowhere."""
        try:
            call = self._call(body)
        except Malformed as malformed:
            logger.info("gateway.unreadable", reason=malformed.message)
            if malformed.id is not None:
                await self._write(envelope.failure(malformed.id, to_error(malformed)))
            return
        if isinstance(call, Notification):
            # One that opens nothing has no use before the connection, and none but a request may come first there.
            if self._opened or not self._by_requests:
                await self._upstream.send(body)
            return
        try:
            self._check_way(call, body)
        except Refusal as refusal:
            await self._write(envelope.failure(call.id, to_error(refusal)))
            return
        self._answer = asyncio.get_running_loop().create_future()
        await self._upstream.send(body)
        self._opened = True
        await self._answer

    def _call(self, body: bytes) -> Request | Notification:
        match envelope.decode(body):
            case Request() as call:
                return call
            case Notification(method="protocol.ping") as ping:
                return ping
            case _:
                raise Malformed("only calls are taken, and of notifications only protocol.ping")

    def _check_way(self, call: Request, body: bytes) -> None:
        """Refuse what HTTP would refuse in a way that leaves no connection or no answer (behaviour 1.4)."""
        if not self._by_requests:
            return
        if not self._opened and call.method != "protocol.initialize":
            raise IncompatibleProtocol("the connection is not initialized")
        if envelope.nests_deeper(body, limits.MAX_JSON_DEPTH):
            raise ResourceLimit("the message is nested too deeply", retryable=False)

    # From the server

    async def _receive_all(self) -> None:
        while True:
            frame = await self._upstream.receive()
            await self._write(frame)
            head = _read_head(frame)
            if head.method is UNSET and self._answer is not None and not self._answer.done():
                self._answer.set_result(None)

    async def _write(self, frame: bytes) -> None:
        """Write a line once the client has taken what came before: what it does not read waits at the server."""
        while self._streams.is_full() and not self._gone:
            self._room.clear()
            await self._room.wait()
        self._streams.send(Frame(frame))
