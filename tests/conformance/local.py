"""A site in this process: the services of a web process and a worker in one loop, clients at the door of the ASGI application.

Owns: the composition, and a WebSocket without a wire. Does not own: any of the services, which are the product's own.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings

from jobs_app.dispatch import LocalDispatcher
from ochat_client import ConnectionLost, ConnectionRefused
from ochat_site import wiring
from ochat_site.transports.extensions import SOCKET_EXTENSION
from ochat_site.transports.websocket import Receive, Send
from ochat_site.web import Web
from sessions_app import participants
from sessions_app.broadcast import Broadcast
from sessions_app.commands.operations import OPERATION_SIGNAL
from sessions_app.runtime.models.registry import Models
from tests.conformance.sites import WEBSOCKET_PATH, Headers, Site
from tests.support.model_servers import ModelServer

if TYPE_CHECKING:
    from ochat_client.transports import Transport
    from ochat_site.rpc.connection import Receiver

END_SECONDS = 30


class LocalSite(Site):
    """Web process and worker in this loop, on the default database of this process."""

    def __init__(self, data_dir: Path, model: ModelServer) -> None:
        super().__init__(data_dir, model)
        self._before = participants.installed(), participants.dispatcher()
        self._applications: set[asyncio.Task[None]] = set()

    async def start(self, *, apart: bool = False) -> None:
        """Begin to serve and to run turns; `apart`: the web process hears of commits by the channel layer alone."""
        loop = asyncio.get_running_loop()

        def submit(operation_id: str) -> None:
            loop.call_soon_threadsafe(self._turns.submit, operation_id)

        self._web = Web()
        self._models = Models(settings.ENV.model_provider)
        self._turns = wiring.turn_host(self._models)
        wiring.install(LocalDispatcher(submit))
        # What is committed in this process is told by whoever starts last, at once to its own listeners.
        self._worker_broadcast = Broadcast()
        self._worker_broadcast.on_signal(OPERATION_SIGNAL, self._turns.look)
        services = (self._web, self._worker_broadcast)
        for service in services if apart else reversed(services):
            await service.start()

    async def stop(self) -> None:
        """End as processes do that are told to stop."""
        try:
            await self._web.drain()
            await self._turns.stop(0.1)
            if self._applications:
                await asyncio.wait(self._applications, timeout=END_SECONDS)
            await self._web.stop()
            await self._models.aclose()
            await self._worker_broadcast.stop()
        finally:
            participants.install(*self._before)

    async def restart(self) -> None:
        """Stop and start again."""
        await self.stop()
        await self.start()

    async def close(self) -> None:
        """Let every client go, then stop."""
        await super().close()
        await self.stop()

    async def open(self, headers: Headers, *, narrow: bool = False) -> Transport:
        """Enter the application as the server's WebSocket does."""
        socket = self._enter(headers, "")
        if await socket.handshake != 101:
            raise ConnectionRefused("the handshake was refused", final=True)
        return LocalTransport(socket)

    async def handshake(self, headers: Headers, query: str = "") -> int:
        """Enter the application and leave it again."""
        socket = self._enter(headers, query)
        status = await socket.handshake
        socket.hang_up()
        return status

    async def reload(self) -> None:
        """Do what the server does on SIGHUP."""
        await self._web.reload()

    def _enter(self, headers: Headers, query: str) -> LocalSocket:
        socket = LocalSocket(headers, query)
        self.enter(socket.scope, socket.from_client, socket.to_client)
        return socket

    def enter(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Run the ASGI application for one connection or request."""
        task = asyncio.ensure_future(self._web.application(scope, receive, send))
        self._applications.add(task)
        task.add_done_callback(self._applications.discard)


class LocalSocket:
    """The application's end: a `RawSocket` that, like a real one, holds what its client does not take."""

    FULL_BYTES = 64 * 1024

    def __init__(self, headers: Headers, query: str) -> None:
        self.handshake: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The status that the handshake is answered with."""
        self.scope: dict[str, Any] = {
            "type": "websocket",
            "path": WEBSOCKET_PATH,
            "query_string": query.encode(),
            "headers": [(b"host", b"localhost"), *headers],
            "client": ("127.0.0.1", 1),
            "extensions": {SOCKET_EXTENSION: self},
        }
        self.receiver: Receiver | None = None
        self.frames: asyncio.Queue[bytes | ConnectionLost] = asyncio.Queue()
        self.reading = asyncio.Event()
        self.reading.set()
        self._to_application: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._to_application.put_nowait({"type": "websocket.connect"})
        self._buffered = 0
        self._taken = 0
        self._full = False
        self._open = False

    async def from_client(self) -> dict[str, Any]:
        """Return the next ASGI message to the application."""
        return await self._to_application.get()

    async def to_client(self, message: Any) -> None:
        """Take an ASGI message of the application."""
        if message["type"] == "websocket.accept":
            self._open = True
            self.handshake.set_result(101)
        elif not self.handshake.done():
            self.handshake.set_result(403)

    @property
    def is_open(self) -> bool:
        """Whether neither side has ended it."""
        return self._open

    def hang_up(self) -> None:
        """End it from the client's side."""
        if self._open:
            self._end(ConnectionLost("the connection was closed here"))

    def took(self, size: int) -> None:
        """Learn that the client has taken so many bytes."""
        self._buffered -= size
        self._taken += size
        if self._full and not self._buffered:
            self._full = False
            if self.receiver is not None:
                self.receiver.drained()

    # For the application

    def listen(self, receiver: Receiver) -> None:
        """See `RawSocket`, as all below."""
        self.receiver = receiver

    def write(self, data: bytes) -> None:
        if self._open:
            self.frames.put_nowait(data)
            self._buffered += len(data)
            self._full = self._full or self._buffered > self.FULL_BYTES

    def is_full(self) -> bool:
        return self._full

    def buffered(self) -> int:
        return self._buffered

    def taken(self) -> int:
        return self._taken

    def pause_reading(self) -> None:
        self.reading.clear()

    def resume_reading(self) -> None:
        self.reading.set()

    def close(self, code: int) -> None:
        if self._open:
            self._end(ConnectionLost(f"the connection was closed ({code})", close_code=code))

    def _end(self, how: ConnectionLost) -> None:
        self._open = False
        self.reading.set()
        self.frames.put_nowait(how)
        self._to_application.put_nowait({"type": "websocket.disconnect", "code": how.close_code or 1000})
        if self.receiver is not None:
            self.receiver.lost()


class LocalTransport:
    """The client's end: `ochat_client.transports.Transport`."""

    def __init__(self, socket: LocalSocket) -> None:
        self._socket = socket

    async def send(self, frame: bytes) -> None:
        """Send one envelope."""
        await self._socket.reading.wait()
        if not self._socket.is_open or self._socket.receiver is None:
            raise ConnectionLost("the connection was closed")
        self._socket.receiver.received(frame)

    async def receive(self) -> bytes:
        """Return the next envelope."""
        data = await self._socket.frames.get()
        if isinstance(data, ConnectionLost):
            self._socket.frames.put_nowait(data)
            raise data
        self._socket.took(len(data))
        return data[HEADER_BYTES[data[1]] :] if data[1] in HEADER_BYTES else data[2:]

    async def close(self) -> None:
        """End the connection."""
        self._socket.hang_up()


HEADER_BYTES = {126: 4, 127: 10}
"""Of an unmasked message, by its first length byte; two for any shorter one (RFC 6455, 5.2)."""
