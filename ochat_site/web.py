"""The web process beside its sockets: what serves the connections, what runs with them, how it ends (design 5, behaviour 14.3).

Owns: the services of one web process and their order at start, draining and stop; letting clients in and seeing them out. Does
not own: listening and signals (`server`), framing (`transports`), calls (`rpc.dispatch`), or what the loops do (`jobs_app`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

import structlog
from django.conf import settings
from django.core.asgi import get_asgi_application

from jobs_app import recovery
from jobs_app.background import Background
from ochat_site import VERSION, browsers, configuration
from ochat_site.dialects.ochat1.events import Notifications
from ochat_site.env import ConfigError
from ochat_site.health import Health
from ochat_site.peers import Peer, objection
from ochat_site.routing import Router
from ochat_site.rpc.connection import Connection, Connections, ConnectionServices
from ochat_site.rpc.context import Server
from ochat_site.rpc.dispatch import Dispatcher
from ochat_site.rpc.feed import FeedHub
from ochat_site.rpc.outbox import Closing, Socket
from ochat_site.transports.http import Api, Readiness, Route, Rpc, alive
from ochat_site.transports.resources import Audited, Blobs, HealthRoute, Snapshots
from ochat_site.transports.sse import CONNECTION_SIGNAL, ConnectionStreams, SessionStreams
from ochat_site.transports.unix import Occupied, UnixEndpoint, claim
from ochat_site.transports.websocket import Scope, WebSocketEndpoint
from permissions_app import audit_batch, authentication, watch
from sessions_app import catalog, db, ids, ledger, limits, processes, store
from sessions_app.broadcast import Broadcast
from sessions_app.commands import attachments, connections
from sessions_app.commands.operations import SERVER_SHUTDOWN
from sessions_app.db import in_db
from sessions_app.errors import Refusal, Unauthenticated

if TYPE_CHECKING:
    from ochat_site.routing import Application
    from ochat_site.transports.unix import Listener
    from permissions_app.principals import Identity
    from sessions_app.ledger import StoredEvent

log = structlog.get_logger(__name__)

SOCKET_NAME = "agent.sock"
"""In the private folder of the data folder's sockets."""

FORGET_AGAIN_SECONDS = 1.0


class _Log:
    """The kernel's log as the feeds read it: in the database threads."""

    async def read_heads(self, session_ids: Sequence[str]) -> Mapping[str, int]:
        return await in_db(ledger.read_heads, session_ids)

    async def read_events(
        self, session_id: str, after: int, limit: int, max_bytes: int
    ) -> Sequence[StoredEvent]:
        return await in_db(ledger.read_events, session_id, after, limit, max_bytes)


