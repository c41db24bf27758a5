"""One client's socket in the web process: Daphne's protocols, with back-pressure and our limits (design 3,
10).

Owns: how fast a client may be sent to, how much it may send, the closing of its socket. Does not own:
listening, starting and draining (`server`), what is said on a socket (`transports`).

Daphne and the libraries below it keep whatever an application sends until the client reads it, and whatever a
client sends until it is complete. Here `send` waits until the socket has room, and what arrives is counted as
it arrives.

Importing this module installs Twisted's reactor on an asyncio loop: only the process that serves does so.
"""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ochat_site.daphne_parts import http, http_protocol, ws_protocol
from sessions_app import limits

if TYPE_CHECKING:
    from ochat_site.rpc.connection import Receiver

HANDSHAKE_SECONDS = 20
"""For checking a credential, which may wait for the store."""

REQUEST_SECONDS = 300
"""How long a request may take to arrive whole: 16 MiB at half a megabit. A client that sends a byte now and then is never idle."""

CLOSE_SECONDS = 10
"""How long a client may take to read what waits for it and our goodbye."""

KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""A peer that vanished is noticed by the kernel within a minute. A missing pong proves nothing: a client
that reads slowly answers a ping late, and lagging is allowed (behaviour 8.6).
"""


class _Flow:
    """A push producer: Twisted pauses it when its buffer is full, and resumes it when the buffer is empty."""

    _full = False
    _room: asyncio.Future[None] | None = None

    def pauseProducing(self) -> None:  # noqa: N802 - Twisted's name
        self._full = True

    def resumeProducing(self) -> None:  # noqa: N802 - Twisted's name
        self._full = False
        room, self._room = self._room, None
        if room is not None:
            room.set_result(None)

    def stopProducing(self) -> None:  # noqa: N802 - Twisted's name
        self.resumeProducing()

    async def until_room(self) -> None:
        """Wait until the system has taken what was sent, or nobody will any more."""
        while self._full:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._room)


def _waiting(transport: Any) -> int:
    """Return how many bytes wait in a transport for the system."""
    waiting: int = len(transport.dataBuffer) - transport.offset + transport._tempDataLen
    return waiting


def _keep_alive(transport: Any) -> None:
    """Let the kernel notice it when the other end of a connection has vanished."""
    transport.setTcpKeepAlive(1)
    for option, value in KEEPALIVE:
        transport.getHandle().setsockopt(socket.IPPROTO_TCP, option, value)


class WebSocketProtocol(_Flow, ws_protocol.WebSocketProtocol):  # type: ignore[misc]  # untyped
    """One WebSocket. An application that takes a `Receiver` to `listen` gets and sends frames past ASGI."""

    _receiver: Receiver | None = None
    _lost = False
    _written = 0
    _wrote = False
    _unanswered_ping: bytes | None = None
    _abort_call: asyncio.TimerHandle | None = None

    # For the application

    def listen(self, receiver: Receiver) -> None:
        """Tell `receiver` what the client sends from now on, and when it is gone; once, before the accept."""
        self._receiver = receiver
        if self._lost:
            receiver.lost()

    def write(self, data: bytes) -> None:
        """Send bytes that are whole WebSocket messages; a closed socket ignores them."""
        if self.state == self.STATE_OPEN:
            self.sendData(data)

    def is_full(self) -> bool:
        """Tell whether more than 64 KiB wait here, or did so and have not all been taken yet."""
        return self._full

    def buffered(self) -> int:
        """Return how many bytes wait here for the system."""
        return _waiting(self.transport)

    def taken(self) -> int:
        """Return how many bytes the system has taken."""
        return self._written - self.buffered()

    def pause_reading(self) -> None:
        """Take nothing more from the client for now."""
        self.transport.pauseProducing()

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
        self.transport.resumeProducing()

    def close(self, code: int) -> None:
        """Say goodbye behind what waits, and drop the client if it has not answered within
        `CLOSE_SECONDS`.
        """
        if self.state == self.STATE_OPEN:
            self.resume_reading()  # For its answer.
            self.sendCloseFrame(code=code)

    # What Twisted, Autobahn and Daphne call

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name
        super().connectionMade()
        # The HTTP channel that received the handshake is still registered, and would stop reading when this
        # is full.
        self.transport.unregisterProducer()
        self.transport.registerProducer(self, True)  # noqa: FBT003 - Twisted's signature
        _keep_alive(self.transport)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        # Past Autobahn's adapter, which formats a log line for every chunk, logged or not.
        self._dataReceived(data)

    def sendData(self, data: bytes, *_: Any, **__: Any) -> None:  # noqa: N802 - Autobahn's name
        self._written += len(data)
        if not (self._wrote or self.buffered()):
            # At once, without the turn of the loop in which the socket would be found writable: most frames are
            # alone. Those that follow in this turn are gathered.
            self._wrote = True
            asyncio.get_running_loop().call_soon(self._end_turn)
            sent = self.transport.writeSomeData(data)
            if isinstance(sent, int):
                data = data[sent:]
        if data:
            self.transport.write(data)

    def _end_turn(self) -> None:
        self._wrote = False

    def resumeProducing(self) -> None:  # noqa: N802 - Twisted's name
        super().resumeProducing()
        payload, self._unanswered_ping = self._unanswered_ping, None
        if payload is not None:
            self.onPing(payload)
        if self._receiver is not None and not self._lost:
            self._receiver.drained()

    def onPing(self, payload: bytes) -> None:  # noqa: N802 - Autobahn's name
        # Who pings and does not read is owed the last pong only (RFC 6455, 5.5.3).
        if self._full:
            self._unanswered_ping = payload
        else:
            super().onPing(payload)

    def onMessageBegin(self, isBinary: bool) -> None:  # noqa: N802, N803, FBT001 - Autobahn's
        super().onMessageBegin(isBinary)
        if isBinary and not self.failedByMe:
            self._fail_connection(self.CLOSE_STATUS_CODE_UNSUPPORTED_DATA, "text only")

    def onMessage(self, payload: bytes, isBinary: bool) -> None:  # noqa: N802, N803, FBT001 - Autobahn's
        if self.state != self.STATE_OPEN:
            return
        if self._receiver is None:
            super().onMessage(payload, isBinary)
        else:
            self._receiver.received(payload)

    def onCloseFrame(self, code: int | None, reasonRaw: bytes | None) -> Any:  # noqa: N802, N803 - Autobahn's
        stop = super().onCloseFrame(code, reasonRaw)
        self._lose()
        return stop

    def onClose(self, wasClean: bool, code: int | None, reason: str | None) -> None:  # noqa: N802, N803, FBT001 - Autobahn's
        if self._abort_call is not None:
            self._abort_call.cancel()
        if hasattr(self, "server"):  # Otherwise its handshake never reached Daphne.
            super().onClose(wasClean, code, reason)
        self._lose()

    def check_timeouts(self) -> None:
        """Ping, unless the client has something to read anyway."""
        if not self._full:
            super().check_timeouts()

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            if self._receiver is not None:
                self._receiver.lost()

    def _max_message_size_exceeded(self, *args: Any) -> None:
        super()._max_message_size_exceeded(*args)
        self.message_data: list[bytes] = []
        self.frame_data: list[bytes] = []

    def _protocol_violation(self, reason: str) -> bool:
        # What follows in the stream means nothing any more, so nothing of it is read or kept.
        super()._protocol_violation(reason)
        self.dropConnection()
        return True

    def _closeConnection(self, abort: bool = False) -> None:  # noqa: N802, FBT001, FBT002 - Autobahn's
        super()._closeConnection(abort)
        if not abort:
            # An orderly close waits until all is sent, which a client that does not read never lets happen.
            loop = asyncio.get_running_loop()
            self._abort_call = loop.call_later(CLOSE_SECONDS, self.transport.abortConnection)


class WebSocketFactory(ws_protocol.WebSocketFactory):  # type: ignore[misc]  # untyped
    """Makes `WebSocketProtocol`s."""

    protocol = WebSocketProtocol


class WebRequest(_Flow, http_protocol.WebRequest):  # type: ignore[misc]  # untyped
    """One HTTP request; a body above the limit ends it at once, with no body at all.

    To an application that streams it is a `transports.extensions.RawStream`.
    """

    body_too_large = False
    content: Any
    _received = 0
    _drained: Callable[[], None] | None = None

    def __init__(self, channel: HttpChannel, *args: Any) -> None:
        super().__init__(channel, *args)
        self._parsePOSTFormSubmission = False  # Django reads forms.

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - Twisted's name
        super().gotLength(length)
        if length is not None and length > limits.MAX_FRAME_BYTES:
            self._answer_early()

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        if self.body_too_large:
            return
        self._received += len(data)
        if self._received > limits.MAX_FRAME_BYTES:
            self._answer_early()
        else:
            super().handleContentChunk(data)

    # For an application that streams

    def listen(self, drained: Callable[[], None]) -> None:
        """Call `drained` whenever the system has taken what waited."""
        self._drained = drained
        channel = self.channel
        if channel is not None:
            _keep_alive(channel.transport)

    def send_part(self, data: bytes) -> None:
        """Send a part of the response past ASGI; one that has ended, or whose client is gone, ignores it."""
        if not (self.finished or self.channel is None):
            self.write(data)

    def is_full(self) -> bool:
        """Tell whether more than 64 KiB wait here, or did so and have not all been taken yet."""
        return self._full

    def buffered(self) -> int:
        """Return how many bytes wait here for the system."""
        return 0 if self.channel is None else _waiting(self.channel.transport)

    def taken(self) -> int:
        """Return how many bytes of its connection the system has taken."""
        return 0 if self.channel is None else self.channel.written - self.buffered()

    def end_response(self) -> None:
        """End the response and its connection behind what waits, or drop a client that takes nothing of it for long."""
        channel = self.channel
        if self.finished or channel is None:
            return
        channel.persistent = 0
        transport = channel.transport
        self.finish()
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, transport.abortConnection)

    # What Twisted and Daphne call

    def resumeProducing(self) -> None:  # noqa: N802 - Twisted's name
        super().resumeProducing()
        if self._drained is not None and not self.finished:
            self._drained()

    def finish(self) -> None:
        """End the response; what of it waits is bounded by what the application sent last."""
        if self.producer is not None and not self.finished:
            self.unregisterProducer()
        self.resumeProducing()
        super().finish()

    def _answer_early(self) -> None:
        self.body_too_large = True
        self.content.close()
        self.content = io.BytesIO()
        self.responseHeaders.setRawHeaders(b"connection", [b"close"])
        self.channel.refuse_body()


class HttpChannel(http.HTTPChannel):  # type: ignore[misc]  # used untyped, see above
    """One HTTP/1.1 connection."""

    requestFactory = WebRequest  # noqa: N815 - Twisted's name
    _refused = False
    written = 0
    """How many bytes were handed to the socket."""

    _deadline: asyncio.TimerHandle | None = None

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        self._has_arrived()
        super().connectionLost(reason)

    def _has_arrived(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def refuse_body(self) -> None:
        """Answer the request that is being received as if it were complete, and take nothing more."""
        self._refused = True
        self._has_arrived()
        self.setTimeout(None)
        self.requests[-1].requestReceived(self._command, self._path, self._version)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        if self._deadline is None and not self._handlingRequest:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(REQUEST_SECONDS, self.forceAbortClient)
        if not self._refused:
            super().dataReceived(data)

    def allContentReceived(self) -> None:  # noqa: N802 - Twisted's name
        self._has_arrived()
        if not self._refused:
            super().allContentReceived()

    def requestDone(self, request: WebRequest) -> None:  # noqa: N802 - Twisted's name
        if self._refused:
            self.persistent = 0
        super().requestDone(request)

    def loseConnection(self) -> None:  # noqa: N802 - Twisted's name
        if not self._refused:
            super().loseConnection()
            return
        # A client that is still sending would lose the answer to a reset: what it sends is read and dropped.
        self.transport.unregisterProducer()
        self.transport.loseWriteConnection()
        self.transport.resumeProducing()
        asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.transport.abortConnection)

    def write(self, data: bytes) -> None:
        """Hand bytes to the socket."""
        self.written += len(data)
        super().write(data)

    def writeSequence(self, iovec: Sequence[bytes]) -> None:  # noqa: N802 - Twisted's name
        self.written += sum(map(len, iovec))
        super().writeSequence(iovec)

    def _send100Continue(self) -> None:  # noqa: N802 - Twisted's name
        if not self._refused:
            super()._send100Continue()


class HttpFactory(http_protocol.HTTPFactory):  # type: ignore[misc]  # untyped
    """Makes `HttpChannel`s: HTTP/1.1 alone."""

    protocol = HttpChannel

    def buildProtocol(self, addr: Any) -> HttpChannel:  # noqa: N802 - Twisted's name
        # Past Daphne's, which would set its own class of requests.
        channel: HttpChannel = http.HTTPFactory.buildProtocol(self, addr)
        return channel

    def log(self, request: WebRequest) -> None:
        """Write no access log."""
