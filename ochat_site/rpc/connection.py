"""One client's connection, whatever carries it: its order, its state, its attachments, its end (behaviour 1, 5.6).

Owns: one call after the other and their answers in order, the facts that calls leave on a connection, what reaches
the wire before and after the answer of an attach, and one `on_close` however the connection ends.
Does not own: bytes and closing codes (`outbox.Socket`, each transport), what a call does (`Handler`, `dispatch`),
what an attachment is in the store, and what a subscriber is sent (`feed`).

A transport calls `received`, `drained` and `lost`, and implements `Socket`. All of it is confined to one loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from ochat_site.rpc.outbox import Closing, Frame, Outbox, Socket
from sessions_app import limits

if TYPE_CHECKING:
    from ochat_site.rpc.feed import FeedHub
    from ochat_site.rpc.session_feed import Dialect, Subscription
    from permissions_app.principals import Identity
    from sessions_app.records import AttachmentMode
    from sessions_app.views import View

logger = structlog.get_logger(__name__)

INBOX_FRAMES = 64
INBOX_BYTES = limits.MIB
"""When so much waits to be handled, the transport reads no more until half of it is done."""

Handler = Callable[["Connection", bytes], Awaitable[bytes | None]]
"""Handles one frame and returns the frame that answers it, if any. It turns every failure into an answer."""


class Receiver(Protocol):
    """What a transport tells of its client."""

    def received(self, body: bytes) -> None:
        """Take one message; it is handled later."""
        ...

    def drained(self) -> None:
        """Learn that the socket is no longer full."""
        ...

    def ended(self) -> None:
        """Learn that the client sends nothing more, and may still read."""
        ...

    def lost(self) -> None:
        """Learn that the client is gone, or says that it goes."""
        ...


@dataclass(slots=True)
class Attachment:
    """One attachment of a connection, with its place in the log."""

    attachment_id: str
    session_id: str
    mode: AttachmentMode
    subscription: Subscription

    @property
    def view(self) -> View:
        """What its client may see; set it when scopes or shares change."""
        return self.subscription.view

    @view.setter
    def view(self, view: View) -> None:
        self.subscription.view = view


@dataclass(frozen=True, slots=True)
class ConnectionServices:
    """What every connection of a process works with."""

    handle: Handler
    hub: FeedHub
    dialect: Dialect
    on_close: Callable[[Connection], Awaitable[None]]
    """Detaches everything a connection holds in the store; called once, behind its last call."""
    transport: str = "websocket"
    """What carries them."""
    ends_with_attachment: bool = False
    """A connection is nothing without its one attachment: the event stream of one session."""


class Connection:
    """The state of one connection."""

    def __init__(
        self, connection_id: str, identity: Identity, socket: Socket, services: ConnectionServices
    ) -> None:
        """Begin with nothing initialized and nothing attached."""
        self.connection_id = connection_id
        self.identity = identity
        """Who is connected; replaced when the credential's scopes change."""
        self.initialized = False
        """Whether a `protocol.initialize` has succeeded (behaviour 1.2)."""
        self.max_event_bytes: int | None = None
        """The client's `max_inbound_event_bytes`; counts for attachments opened afterwards."""
        self.attachments: dict[str, Attachment] = {}
        self.reason: Closing | None = None
        """Why this side has ended it, if it has."""
        self.left: dict[str, Attachment] = {}
        """Once it has ended: the attachments that it ended with."""
        self._socket = socket
        self._services = services
        self._outbox = Outbox(socket, lambda: self.close(Closing.SLOW))
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._reading = True
        self._unreleased: list[Subscription] = []
        self._worker: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._closing = False
        self._draining = False
        self._closed = asyncio.Event()

    # For handlers

    @property
    def transport(self) -> str:
        """What carries it."""
        return self._services.transport

    @property
    def logical(self) -> bool:
        """Whether it holds nothing in this process: a socket does."""
        return False

    def open_attachment(
        self, attachment_id: str, session_id: str, mode: AttachmentMode, *, view: View, after: int
    ) -> None:
        """Subscribe an attachment behind sequence `after`, the one that the answer of this call states.

        Nothing of the session reaches the wire before that answer (behaviour 8.3). On a connection that ends
        meanwhile this does nothing: `on_close` detaches what the call has attached.
        """
        if self._closing:
            return
        # A replayed attach names the same attachment, and answers with a newer snapshot (behaviour 11.4).
        self.close_attachment(attachment_id)
        subscription = self._services.hub.subscribe(
            session_id,
            after,
            outbox=self._outbox,
            view=view,
            dialect=self._services.dialect,
            max_event_bytes=self.max_event_bytes,
            on_slow=lambda: self.close(Closing.SLOW),
        )
        self.attachments[attachment_id] = Attachment(attachment_id, session_id, mode, subscription)
        self._unreleased.append(subscription)

    def release(self) -> None:
        """Let the events of newly opened attachments reach the wire; the end of a call does this, behind its answer."""
        unreleased, self._unreleased = self._unreleased, []
        for subscription in unreleased:
            subscription.release()

    def close_attachment(self, attachment_id: str) -> None:
        """End the subscription of an attachment, if it is open here."""
        attachment = self.attachments.pop(attachment_id, None)
        if attachment is not None:
            attachment.subscription.close()
            if self._services.ends_with_attachment:
                self.close(Closing.ENDED)

    # For the transport

    def received(self, body: bytes) -> None:
        """Take one message; it is handled when its turn comes."""
        if self._closing or self._draining:
            return
        self._inbox.append(body)
        self._inbox_bytes += len(body)
        if self._reading and (len(self._inbox) >= INBOX_FRAMES or self._inbox_bytes >= INBOX_BYTES):
            self._reading = False
            self._socket.pause_reading()
        self._work()

    def drained(self) -> None:
        """Send what waits for the socket."""
        self._outbox.drained()

    def ended(self) -> None:
        """End behind the answers to what the client has sent, because it sends nothing more."""
        if not (self._closing or self._draining):
            self._ending = asyncio.get_running_loop().create_task(self._see_out(Closing.ENDED))

    def lost(self) -> None:
        """End because the client is gone."""
        self._end()

    # For the process

    def close(self, reason: Closing) -> None:
        """End: say why, send nothing more, let the call that runs finish without an answer, then detach."""
        if not self._closing:
            if reason is not Closing.ENDED:
                logger.info("connection.close", connection_id=self.connection_id, reason=reason.name)
            self.reason = reason
            self._socket.close(reason)
            self._end()

    async def drain(self) -> None:
        """Handle what was received, let the client take the answers, then close for `DRAINING`."""
        await self._see_out(Closing.DRAINING)

    @property
    def is_closing(self) -> bool:
        """Tell whether the connection has ended, for its client at least."""
        return self._closing

    async def wait_closed(self) -> None:
        """Wait until `on_close` is done."""
        await self._closed.wait()

    # Inside

    async def _see_out(self, reason: Closing) -> None:
        self._draining = True
        self._socket.pause_reading()
        if self._worker is not None:
            await asyncio.wait([self._worker])
        await self._outbox.until_open()
        self.close(reason)

    def _work(self) -> None:
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._inbox:
            body = self._inbox.popleft()
            self._inbox_bytes -= len(body)
            await self._answer(body)
            self._read_on()
        self._worker = None
        if self._closing:
            await self._finish()

    async def _answer(self, body: bytes) -> None:
        try:
            answer = await self._services.handle(self, body)
        except Exception:
            logger.exception("connection.handler", connection_id=self.connection_id)
            self.close(Closing.FAILED)
            return
        if answer is not None:
            self._outbox.answer(Frame(answer))
        self.release()

    def _read_on(self) -> None:
        if (
            not (self._reading or self._draining)
            and len(self._inbox) <= INBOX_FRAMES // 2
            and self._inbox_bytes <= INBOX_BYTES // 2
        ):
            self._reading = True
            self._socket.resume_reading()

    def _end(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._inbox.clear()
        self._inbox_bytes = 0
        self.left = dict(self.attachments)
        for attachment_id in self.left:
            self.close_attachment(attachment_id)
        self._outbox.close()
        self._work()

    async def _finish(self) -> None:
        try:
            await self._services.on_close(self)
        except Exception:
            logger.exception("connection.on_close", connection_id=self.connection_id)
        finally:
            self._closed.set()


class Connections:
    """The open connections of this process."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()

    def __iter__(self) -> Iterator[Connection]:
        """Go through a copy: connections may end on the way."""
        return iter(list(self._open))

    def __len__(self) -> int:
        return len(self._open)

    async def hold(self, connection: Connection) -> None:
        """Count a connection as open until it is closed, in the store too."""
        self._open.add(connection)
        try:
            await connection.wait_closed()
        finally:
            self._open.discard(connection)

    async def drain(self) -> None:
        """Finish the calls begun on every connection and close them all (behaviour 14.3)."""
        await asyncio.gather(*(connection.drain() for connection in self))
        await asyncio.gather(*(connection.wait_closed() for connection in self))
