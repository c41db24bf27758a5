"""A process that serves clients without a socket: the real dispatcher, connections, feed and broadcast, in one loop."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ochat_site.dialects.ochat1.events import Notifications
from ochat_site.dialects.ochat1.types import SHAPES, HealthComponent, HealthResult
from ochat_site.rpc.connection import Connection, ConnectionServices
from ochat_site.rpc.context import Server
from ochat_site.rpc.dispatch import Dispatcher
from ochat_site.rpc.feed import FeedHub
from permissions_app import principals
from permissions_app.audit_batch import AuditBatch
from permissions_app.models import AuditRecord
from permissions_app.principals import Identity
from sessions_app import clock, ids, ledger, models, processes
from sessions_app.broadcast import Broadcast
from sessions_app.commands import attachments
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.ledger import StoredEvent
from sessions_app.records import AttachmentMode, Scope
from tests.golden.contract import writing
from tests.support.feed_doubles import FakeSocket
from tests.support.waiting import eventually
from tests.support.world import SCOPES, World

SERVER_ID = "srv_test"
INITIALIZE: Mapping[str, Any] = {
    "implementation": {"name": "test", "version": "1"},
    "protocol_min": {"major": 1, "minor": 0},
    "protocol_max": {"major": 1, "minor": 0},
    "features": ["events.durable", "sessions.durable", "made.up"],
    "event_encodings": ["json"],
    "max_inbound_event_bytes": 2**20,
}


class Refused(Exception):
    """A call was answered with an error."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: str = error["code"]
        self.message: str = error["message"]
        self.retryable: bool = error["retryable"]


def identity(who: str = "ann", scopes: Iterable[Scope] = SCOPES, **attributes: str) -> Identity:
    """Return somebody with a token of these scopes."""
    return principals.identity(f"pri_{who}", "http.static_bearer", scopes, attributes=attributes)


def server() -> Server:
    """Return what this process says of itself."""
    return Server(id=SERVER_ID, version="1.2.3", transports=("http", "websocket"), health=_health)


def _health(process: Server) -> HealthResult:
    return HealthResult(
        status="healthy",
        ready=process.ready,
        draining=process.draining,
        checked_at=clock.wire_time(clock.now()),
        components=(HealthComponent(name="daemon", status="healthy"),),
    )


class Log:
    """The log in the store."""

    async def read_heads(self, session_ids: Sequence[str]) -> Mapping[str, int]:
        """See `session_feed.EventLog`."""
        return await in_db(ledger.read_heads, session_ids)

    async def read_events(
        self, session_id: str, after: int, limit: int, max_bytes: int
    ) -> Sequence[StoredEvent]:
        """See `session_feed.EventLog`."""
        return await in_db(ledger.read_events, session_id, after, limit, max_bytes)


@dataclass
class Host:
    """The serving process."""

    broadcast: Broadcast = field(default_factory=Broadcast)
    server: Server = field(default_factory=server)
    audit: AuditBatch = field(default_factory=AuditBatch)

    def __post_init__(self) -> None:
        self.hub = FeedHub(Log(), self.broadcast)
        self.broadcast.on_wake(self.hub.wake)
        self.broadcast.on_live(self.hub.live)
        self.broadcast.on_joined(self.hub.joined)
        self.services = ConnectionServices(
            handle=Dispatcher(self.server, self.audit).handle,
            hub=self.hub,
            dialect=Notifications(),
            on_close=self._detach,
        )
        self.peers: list[Peer] = []

    async def connect(self, who: Identity | None = None) -> Peer:
        """Let a client connect; it has still to initialize."""
        peer = Peer(self.services, who or identity())
        await in_db(peer.enter)
        self.peers.append(peer)
        return peer

    async def client(self, who: Identity | None = None) -> Peer:
        """Let a client connect and initialize."""
        peer = await self.connect(who)
        await peer.initialize()
        return peer

    async def _detach(self, connection: Connection) -> None:
        def leave() -> None:
            held = models.Attachment.objects.filter(connection=connection.connection_id)
            attachments.disconnect(list(held.values_list("session_id", "id")))

        await in_db(leave)

    async def audited(self) -> list[tuple[str, str, str]]:
        """Return what the audit trail says so far: name, method, outcome of each record in order."""

        def read() -> list[tuple[str, str, str]]:
            self.audit.flush()
            rows = AuditRecord.objects.order_by("id").values_list("name", "payload")
            said = [(name, msgspec.json.decode(payload)) for name, payload in rows]
            return [(name, payload["method"], payload["outcome"]) for name, payload in said]

        return await in_db(read)


@asynccontextmanager
async def serving() -> AsyncIterator[Host]:
    """Serve inside the block, then let every client go."""
    host = Host()
    await host.broadcast.start()
    try:
        yield host
    finally:
        for peer in host.peers:
            peer.connection.lost()
            await peer.connection.wait_closed()
        await host.broadcast.stop()


