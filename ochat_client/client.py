"""One connection to a server, as a typed client sees it.

Owns: initializing, which answer belongs to which call, and which subscriber gets which notification. Does not own:
how frames travel (`transports`), what events make of a session (`projection`), and what to do when the connection
ends (`reconnecting`): here it ends everything that waits, with ConnectionLost.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec import UNSET, Raw

from ochat_client import methods, wire
from ochat_client.calls import SessionCalls, W, new_key
from ochat_client.errors import ClientError, ConnectionLost, FrameTooLarge, ProtocolError
from ochat_client.methods import Method, P, R
from ochat_client.notifications import Subscription
from ochat_client.transports import MAX_FRAME_BYTES, Transport, open_transport
from ochat_site.dialects.ochat1.types import (
    PROTOCOL_VERSION,
    AttachResult,
    Implementation,
    InitializeParams,
    InitializeResult,
    MutationResult,
    Page,
    PageRequest,
    SessionAttachParams,
    SessionCreateParams,
    SessionCreateResult,
)
from sessions_app.events import DurableEvent, LiveEvent
from sessions_app.records import AttachmentMode, Error, IdempotencyKey, SessionId, SessionSpec

T = TypeVar("T")
L = TypeVar("L", bound=PageRequest)

IMPLEMENTATION = Implementation(name="ochat-client", version="1.0")

logger = structlog.get_logger(__name__)


class Client:
    """A connection. Calls may be made from many tasks at once; answers find their callers."""

    server: InitializeResult
    """What the server said of itself; there once the client is initialized."""

    def __init__(self, transport: Transport) -> None:
        """Take over an open transport and read from it; `initialize` must be the first call."""
        self._transport = transport
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Raw | Error | ClientError]] = {}
        self._subscriptions: dict[SessionId | None, list[Subscription]] = {}
        self._max_request_bytes = MAX_FRAME_BYTES
        self._ended: ClientError | None = None
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def connect(
        cls, uri: str, *, token: str | None = None, implementation: Implementation = IMPLEMENTATION
    ) -> Client:
        """Connect to a server and initialize.

        Raises ConnectionRefused, ConnectionLost, ProtocolError (no common version, a server that drains), and ValueError for
        a URI of an unknown scheme.
        """
        client = cls(await open_transport(uri, token=token))
        try:
            await client.initialize(implementation)
        except BaseException:
            await client.close()
            raise
        return client

    async def initialize(self, implementation: Implementation = IMPLEMENTATION) -> InitializeResult:
        """Agree on protocol 1.0 with the server (behaviour 1.2)."""
        params = InitializeParams(
            implementation=implementation,
            protocol_min=PROTOCOL_VERSION,
            protocol_max=PROTOCOL_VERSION,
            features=(),
            event_encodings=("json",),
            max_inbound_event_bytes=MAX_FRAME_BYTES,
        )
        self.server = await self.call(methods.INITIALIZE, params)
        self._max_request_bytes = self.server.limits.max_request_bytes
        return self.server

    async def __aenter__(self) -> Client:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self.close()

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended."""
        return self._ended is not None

    async def close(self) -> None:
        """End the connection; the server detaches whatever was attached through it."""
        self._end(ConnectionLost("the connection was closed here"))
        self._reader.cancel()
        await asyncio.wait([self._reader])
        await self._transport.close()

    async def call(self, method: Method[P, R], params: P) -> R:
        """Call a method and return its result.

        To retry a mutation whose answer did not come, pass the same params again: the key in them makes it the same
        mutation. Raises ProtocolError when the server refuses, ConnectionLost when the connection ends before the answer,
        FrameTooLarge, and ProtocolViolation for an answer that is not the method's.
        """
        return wire.decode(await self.request(method.name, params), method.result)

    async def request(self, method: str, params: object) -> Raw:
        """Do as `call` without types: `params` is anything that encodes, and the result stays encoded."""
        id = next(self._ids)
        frame = wire.request(id, method, params)
        if len(frame) > self._max_request_bytes:
            raise FrameTooLarge(
                f"{method} needs {len(frame)} bytes and the server takes {self._max_request_bytes}"
            )
        if self._ended is not None:
            raise self._ended
        waiting: asyncio.Future[Raw | Error | ClientError] = asyncio.get_running_loop().create_future()
        self._waiting[id] = waiting
        try:
            await self._transport.send(frame)
            outcome = await waiting
        except ConnectionLost as lost:
            self._end(lost)  # Sending may hear of it before reading does.
            raise
        finally:
            del self._waiting[id]
        if isinstance(outcome, ClientError):
            raise outcome
        if isinstance(outcome, Error):
            raise ProtocolError.of(outcome)
        return outcome

    async def items(self, method: Method[L, Page[T]], params: L) -> AsyncIterator[T]:
        """Go through all pages of a list, `params.limit` items at a time."""
        while True:
            page = await self.call(method, params)
            for item in page.items:
                yield item
            if page.next_cursor is UNSET:
                return
            params = msgspec.structs.replace(params, cursor=page.next_cursor)

    async def create_session(
        self, spec: SessionSpec, *, key: IdempotencyKey | None = None
    ) -> SessionCreateResult:
        """Create a session without attaching to it, so that the same `key` means the same session on any connection."""
        params = SessionCreateParams(spec=spec, subscribe=False, idempotency_key=key or new_key())
        return await self.call(methods.SESSION_CREATE, params)

    async def attach(
        self,
        session_id: SessionId,
        mode: AttachmentMode = "read_write",
        *,
        after_sequence: int | None = None,
        reclaim_token: str | None = None,
    ) -> AttachedSession:
        """Attach and subscribe. The answer's replay comes first, then the notifications (behaviour 8.3).

        A new key each time: an attachment of an earlier connection is of no use on this one (behaviour 11.4).
        """
        params = SessionAttachParams(
            session_id=session_id,
            requested_mode=mode,
            subscribe=True,
            after_sequence=UNSET if after_sequence is None else after_sequence,
            reclaim_token=UNSET if reclaim_token is None else reclaim_token,
            idempotency_key=new_key(),
        )
        notifications = self.listen(
            session_id
        )  # before the answer: what follows it may come in the same read
        try:
            result = await self.call(methods.SESSION_ATTACH, params)
        except BaseException:
            self.forget(notifications)
            raise
        return AttachedSession(self, result, notifications)

    def listen(self, session_id: SessionId | None = None) -> Subscription:
        """Return what is told of one session from now on, or of all, to whoever has an attachment on this connection."""
        subscription = Subscription()
        self._subscriptions.setdefault(session_id, []).append(subscription)
        if self._ended is not None:
            subscription.end(self._ended)
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """End a subscription."""
        subscription.close()
        for listening in self._subscriptions.values():
            if subscription in listening:
                listening.remove(subscription)

    # Reading

    async def _read(self) -> None:
        try:
            while True:
                self._take(await self._transport.receive())
        except ClientError as error:
            self._end(error)
        except Exception:
            logger.exception("client.read")
            self._end(ConnectionLost("reading from the connection failed"))
        await self._transport.close()

    def _take(self, frame: bytes) -> None:
        message = wire.read(frame)
        if isinstance(message, wire.Answer):
            waiting = self._waiting.get(message.id) if isinstance(message.id, int) else None
            if waiting is not None and not waiting.done():
                waiting.set_result(message.outcome)
        elif message.method == "session.event":
            self._tell(wire.decode(message.params, DurableEvent), len(frame))
        elif message.method == "session.live_event":
            self._tell(wire.decode(message.params, LiveEvent), len(frame))

    def _tell(self, event: DurableEvent | LiveEvent, size: int) -> None:
        for session_id in (event.session_id, None):
            for subscription in self._subscriptions.get(session_id, ()):
                subscription.put(event, size)

    def _end(self, error: ClientError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(error)
        for listening in self._subscriptions.values():
            for subscription in listening:
                subscription.end(error)


class AttachedSession(SessionCalls):
    """One attachment of a connection, good for as long as the connection lasts.

    Iterating gives the notifications behind `result.replay`. Two attachments of one session on one connection are each sent
    every event, so each sees all of them twice; applying them twice changes nothing.
    """

    def __init__(self, client: Client, result: AttachResult, notifications: Subscription) -> None:
        """Hold what an attach brought; made by `Client.attach`."""
        self.client = client
        self.result = result
        self.notifications = notifications
        self.session_id = result.attachment.session_id
        self.attachment_id = result.attachment.id

    def __aiter__(self) -> Subscription:
        """Return the notifications."""
        return self.notifications

    async def mutate(self, method: Method[W, R], /, **members: Any) -> R:
        """Make a mutation once; see `SessionCalls.mutate` and `Client.call`."""
        return await self.client.call(method, self.params_of(method, **members))

    def params_of(self, method: Method[W, R], /, **members: Any) -> W:
        """Return params of a mutation through this attachment, to be called and, if need be, called again."""
        named = {"idempotency_key": new_key(), **members}
        return method.params(session_id=self.session_id, attachment_id=self.attachment_id, **named)

    async def detach(self) -> MutationResult:
        """Give the attachment up; the iteration ends."""
        result = await self.mutate(methods.SESSION_DETACH)
        self.client.forget(self.notifications)
        return result
