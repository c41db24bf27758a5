"""Events over HTTP: the stream of a logical connection and the stream of one session (behaviour 1.4, 8.3, 8.6).

Owns: server-sent events as a socket, keep-alives, which stream of a connection counts, the hidden attachment behind a session's
stream. Does not own: what a subscriber is sent and when (`rpc.feed`), the rows (`sessions_app.commands`), requests (`http`).

A stream is a `rpc.connection.Connection` from which nothing comes: its outgoing side, its end and what watches it are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

import structlog

from ochat_site.dialects.ochat1.events import Notifications, SessionStream
from ochat_site.rpc.connection import Connection, Connections, ConnectionServices
from ochat_site.rpc.outbox import Closing, Frame
from ochat_site.transports.extensions import STREAM_EXTENSION, RawStream
from ochat_site.transports.http import Request, find_connection
from ochat_site.transports.resources import Audited, caller_of
from sessions_app import broadcast, ids, limits
from sessions_app.commands import attachments, logical
from sessions_app.db import in_db
from sessions_app.errors import (
    IncompatibleProtocol,
    InternalError,
    InvalidRequest,
    Refusal,
    ServerShuttingDown,
)

if TYPE_CHECKING:
    from ochat_site.rpc.context import Server
    from ochat_site.rpc.feed import FeedHub
    from permissions_app.principals import Identity
    from sessions_app.commands.logical import Place

logger = structlog.get_logger(__name__)

CONNECTION_SIGNAL = "logical_connection"
"""Says that the attachments of a logical connection have changed, or that another stream waits for its place."""

HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
)

CONNECTED = b": connected\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

MISSED_KEEP_ALIVES = 3
"""After so many that its socket did not take, nobody reads the stream of a session any more (behaviour 8.3)."""

TAKE_OVER_SECONDS = 30
"""How long a new stream waits for the old one to end; a process that died is found dead sooner than that."""

TAKE_OVER_PAUSE_SECONDS = 0.05


def data_frame(body: bytes) -> bytes:
    """Return an unnamed SSE frame of one line."""
    return b"data: %b\n\n" % body


def as_it_is(body: bytes) -> bytes:
    """Return what is an SSE frame already."""
    return body


class StreamSocket:
    """A response that does not end, as a connection sees it: `rpc.outbox.Socket`."""

    def __init__(
        self, raw: RawStream, framing: Callable[[bytes], bytes], goodbyes: Mapping[Closing, bytes]
    ) -> None:
        """Send over `raw`; `goodbyes` are the last frames, where an end has one."""
        self._raw = raw
        self._framing = framing
        self._goodbyes = goodbyes
        self.is_full = raw.is_full
        self.buffered = raw.buffered
        self.taken = raw.taken

    def send(self, frame: Frame) -> None:
        """Send one event."""
        self._raw.send_part(frame.form(self._framing))

    def comment(self, text: bytes) -> None:
        """Send a comment, which is no event."""
        self._raw.send_part(text)

    def pause_reading(self) -> None:
        """Do nothing: nothing comes from the client."""

    def resume_reading(self) -> None:
        """Do nothing."""

    def close(self, reason: Closing) -> None:
        """End the response behind what waits."""
        goodbye = self._goodbyes.get(reason)
        if goodbye is not None:
            self._raw.send_part(goodbye)
        self._raw.end_response()


class KeepAlive:
    """The comments that keep a stream open, and by which a client that is gone is noticed."""

    def __init__(self, socket: StreamSocket, on_missed: Callable[[], None] | None) -> None:
        """Begin; `on_missed` is called when several in a row were not taken."""
        self._socket = socket
        self._on_missed = on_missed
        self._missed = 0
        self._taken = socket.taken()
        self._interval = keep_alive_seconds()
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)

    def stop(self) -> None:
        """End."""
        self._timer.cancel()

    def _tick(self) -> None:
        stuck = self._socket.buffered() > 0 and self._socket.taken() == self._taken
        self._missed = self._missed + 1 if stuck else 0
        self._taken = self._socket.taken()
        if not self._socket.is_full():
            self._socket.comment(KEEP_ALIVE)
        self._timer = asyncio.get_running_loop().call_later(self._interval, self._tick)
        if self._missed >= MISSED_KEEP_ALIVES and self._on_missed is not None:
            self._on_missed()


def keep_alive_seconds() -> float:
    """Return the pause between two keep-alives: 15 s, or less where idle connections end sooner (behaviour 8.3)."""
    return min(15.0, max(0.1, limits.server().idle_connection_timeout_ms / 2000))


async def _serve(request: Request, connection: Connection, keep_alive: KeepAlive) -> None:
    """Wait for the end of a stream, whoever brings it about."""
    try:
        while (await request.receive())["type"] == "http.request":
            pass  # what a GET brings along is not looked at
    finally:
        keep_alive.stop()
        connection.lost()
    await connection.wait_closed()


async def _never(_connection: Connection, _frame: bytes) -> None:
    """Handle nothing: nothing is received."""


class ConnectionStreams:
    """`GET /v1/events`: the event streams of the logical connections that this process holds."""

    def __init__(self, server: Server, hub: FeedHub, connections: Connections) -> None:
        """Count streams among `connections`, which are watched and drained."""
        self._server = server
        self._connections = connections
        self._services = ConnectionServices(
            handle=_never,
            hub=hub,
            dialect=Notifications(),
            on_close=self._ended,
            transport=logical.TRANSPORT,
        )
        self._open: dict[str, Connection] = {}
        self._owed: dict[str, Mapping[str, int]] = {}
        """Ends that the store did not take; the next look tells it again."""
        self._tasks: set[asyncio.Task[None]] = set()

    # For requests

    async def get(self, request: Request, identity: Identity, _named: Mapping[str, str]) -> None:
        """Serve the events of one logical connection until either side ends it."""
        found = await find_connection(request, identity)
        if self._server.draining:
            raise ServerShuttingDown("the server is shutting down")
        if not found.initialized:
            raise IncompatibleProtocol("the connection is not initialized")
        await self._take(found.id)
        raw: RawStream = request.scope["extensions"][STREAM_EXTENSION]
        socket = StreamSocket(raw, data_frame, {})
        connection = Connection(found.id, identity, socket, self._services)
        connection.max_event_bytes = found.max_event_bytes
        self._open[found.id] = connection
        self._spawn(self._connections.hold(connection))
        await request.start(HTTPStatus.OK, HEADERS)
        socket.comment(CONNECTED)
        raw.listen(connection.drained)
        self._spawn(self._look([found.id]))
        await _serve(request, connection, KeepAlive(socket, None))

    def close_attachment(self, connection_id: str, attachment_id: str) -> None:
        """End the subscription of an attachment, if a stream here serves it."""
        connection = self._open.get(connection_id)
        if connection is not None:
            connection.close_attachment(attachment_id)

    def changed(self, connection_id: str) -> None:
        """Let whoever streams the connection, in any process, look at its attachments again."""
        broadcast.signal(CONNECTION_SIGNAL, connection_id)

    # For the process

    def heard(self, connection_id: str) -> None:
        """Look at a connection again, because somebody says that it changed."""
        if connection_id in self._open:
            self._spawn(self._look([connection_id]))

    async def watch(self) -> None:
        """Look at every connection again, because signals may be lost; and tell the store what it did not take before."""
        for connection_id, handed in list(self._owed.items()):
            await in_db(logical.give_up_stream, connection_id, handed)
            self._owed.pop(connection_id, None)
        if self._open:
            await self._look(list(self._open))

    # Inside

    async def _take(self, connection_id: str) -> None:
        """Get the place of the one stream of a connection; the present one, wherever it is held, ends."""
        stream_id = ids.new_id("str")
        await in_db(logical.announce_stream, connection_id, stream_id)
        for _ in range(int(TAKE_OVER_SECONDS / TAKE_OVER_PAUSE_SECONDS)):
            present = self._open.get(connection_id)
            if present is not None:
                present.close(Closing.ENDED)
                await present.wait_closed()
            if await in_db(logical.take_stream, connection_id, stream_id):
                return
            self.changed(connection_id)
            await asyncio.sleep(TAKE_OVER_PAUSE_SECONDS)
        raise InternalError("the present event stream of the connection does not end", retryable=True)

    async def _look(self, connection_ids: Iterable[str]) -> None:
        """Bring the subscriptions of some streams up to what their rows say; end those that go on elsewhere."""
        looked_at = {one: self._open[one] for one in connection_ids if one in self._open}
        seen = await in_db(logical.look, list(looked_at))
        for connection_id, connection in looked_at.items():
            if connection.is_closing:
                continue
            places = seen.get(connection_id)
            if places is None:
                connection.close(Closing.ENDED)
            else:
                self._subscribe(connection, places)

    def _subscribe(self, connection: Connection, places: Iterable[Place]) -> None:
        wanted = {place.attachment_id: place for place in places}
        for attachment_id in connection.attachments.keys() - wanted.keys():
            connection.close_attachment(attachment_id)
        view = caller_of(connection.identity).view
        for attachment_id in wanted.keys() - connection.attachments.keys():
            place = wanted[attachment_id]
            connection.open_attachment(
                attachment_id, place.session_id, place.mode, view=view, after=place.handed
            )
        connection.release()

    async def _ended(self, connection: Connection) -> None:
        connection_id = connection.connection_id
        if self._open.get(connection_id) is connection:
            del self._open[connection_id]
        handed = {one: attachment.subscription.cursor for one, attachment in connection.left.items()}
        try:
            await in_db(logical.give_up_stream, connection_id, handed)
            if connection.reason is Closing.SLOW:
                # What this client is to be told next it cannot be told (behaviour 8.6): it must connect and attach again.
                await in_db(logical.close, connection_id)
        except Refusal as refusal:
            logger.warning("http.stream_end_put_off", code=refusal.code)
            self._owed[connection_id] = handed

    def _spawn(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(_guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _guarded(work: Awaitable[None]) -> None:
    """Await work that nobody waits for."""
    try:
        await work
    except Refusal as refusal:
        logger.warning("http.stream_look", code=refusal.code)
    except Exception:
        logger.exception("http.stream_look")


class SessionStreams:
    """`GET /v1/sessions/{id}/events`: one session, from a place in its log on."""

    def __init__(self, server: Server, hub: FeedHub, connections: Connections, audited: Audited) -> None:
        """Count streams among `connections`, which are watched and drained."""
        self._server = server
        self._connections = connections
        self._audited = audited
        dialect = SessionStream()
        self._goodbyes = {Closing.SLOW: dialect.snapshot_required()}
        self._services = ConnectionServices(
            handle=_never,
            hub=hub,
            dialect=dialect,
            on_close=_detach,
            transport=logical.TRANSPORT,
            ends_with_attachment=True,
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def get(self, request: Request, identity: Identity, named: Mapping[str, str]) -> None:
        """Serve the events of one session until either side ends it."""
        command, session_id, caller = "session.events", named["id"], caller_of(identity)
        self._audited.require(identity, command, "session.transcript.read")
        with self._audited.command(caller, command, session_id):
            if self._server.draining:
                raise ServerShuttingDown("the server is shutting down")
            after = cursor_of(request)
            attachment_id, begin = await in_db(attachments.open_hidden, caller, session_id, after)
        raw: RawStream = request.scope["extensions"][STREAM_EXTENSION]
        socket = StreamSocket(raw, as_it_is, self._goodbyes)
        connection = Connection(ids.new_id("str"), identity, socket, self._services)
        connection.open_attachment(attachment_id, session_id, "read_only", view=caller.view, after=begin)
        holding = asyncio.create_task(self._connections.hold(connection))
        self._tasks.add(holding)
        holding.add_done_callback(self._tasks.discard)
        await request.start(HTTPStatus.OK, HEADERS)
        socket.comment(CONNECTED)
        raw.listen(connection.drained)
        connection.release()
        await _serve(request, connection, KeepAlive(socket, lambda: connection.close(Closing.SLOW)))


async def _detach(connection: Connection) -> None:
    held = [(attachment.session_id, one) for one, attachment in connection.left.items()]
    await in_db(attachments.disconnect, held)


def cursor_of(request: Request) -> int | None:
    """Return the sequence behind which a stream shall begin: `Last-Event-ID`, `after_sequence`, or None for "from now".

    Raises InvalidRequest when both are given and differ, when one is repeated, and for anything but a whole number.
    """
    query = request.scope.get("query_string", b"").decode("latin-1")
    given = [value for name, value in parse_qsl(query, keep_blank_values=True) if name == "after_sequence"]
    header = request.text(b"last-event-id")
    cursors = {_sequence(value) for value in ([*given, header] if header is not None else given)}
    if len(given) > 1 or len(cursors) > 1:
        raise InvalidRequest("one place to go on from, not two")
    return next(iter(cursors), None)


def _sequence(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(2**63))) or int(text) >= 2**63:
        raise InvalidRequest("a sequence is a whole number that is not negative")
    return int(text)
