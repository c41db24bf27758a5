"""A small server on a real WebSocket, for a client to be tried against: it does as told, and breaks when told.

It keeps what matters for synchronization as the contract says: replay decisions (behaviour 8.3), receipts before
attachment checks (behaviour 1.1, 11.3), attachments that end with their connection.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Literal

import msgspec
from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from sessions_app.encoding import encode
from sessions_app.events import DurableEvent, LiveEvent
from tests.ochat_client.agent import NOW, SESSION, Agent

Fate = Literal["lose the request", "lose the answer"]
Handler = Callable[["Connection", dict[str, Any]], Any]

TOKEN = "sesame"


class Refused(Exception):
    """An error answer."""

    def __init__(self, code: str, *, retryable: bool = False) -> None:
        super().__init__(code)
        self.error = {"code": code, "message": f"because of {code}", "retryable": retryable, "data": {"a": 1}}


class Connection:
    """One client, as the server sees it."""

    def __init__(self, server: Server, socket: ServerConnection, number: int) -> None:
        self.server = server
        self.socket = socket
        self.number = number
        self.attachments: set[str] = set()
        self.followed: int | None = None
        self.sent = 0
        self.cut = server.cuts.popleft() if server.cuts else None

    async def serve(self) -> None:
        """Answer until the client goes."""
        async for message in self.socket:
            request = msgspec.json.decode(message)
            self.server.calls.append((self.number, request["method"], request["params"]))
            fates = self.server.fates[request["method"]]
            fate = fates.popleft() if fates else None
            if fate == "lose the request":
                self.abort()
                return
            answer = self._answer(request)
            if fate == "lose the answer":
                self.abort()
                return
            await self.socket.send(answer.decode())
            await self.push()

    def _answer(self, request: dict[str, Any]) -> bytes:
        envelope: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            return encode(
                {**envelope, "result": self.server.outcome(self, request["method"], request["params"])}
            )
        except Refused as refused:
            return encode({**envelope, "error": refused.error})

    async def push(self) -> None:
        """Send what is new of the log, up to the cut."""
        while self.followed is not None and self.followed < self.server.agent.sequence:
            if self.cut == self.sent:
                self.abort()
                return
            event = self.server.agent.log[self.followed]
            self.followed += 1
            self.sent += 1
            await self.tell("session.event", event)
        if self.followed is not None and self.cut == self.sent:
            self.abort()

    async def tell(self, method: str, params: object) -> None:
        """Send a notification."""
        frame = encode({"jsonrpc": "2.0", "method": method, "params": params})
        try:
            await self.socket.send(frame.decode())
        except ConnectionClosed:
            self.followed = None

    def abort(self) -> None:
        """Break the connection without a goodbye."""
        self.followed = None
        self.socket.transport.abort()


class Server:
    """What clients connect to, and the handles by which a test steers it."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.server_id = "srv_1"
        self.retained_from = 1
        self.status: HTTPStatus | None = None
        self.cuts: deque[int | None] = deque()
        """For each connection to come: how many durable events it is sent before it breaks."""
        self.fates: defaultdict[str, deque[Fate | None]] = defaultdict(deque)
        """For each call to come, by method."""
        self.refusals: defaultdict[str, deque[Refused]] = defaultdict(deque)
        """Refusals to come, by method, before anything is done and stored."""
        self.handlers: dict[str, Handler] = {}
        """Other methods, and other answers."""
        self.calls: list[tuple[int, str, dict[str, Any]]] = []
        self.headers: list[Headers] = []
        self.connections: list[Connection] = []
        self._receipts: dict[tuple[str, str], tuple[bytes, object | Refused]] = {}
        self._server: WebSocketServer | None = None

    @property
    def uri(self) -> str:
        """Where it listens."""
        assert self._server
        port: int = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://127.0.0.1:{port}"

    @property
    def open(self) -> list[Connection]:
        """The connections that follow the session."""
        return [connection for connection in self.connections if connection.followed is not None]

    def called(self, method: str) -> list[dict[str, Any]]:
        """Return the params of every call of a method, in order."""
        return [params for _, name, params in self.calls if name == method]

    async def publish(self) -> None:
        """Send everybody what is new of the log."""
        for connection in self.open:
            await connection.push()

    async def tell(self, *events: DurableEvent | LiveEvent) -> None:
        """Send everybody these events as they are."""
        for event in events:
            method = "session.event" if isinstance(event, DurableEvent) else "session.live_event"
            for connection in self.open:
                await connection.tell(method, event)

    async def stop(self) -> None:
        """End: refuse and break everything."""
        assert self._server
        for connection in self.connections:
            connection.socket.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    def outcome(self, connection: Connection, method: str, params: dict[str, Any]) -> object:
        """Return the result of a call; raises Refused."""
        if self.refusals[method]:
            raise self.refusals[method].popleft()
        key = params.get("idempotency_key")
        if key is None:
            return self._run(connection, method, params)
        digest = encode(params)
        if (method, key) in self._receipts:
            stored, outcome = self._receipts[method, key]
            if stored != digest:
                raise Refused("idempotency_conflict")
        else:
            outcome = self._settled(connection, method, params)
            self._receipts[method, key] = digest, outcome
        if isinstance(outcome, Refused):
            raise outcome
        return outcome

    def _settled(self, connection: Connection, method: str, params: dict[str, Any]) -> object | Refused:
        try:
            return self._run(connection, method, params)
        except Refused as refused:
            return refused

    def _run(self, connection: Connection, method: str, params: dict[str, Any]) -> object:
        if params.get("attachment_id", "") not in {*connection.attachments, ""}:
            raise Refused("permission_denied")
        return self.handler(method)(connection, params)

    def handler(self, method: str) -> Handler:
        """Return what answers a method; raises Refused."""
        handler = self.handlers.get(method) or _HANDLERS.get(method)
        if handler is None:
            raise Refused("method_not_found")
        return handler

    async def _serve(self, socket: ServerConnection) -> None:
        connection = Connection(self, socket, len(self.connections))
        self.connections.append(connection)
        try:
            await connection.serve()
        except ConnectionClosed:
            pass
        finally:
            connection.followed = None

    async def _admit(self, socket: ServerConnection, request: Request) -> Response | None:
        self.headers.append(request.headers)
        return None if self.status is None else socket.respond(self.status, "no")


