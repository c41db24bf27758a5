"""The real server with a small application, as a process of its own: for what is claimed about sockets.

Run as `python -m tests.support.socket_server GRACE [refuse]`; it prints its port, then answers what its paths say:

* `/echo`      each message as it came, through a connection and its outbox
* `/flood`     each message with COUNT answers of SIZE bytes: "COUNT SIZE"
* `/pile`      each message, a size, with an answer of that size, whether the client reads or not
* `/wait`      each message when the file it names exists
* `/feed`      "attach": sends what is committed from now on; "commit COUNT SIZE": commits events, for all
* `/plain`     through ASGI alone: a message "COUNT SIZE" is answered COUNT times
* `/refused`   nobody is let in
* `GET /body`  the number of bytes of the body
* `GET /big`   64 MiB
"""

import asyncio
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import structlog

from ochat_site.routing import Application, Router
from ochat_site.rpc.connection import Connection, Connections, ConnectionServices
from ochat_site.rpc.feed import FeedHub
from ochat_site.rpc.outbox import Frame, Socket
from ochat_site.server import Server
from ochat_site.transports.websocket import WebSocketEndpoint
from sessions_app.errors import InvalidState, Unauthenticated
from sessions_app.views import FULL
from tests.support.waiting import eventually

SESSION = "ses_a"


class MemoryLog:
    """The log of the one session; an event is its sequence and its padding."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def commit(self, count: int, size: int) -> int:
        for _ in range(count):
            sequence = len(self.events) + 1
            self.events.append(
                SimpleNamespace(sequence=sequence, kind="session.updated", payload=b"x" * size)
            )
        return len(self.events)

    async def read_heads(self, session_ids: Sequence[str]) -> dict[str, int]:
        return {SESSION: len(self.events)}

    async def read_events(self, session_id: str, after: int, limit: int, max_bytes: int) -> Sequence[Any]:
        await asyncio.sleep(0)
        size = len(self.events[-1].payload) if self.events else 0
        return self.events[after : after + max(1, min(limit, max_bytes // (size + 1)))]


class Notifications:
    filtered = None

    def encode_event(self, event: Any, view: Any) -> bytes:
        return b"event %d %s" % (event.sequence, event.payload)

    def encode_live(self, event: bytes) -> bytes:
        return event


class NoWakes:
    def subscribe(self, session_id: str) -> None: ...
    def unsubscribe(self, session_id: str) -> None: ...


class ServedLife:
    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses
        self.connections = Connections()
        self.log = MemoryLog()
        self.hub = FeedHub(self.log, NoWakes())
        self.tasks: set[asyncio.Task[None]] = set()
        self.closed = 0

    def endpoint(self, handle: Any, *, refuse: bool = False) -> WebSocketEndpoint:
        services = ConnectionServices(
            handle=handle, hub=self.hub, dialect=Notifications(), on_close=self.on_close
        )

        async def authenticate(scope: Any) -> Any:
            if refuse:
                raise Unauthenticated("no")
            return None

        def connect(identity: Any, client: Socket) -> Connection:
            connection = Connection("con_x", identity, client, services)
            task = asyncio.get_running_loop().create_task(self.connections.hold(connection))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            return connection

        return WebSocketEndpoint(authenticate, connect)

    async def feed(self, connection: Connection, body: bytes) -> bytes:
        match body.split():
            case [b"attach"]:
                connection.open_attachment(
                    "att_x", SESSION, "read_only", view=FULL, after=len(self.log.events)
                )
            case [b"commit", count, size]:
                self.hub.wake(SESSION, self.log.commit(int(count), int(size)))
        return b"done"

    async def on_close(self, connection: Connection) -> None:
        self.closed += 1

    async def start(self) -> None:
        if self.refuses:
            raise InvalidState("not today")

    async def drain(self) -> None:
        await self.connections.drain()

    async def stop(self) -> None:
        print("closed", self.closed, "open", len(self.connections), flush=True)

    async def reload(self) -> None:
        print("reloaded", flush=True)


async def echo(connection: Connection, body: bytes) -> bytes:
    return body


async def flood(connection: Connection, body: bytes) -> bytes | None:
    count, size = map(int, body.split())
    frame = Frame(b"x" * size)
    for _ in range(count):
        await connection._outbox.until_open()
        connection._outbox.offer_durable(frame)
    return b"done"


async def pile(connection: Connection, body: bytes) -> bytes:
    return b"x" * int(body)


async def wait(connection: Connection, body: bytes) -> bytes:
    await eventually(Path(body.decode()).exists, "the file", seconds=60)
    return b"done"


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        count, size = map(int, message["text"].split())
        for _ in range(count):
            await send({"type": "websocket.send", "text": "x" * size})


async def http(scope: Any, receive: Any, send: Any) -> None:
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    if scope["path"] == "/big":
        for _ in range(1024):
            await send({"type": "http.response.body", "body": bytes(65536), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return
    await send({"type": "http.response.body", "body": b"%d" % size})


def main(grace: float, *, refuses: bool) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    listener = socket.create_server(("127.0.0.1", 0))
    life = ServedLife(refuses=refuses)
    websockets: dict[str, Application] = {
        "/echo": life.endpoint(echo),
        "/flood": life.endpoint(flood),
        "/pile": life.endpoint(pile),
        "/wait": life.endpoint(wait),
        "/feed": life.endpoint(life.feed),
        "/refused": life.endpoint(echo, refuse=True),
        "/plain": plain,
    }
    port = listener.getsockname()[1]
    Server(
        Router(http, websockets),
        listener,
        life,
        grace_seconds=lambda: grace,
        on_ready=lambda: print(port, flush=True),
    ).run()


if __name__ == "__main__":
    main(float(sys.argv[1]), refuses="refuse" in sys.argv)