class Web:
    """One web process. Implements `server.Life`; `application` is what the server serves."""

    def __init__(self, kind: str = "web") -> None:
        """Put the services together; nothing runs and nothing is read before `start`.

        `kind` is what the process is listed as: `web`, or `local` for an embedded host, which listens nowhere.
        """
        self._kind = kind
        self._broadcast = Broadcast()
        self._audit = audit_batch.AuditBatch()
        self._follower = configuration.follower()
        self._connections = Connections()
        self._tasks: set[asyncio.Task[object]] = set()
        self._hub = FeedHub(_Log(), self._broadcast)
        self._broadcast.on_wake(self._hub.wake)
        self._broadcast.on_live(self._hub.live)
        self._broadcast.on_joined(self._hub.joined)
        self._background = Background(
            self._broadcast,
            on_lost=self._taken_for_dead,
            follow=self._follow_catalog,
            watches=[
                self._watch_credentials,
                self._watch_attachments,
                self._watch_streams,
                self._watch_socket,
            ],
        )
        self._loops: list[asyncio.Task[None]] = []
        self._server = Server(
            id="",
            version=VERSION,
            transports=("http", "unix_socket", "websocket") if kind == "web" else (),
            health=Health(self._broadcast, self._audit).check,
        )
        self._dispatcher = Dispatcher(self._server, self._audit)
        self._services = ConnectionServices(
            handle=self._dispatcher.handle, hub=self._hub, dialect=Notifications(), on_close=self._forget
        )
        self._unix_services = replace(self._services, transport="unix_socket")
        self._unix = UnixEndpoint(self._admit, self._connect_unix)
        self._unix_holder = 0
        """The process that has the Unix socket of this data folder, where it is another one of the same store."""
        self._streams = ConnectionStreams(self._server, self._hub, self._connections)
        self._broadcast.on_signal(CONNECTION_SIGNAL, self._streams.heard)
        self.application = Router(
            cast("Application", get_asgi_application()),
            {"/v1/ws": WebSocketEndpoint(self._authenticate, self._connect)},
            api=Api(self._authenticate, self._routes()),
            probes={"/healthz": alive, "/readyz": Readiness(self._is_ready)},
        )

    async def start(self) -> None:
        """Enter the process among those that serve the store, take the catalog, start every loop."""
        await in_db(processes.register, self._kind)
        await in_db(self._follower.start)
        check_anonymity(settings.ENV.bind.host)
        listener = await in_db(self._claim_socket) if self._kind == "web" else None
        self._server.id = await in_db(store.server_id)
        await self._broadcast.start()
        self._background.start()
        self._loops = [
            asyncio.create_task(self._hub.run()),
            asyncio.create_task(self._audit.keep_writing()),
        ]
        if listener is not None:
            await self._unix.open(listener)

    async def drain(self) -> None:
        """Take no new work, finish the calls begun, close every connection."""
        self._server.draining = True
        self._unix.stop_listening()
        await self._background.drain()
        await self._connections.drain()
        await self._unix.wait_closed()

    async def stop(self) -> None:
        """End every loop, give up whatever is still held, write what waits for the audit trail."""
        self._unix.abort()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._background.stop()
        await in_db(self._audit.flush)
        await in_db(recovery.leave, SERVER_SHUTDOWN)
        await self._broadcast.stop()
        await asyncio.to_thread(db.shutdown)

    async def reload(self) -> None:
        """Read the catalog and every prompt again."""
        self._follower.request_reload()
        await self._follow_catalog()

    @property
    def broadcast(self) -> Broadcast:
        """The hints of this process."""
        return self._broadcast

    # Clients

    def connect(self, identity: Identity, socket: Socket, transport: str) -> Connection:
        """Hold the connection of a client whom somebody else knows and listens to."""
        return self._hold(identity, socket, replace(self._services, transport=transport))

    def _routes(self) -> list[Route]:
        server, audited = self._server, Audited(self._audit)
        rpc, blobs = Rpc(self._dispatcher, self._streams), Blobs(audited)
        sessions = SessionStreams(server, self._hub, self._connections, audited)
        return [
            Route("/v1/rpc", {"POST": rpc.post}),
            Route("/v1/connection", {"DELETE": rpc.delete}),
            Route("/v1/events", {"GET": self._streams.get}),
            Route("/v1/sessions/{id}/events", {"GET": sessions.get}, status=HTTPStatus.CONFLICT),
            Route("/v1/sessions/{id}/snapshot", {"GET": Snapshots(server, audited).get}),
            Route("/v1/blobs", {"POST": blobs.post}, {"session_not_found": 403, "permission_denied": 403}),
            Route("/v1/blobs/{id}", {"GET": blobs.get}, {"permission_denied": 403}),
            Route("/v1/health", {"GET": HealthRoute(server).get}),
        ]

    def _is_ready(self) -> bool:
        return self._server.health(self._server).ready

    async def _authenticate(self, scope: Scope) -> Identity:
        client = scope.get("client")
        peer = client[0] if client else None
        anonymous = not limits.server().require_auth and browsers.may_be_anonymous(scope)
        try:
            return await in_db(
                authentication.authenticate,
                scope["headers"],
                peer,
                catalog.current().trusted_proxies,
                console_session=browsers.console_session(scope),
                anonymous=anonymous,
            )
        except Unauthenticated:
            self._audit.auth_failed(peer or "unknown")
            raise

    async def _admit(self, peer: Peer) -> Identity:
        """Return who a peer of the Unix socket is. Raises Unauthenticated for one that may not come in (behaviour 2.2)."""
        why_not = await in_db(_objection, peer)
        if why_not:
            log.warning("unix.not_admitted", reason=why_not, pid=peer.pid, uid=peer.uid)
            self._audit.auth_failed("unix_socket")
            raise authentication.refused()
        return authentication.unix_identity(peer.uid, peer.gid, peer.pid)

    def _connect(self, identity: Identity, socket: Socket) -> Connection:
        return self._hold(identity, socket, self._services)

    def _connect_unix(self, identity: Identity, socket: Socket) -> Connection:
        return self._hold(identity, socket, self._unix_services)

    def _hold(self, identity: Identity, socket: Socket, services: ConnectionServices) -> Connection:
        connection = Connection(ids.new_id("con"), identity, socket, services)
        self._spawn(self._connections.hold(connection))
        return connection

    async def _forget(self, connection: Connection) -> None:
        """Let go of everything that a connection held; a store that is away is asked again until it takes it."""
        while connection.initialized:
            try:
                return await in_db(connections.leave, connection.connection_id)
            except Refusal as refusal:
                # Of a process that ends, everything is given up at once (`stop`).
                if self._server.draining or not store.is_away(refusal):
                    raise
            await asyncio.sleep(FORGET_AGAIN_SECONDS)

    def _claim_socket(self) -> Listener | None:
        """Listen on the Unix socket; None while another web process of this store, on this folder, does so already.

        Whatever else is at its place stops the start, with ConfigError.
        """
        try:
            return claim(settings.ENV.run_dir / SOCKET_NAME)
        except Occupied as occupied:
            if occupied.pid not in processes.pids_here("web"):
                raise
            self._unix_holder = occupied.pid
            log.info("unix.held_by_another", pid=occupied.pid)
            return None

    # Watches

    async def _watch_socket(self) -> None:
        """Take the Unix socket over from a process that had it and is gone."""
        if self._server.draining or not self._unix_holder:
            return
        if self._unix_holder not in await in_db(processes.pids_here, "web"):
            self._unix_holder = 0
            listener = await in_db(self._claim_socket)
            if listener is not None:
                await self._unix.open(listener)

    async def _watch_streams(self) -> None:
        await self._streams.watch()

    async def _follow_catalog(self) -> None:
        await in_db(self._follower.reload_if_changed)

    async def _watch_credentials(self) -> None:
        """Close the connections whose credential proves their identity no more (behaviour 1.4)."""
        open_now = list(self._connections)
        ended = await in_db(watch.ended, [connection.identity for connection in open_now])
        for connection in open_now:
            if connection.identity.credential in ended:
                connection.close(Closing.CREDENTIAL_ENDED)

    async def _watch_attachments(self) -> None:
        """Drop the attachments that are gone from the store, and those whose share was withdrawn (behaviour 2.6, 5.3)."""
        held = {
            attachment_id: (connection, attachment.session_id)
            for connection in self._connections
            for attachment_id, attachment in connection.attachments.items()
        }
        if not held:
            return
        shared = [
            attachment_id
            for attachment_id, (connection, _) in held.items()
            if "configuration.admin" not in connection.identity.principal.scopes
        ]
        gone = await in_db(attachments.gone, list(held))
        withdrawn = await in_db(watch.withdrawn, shared) if shared else set()
        for attachment_id in gone | withdrawn:
            connection, session_id = held[attachment_id]
            connection.close_attachment(attachment_id)
            if attachment_id in withdrawn:
                await in_db(attachments.disconnect, [(session_id, attachment_id)])

    def _taken_for_dead(self) -> None:
        """The others detached what this process held: its clients must connect again."""
        for connection in self._connections:
            connection.close(Closing.FAILED)
        self._spawn(in_db(processes.register, self._kind))

    def _spawn(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _objection(peer: Peer) -> str:
    return objection(peer, processes.pids_here("worker"))


def check_anonymity(host: str) -> None:
    """Refuse, with ConfigError, to let everybody beyond this machine in, unless the catalog insists (behaviour 2.2)."""
    server = limits.server()
    if server.require_auth or server.unsafe_allow_unauthenticated_remote_http or _is_loopback(host):
        return
    raise ConfigError(
        f"[server] require_auth = false would let anybody in on {host}: bind to this machine, or set "
        "unsafe_allow_unauthenticated_remote_http = true."
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