def _initialize(connection: Connection, _: dict[str, Any]) -> object:
    return {
        "protocol_name": "ochat.agent",
        "selected_version": {"major": 1, "minor": 0},
        "implementation": {"name": "small", "version": "1"},
        "server_id": connection.server.server_id,
        "enabled_features": [],
        "principal": {
            "id": "pri_1",
            "authentication_kind": "http.static_bearer",
            "scopes": [],
            "attributes": {},
        },
        "limits": {
            "max_request_bytes": 100_000,
            "max_event_bytes": 16_777_216,
            "max_page_size": 2,
            "max_attachments_per_connection": 64,
        },
        "event_retention": {"minimum_age_ms": 0, "maximum_events": 100_000},
        "timing": {
            "heartbeat_interval_ms": 1,
            "owner_lease_duration_ms": 2,
            "owner_renew_after_ms": 1,
            "disconnect_grace_default_ms": 1,
        },
        "server_time": NOW,
    }


def _attach(connection: Connection, params: dict[str, Any]) -> object:
    agent, after = connection.server.agent, params.get("after_sequence")
    latest = agent.sequence
    attachment_id = f"att_{connection.number}_{len(connection.attachments)}"
    connection.attachments.add(attachment_id)
    connection.followed = latest
    replay: dict[str, Any]
    if after is None or after + 1 < connection.server.retained_from:
        replay = {"type": "snapshot", "snapshot": agent.snapshot()}
    else:
        replay = {"type": "events", "events": agent.log[after:]}
    return {
        "attachment": {"id": attachment_id, "session_id": SESSION, "mode": params["requested_mode"]},
        "replay": replay,
        "latest_event_sequence": latest,
        "reclaim_token": f"token-{attachment_id}",
    }


def _detach(connection: Connection, params: dict[str, Any]) -> object:
    connection.attachments.discard(params["attachment_id"])
    connection.followed = None
    return _mutation(connection.server.agent)


def _send(connection: Connection, params: dict[str, Any]) -> object:
    agent = connection.server.agent
    idle = agent.operation is None
    message = agent.send(params["content"]["text"])
    return {
        **_mutation(agent),
        "history_id": message.id,
        "disposition": "started" if idle else "deferred",
        **({"operation_id": agent.operation.id} if idle and agent.operation else {}),
    }


def _ping(_: Connection, params: dict[str, Any]) -> object:
    return {**params, "server_time": NOW, "ready": True, "draining": False}


def _create(connection: Connection, _: dict[str, Any]) -> object:
    return {**_mutation(connection.server.agent), "session": connection.server.agent.session}


def _mutation(agent: Agent) -> dict[str, int]:
    return {"revision": agent.session.revision, "latest_event_sequence": agent.sequence}


_HANDLERS: dict[str, Handler] = {
    "protocol.initialize": _initialize,
    "protocol.ping": _ping,
    "session.create": _create,
    "session.attach": _attach,
    "session.detach": _detach,
    "session.send_message": _send,
    "session.get": lambda connection, _: connection.server.agent.snapshot(),
}


@asynccontextmanager
async def serving(agent: Agent) -> AsyncIterator[Server]:
    """Run a server for the block."""
    server = Server(agent)
    async with serve(server._serve, "127.0.0.1", 0, process_request=server._admit) as running:
        server._server = running
        yield server