class Peer:
    """One client. What it is sent is checked against the schema of what a server may write."""

    def __init__(self, services: ConnectionServices, who: Identity) -> None:
        self.socket = FakeSocket()
        self.connection = Connection(ids.new_id("con"), who, self.socket, services)
        self.socket.receiver = self.connection
        self._numbers = itertools.count(1)
        self._read = 0
        self._answers: dict[bytes, Any] = {}
        self.notifications: list[Any] = []

    def enter(self) -> None:
        """Make the row of the connection."""
        now = clock.now()
        models.Connection.objects.create(
            id=self.connection.connection_id,
            process_id=processes.current_id(),
            transport="websocket",
            principal=encode(self.connection.identity.principal),
            created_at=now,
            last_active_at=now,
        )

    async def ask(self, frame: bytes) -> Any:
        """Send a frame with an id as it is; return the envelope that answers it, which may be an error."""
        id = bytes(msgspec.json.decode(frame, type=_Answer).id)
        self.connection.received(frame)
        await eventually(lambda: self.has_answer(id), "an answer")
        answer = self._answers.pop(id)
        if "error" in answer:
            check("ErrorEnvelope", answer)
        return answer

    async def initialize(self, **changed: Any) -> Any:
        """Initialize, as a usual client unless something is changed."""
        return await self.call("protocol.initialize", INITIALIZE, **changed)

    async def call(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """Return the result of a call. Raises Refused. Mutations get a fresh key unless one is given."""
        return await self.answered(method, self.send(method, {**(params or {}), **more}))

    async def refusal(self, method: str, **params: Any) -> str:
        """Return the code that a call is refused with."""
        try:
            result = await self.call(method, params)
        except Refused as refused:
            return refused.code
        raise AssertionError(f"{method} was not refused: {result}")

    async def create(self, world: World, mode: AttachmentMode = "read_write", **spec: Any) -> Held:
        """Create a session and attach to it."""
        wanted = await in_db(world.spec, **spec)
        made = await self.call("session.create", spec=wanted, requested_mode=mode, subscribe=True)
        return Held(self, made["session"]["id"], made["attachment"]["attachment"]["id"], made["attachment"])

    async def attach(self, session_id: str, mode: AttachmentMode = "read_write", **more: Any) -> Held:
        """Attach to a session."""
        params = {"session_id": session_id, "requested_mode": mode, "subscribe": True, **more}
        made = await self.call("session.attach", params)
        return Held(self, session_id, made["attachment"]["id"], made)

    def send(self, method: str, params: Mapping[str, Any]) -> bytes:
        """Send a call and return its id."""
        id = f"{next(self._numbers)}".encode()
        if "idempotency_key" in SHAPES[method].params.__struct_fields__:  # type: ignore[index]  # any method
            params = {"idempotency_key": f"key-{id.decode()}-{self.connection.connection_id}", **params}
        body = b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (id, encode(method), encode(params))
        self.connection.received(body)
        return id

    def has_answer(self, id: bytes) -> bool:
        """Tell whether a call has been answered."""
        return id in self._take()

    async def answered(self, method: str, id: bytes) -> Any:
        """Wait for the answer to a call."""
        await eventually(lambda: self.has_answer(id), f"an answer to {method}")
        answer = self._answers.pop(id)
        if "error" in answer:
            check("ErrorEnvelope", answer)
            raise Refused(answer["error"])
        check(f"{method}.response", answer)
        return answer["result"]

    async def told(self, count: int) -> list[Any]:
        """Wait until so many notifications have come; return the params of all that have."""
        await eventually(lambda: self._told_so_far() >= count, f"{count} notifications")
        return [notification["params"] for notification in self.notifications]

    def sequences(self) -> list[int]:
        """Return the sequences of the durable events that have come, in the order in which they came."""
        self._take()
        told = [notification["params"] for notification in self.notifications]
        return [event["sequence"] for event in told if "sequence" in event]

    def _told_so_far(self) -> int:
        self._take()
        return len(self.notifications)

    def _take(self) -> Mapping[bytes, Any]:
        """Sort what was sent since the last look; return the answers that nobody has taken yet."""
        for body in self.socket.sent[self._read :]:
            message = msgspec.json.decode(body)
            if "id" in message:
                id = bytes(msgspec.json.decode(body, type=_Answer).id)
                self._answers[id] = message
            else:
                live = message["method"] == "session.live_event"
                check("SessionLiveEventNotification" if live else "SessionEventNotification", message)
                self.notifications.append(message)
        self._read = len(self.socket.sent)
        return self._answers


@dataclass(frozen=True)
class Held:
    """An attachment of a client, and what the client was answered with it."""

    peer: Peer
    session_id: str
    attachment_id: str
    answer: Any

    @property
    def latest(self) -> int:
        """The sequence behind which its events begin."""
        sequence: int = self.answer["latest_event_sequence"]
        return sequence

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method through the attachment."""
        return await self.peer.call(method, self.params(**params))

    async def refusal(self, method: str, **params: Any) -> str:
        """Return the code that a call through the attachment is refused with."""
        return await self.peer.refusal(method, **self.params(**params))

    async def say(self, text: str = "hello", **more: Any) -> Any:
        """Send a message."""
        return await self.call("session.send_message", text=text, **more)

    def params(self, **params: Any) -> dict[str, Any]:
        """Return the params of a call through the attachment."""
        return {"session_id": self.session_id, "attachment_id": self.attachment_id, **params}


class _Answer(msgspec.Struct):
    id: msgspec.Raw


def check(definition: str, message: Any) -> None:
    """Check a message against what a producer may write."""
    problems = list(writing(definition).iter_errors(message))
    assert not problems, problems
