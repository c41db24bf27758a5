"""The web process's server: Daphne's, started, drained and ended in order (design 3, behaviour 14.3).

Owns: listening, signals, the bound on draining, handing sockets to applications. Does not own: the sockets
and their limits (`sockets`), which application serves what (`routing`), what runs beside the sockets
(`Life`).

Importing this module installs Twisted's reactor on an asyncio loop: only the process that serves does so.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import structlog

from ochat_site.daphne_parts import defer, reactor, server, twisted_logger
from ochat_site.sockets import (
    CLOSE_SECONDS,
    HANDSHAKE_SECONDS,
    HttpFactory,
    WebSocketFactory,
    WebSocketProtocol,
)
from ochat_site.transports.extensions import BODY_EXTENSION, SOCKET_EXTENSION, STREAM_EXTENSION
from sessions_app import limits

logger = structlog.get_logger(__name__)

BACKLOG = 128

PING_SECONDS = 20
"""Keeps idle connections open through proxies."""

BODY_CHUNK_BYTES = 64 * limits.KIB
"""In such pieces an application gets a body."""


class Life(Protocol):
    """What runs beside the sockets, in the same loop."""

    async def start(self) -> None:
        """Begin, before the first connection is accepted."""
        ...

    async def drain(self) -> None:
        """Finish the calls begun on open connections and close them; no new ones come (behaviour 14.3)."""
        ...

    async def stop(self) -> None:
        """End, after the last connection."""
        ...

    async def reload(self) -> None:
        """Read again what an operator may have changed (SIGHUP)."""
        ...


class Server(server.Server):  # type: ignore[misc]  # untyped
    """Serves one ASGI application on one listening socket until a signal ends it."""

    def __init__(
        self,
        application: Any,
        listener: socket.socket,
        life: Life,
        *,
        grace_seconds: Callable[[], float],
        on_ready: Callable[[], None],
    ) -> None:
        """Serve on `listener`, which is bound; `grace_seconds` bounds draining, `on_ready` follows the
        start.
        """
        super().__init__(
            application,
            endpoints=["adopted"],
            signal_handlers=False,
            request_buffer_size=BODY_CHUNK_BYTES,
            websocket_timeout=-1,
            websocket_connect_timeout=HANDSHAKE_SECONDS,
            ping_interval=PING_SECONDS,
            server_name="ochat",
        )
        self._listener = listener
        self._life = life
        self._grace_seconds = grace_seconds
        self._on_ready = on_ready
        self._loop = server.twisted_loop
        self._stop_asked = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        self._failure: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections: dict[Any, dict[str, Any]] = {}
        self.http_factory = HttpFactory(self)
        self.ws_factory = WebSocketFactory(self, server=self.server_name)
        self.ws_factory.setProtocolOptions(
            allowNullOrigin=True,  # Whose `Origin` is trusted is asked where cookies count (behaviour 1.4).
            autoPingTimeout=0,
            openHandshakeTimeout=HANDSHAKE_SECONDS,
            closeHandshakeTimeout=CLOSE_SECONDS,
            failByDrop=False,
            maxMessagePayloadSize=limits.MAX_FRAME_BYTES,
            maxFramePayloadSize=0,
        )

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain; a second signal ends the draining.

        Raises what `Life.start` refuses to start with.
        """
        twisted_logger.globalLogBeginner.beginLoggingTo(
            [_log_failures], redirectStandardIO=False, discardBuffer=True
        )
        asyncio.set_event_loop(self._loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._ask_to_stop)
        self._loop.add_signal_handler(signal.SIGHUP, lambda: self._spawn(self._reload()))
        reactor.callLater(1, self.application_checker)
        reactor.callLater(2, self.timeout_checker)
        reactor.addSystemEventTrigger("before", "shutdown", self.kill_all_applications)
        reactor.callWhenRunning(lambda: self._spawn(self._serve()))
        reactor.run(installSignalHandlers=False)
        if self._failure is not None:
            raise self._failure

    async def _serve(self) -> None:
        try:
            await self._life.start()
            self._listener.setblocking(False)  # noqa: FBT003 - the library's signature
            self._listener.listen(BACKLOG)
            port = reactor.adoptStreamPort(self._listener.fileno(), self._listener.family, self.http_factory)
            self._listener.close()  # The port has its own descriptor.
            self._on_ready()
            await self._stop_asked.wait()
            port.stopListening()
            await self._drain()
            await self._life.stop()
        except Exception as error:  # noqa: BLE001 - `run` raises it, outside the loop
            self._failure = error
        finally:
            reactor.stop()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._grace_seconds()) as self._patience:
                await self._life.drain()
                await self._until_applications_end()
        except TimeoutError:
            logger.warning("server.drain_cut_short", connections=len(self.connections))
        finally:
            self._patience = None

    async def _until_applications_end(self) -> None:
        running = self._applications()
        if running:
            await asyncio.wait(running)

    async def _reload(self) -> None:
        try:
            await self._life.reload()
        except Exception:
            logger.exception("server.reload")

    def _ask_to_stop(self) -> None:
        if self._stop_asked.is_set() and self._patience is not None:
            self._patience.reschedule(self._loop.time())
        self._stop_asked.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What Daphne's protocols call

    def create_application(self, protocol: Any, scope: dict[str, Any]) -> Any:
        """Start an application, with our extensions in its scope."""
        extensions = scope.setdefault("extensions", {})
        if isinstance(protocol, WebSocketProtocol):
            extensions[SOCKET_EXTENSION] = protocol
        else:
            protocol.registerProducer(protocol, True)  # noqa: FBT003 - Twisted's signature
            if protocol.body_too_large:
                extensions[BODY_EXTENSION] = {}
            extensions[STREAM_EXTENSION] = protocol
        return super().create_application(protocol, scope)

    async def handle_reply(self, protocol: Any, message: dict[str, Any]) -> None:
        """Send what an application sends, and let it wait until the client's socket has room."""
        await super().handle_reply(protocol, message)
        await protocol.until_room()

    def protocol_disconnected(self, protocol: Any) -> None:
        """Note that a client is gone."""
        if protocol in self.connections:
            super().protocol_disconnected(protocol)

    def kill_all_applications(self) -> Any:
        """Cancel the applications that still run."""
        running = self._applications()
        for application in running:
            application.cancel()
        return defer.Deferred.fromFuture(asyncio.gather(*running, return_exceptions=True))

    def _applications(self) -> list[asyncio.Future[None]]:
        details = self.connections.values()
        return [detail["application_instance"] for detail in details if "application_instance" in detail]


def _log_failures(event: dict[str, Any]) -> None:
    """Keep of what Twisted and Autobahn log what is a fault."""
    failure = event.get("log_failure")
    if failure is not None:
        logger.error("server.twisted", exc_info=(failure.type, failure.value, failure.getTracebackObject()))
    elif getattr(event.get("log_level"), "name", "") in {"error", "critical"}:
        logger.error("server.twisted", text=twisted_logger.formatEvent(event))
