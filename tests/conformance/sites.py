"""Where the scenarios are run: a server as a client finds it, whatever carries the frames.

Owns: what a test may ask of any server (`Door`), what a scenario may ask of its own (`Site`), and real processes behind a
WebSocket. Does not own: the site in this process (`local`), what a server is configured with (`fixture`), or the scenarios.

A transport is added by a site whose `open` reaches the server by it.
"""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import websockets
from websockets.asyncio.client import ClientConnection, connect

from ochat_client import Client, ConnectionRefused
from ochat_client.transports import MAX_FRAME_BYTES, Transport
from ochat_client.transports.websocket import FINAL_STATUSES, UNREAD_FRAMES, WebSocket
from tests.conformance.checked import Checked
from tests.conformance.fixture import ADMIN, ALL, Person
from tests.conformance.peers import WAIT_SECONDS, Peer
from tests.support import databases
from tests.support.model_servers import ModelServer
from tests.support.processes import Installation, Process

Headers = Sequence[tuple[bytes, bytes]]

WEBSOCKET_PATH = "/v1/ws"

NARROW_BYTES = 4096
"""A receive buffer so small that a client that does not read is soon noticed."""


def bearer(person: Person) -> tuple[bytes, bytes]:
    """Return the header by which a person is known."""
    return b"authorization", b"Bearer " + person.token.encode()


class Door(ABC):
    """A server as its clients find it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        """What the server sent and must not send: empty, or the scenario has failed."""
        self._peers: list[Peer] = []

    @abstractmethod
    async def open(self, headers: Headers, *, narrow: bool = False) -> Transport:
        """Connect with these headers; `narrow`: the system holds little of what the client does not read.

        Raises ConnectionRefused.
        """

    @abstractmethod
    async def handshake(self, headers: Headers, query: str = "") -> int:
        """Connect with these headers, hang up, and return the status of the handshake: 101 or why not."""

    async def wire(
        self, person: Person = ADMIN, *, headers: Headers | None = None, narrow: bool = False
    ) -> Checked:
        """Connect, for frames that no client sends; `headers` in place of the usual bearer."""
        sent = [bearer(person)] if headers is None else headers
        return Checked(await self.open(sent, narrow=narrow), self.problems)

    async def connect(self, person: Person = ADMIN, *, headers: Headers | None = None) -> Peer:
        """Connect a client that has still to initialize."""
        wire = await self.wire(person, headers=headers)
        peer = Peer(Client(wire), wire)
        self._peers.append(peer)
        return peer

    async def peer(self, person: Person = ADMIN) -> Peer:
        """Connect a client and initialize."""
        peer = await self.connect(person)
        await peer.client.initialize()
        return peer

    async def check_laws(self) -> None:
        """Check what holds at the end of every test: nothing was sent that must not be, and the replay law for every client."""
        for peer in self._peers:
            for hold in peer.holds:
                await hold.check_law()
        assert self.problems == []

    async def close(self) -> None:
        """Let every client go."""
        for peer in self._peers:
            await peer.close()


class Site(Door):
    """A server with fixture F0, and the model that its turns ask."""

    principal: ClassVar[Mapping[str, Any]] = {
        "id": ADMIN.principal,
        "authentication_kind": "http.static_bearer",
        "scopes": list(ALL),
        "attributes": {},
    }
    """Whom the server takes the ADMIN of this site for."""
    slow_code: ClassVar[int | None] = 4408
    """By what a client is told that it was too slow; None where a connection just ends."""

    def __init__(self, data_dir: Path, model: ModelServer) -> None:
        super().__init__()
        self.data_dir = data_dir
        self.model = model

    @abstractmethod
    async def reload(self) -> None:
        """Let the server read its catalog and every prompt again, as SIGHUP does."""

    @abstractmethod
    async def restart(self) -> None:
        """Stop the server in order and start it again; every connection ends."""


class Processes:
    """A web process, a worker and Valkey on one data folder.

    Whatever starts one must run in the main thread: they end with the thread that started them.
    """

    def __init__(self, installation: Installation) -> None:
        self.installation = installation
        done = installation.run("first_run")
        assert done.returncode == 0, done.stderr
        self.valkey: Process
        self.serve: Process
        self.worker: Process
        self.start()

    @property
    def database_url(self) -> str:
        """What `OCHAT_DATABASE_URL` is for another process that shall use the same store."""
        given = self.installation.environment.get("OCHAT_DATABASE_URL")
        return given or databases.sqlite_url(self.installation.data_dir / "ochat.sqlite3")

    def start(self) -> None:
        """Start all three."""
        self.valkey = self.installation.start_valkey()
        self.worker = self.installation.start("worker")
        self.serve = self.installation.start_serve()

    def restart_serve(self) -> None:
        """Start a web process in place of one that is gone."""
        self.serve = self.installation.start_serve()

    def restart_worker(self) -> None:
        """Start a worker in place of one that is gone."""
        self.worker = self.installation.start("worker")

    def stop(self) -> None:
        """End all three in order."""
        for process in (self.serve, self.worker, self.valkey):
            process.stop()

    def kill(self) -> None:
        """End all three as a crash does."""
        for process in (self.worker, self.serve, self.valkey):
            process.kill()


class SocketDoor(Door):
    """A server on a port of this machine, reached by WebSocket."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port = port

    async def open(self, headers: Headers, *, narrow: bool = False) -> SocketTransport:
        """Open a WebSocket."""
        client = socket.socket()
        try:
            client.setblocking(False)
            if narrow:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BYTES)
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
            connection = await connect(
                f"ws://127.0.0.1:{self.port}{WEBSOCKET_PATH}",
                sock=client,
                additional_headers=[(name.decode(), value.decode()) for name, value in headers],
                max_size=MAX_FRAME_BYTES,
                max_queue=1 if narrow else UNREAD_FRAMES,
                compression=None,
                proxy=None,
            )
        except websockets.InvalidStatus as refused:
            status = refused.response.status_code
            raise ConnectionRefused(f"HTTP {status}", final=status in FINAL_STATUSES) from None
        except (OSError, TimeoutError, EOFError, websockets.InvalidHandshake) as failure:
            client.close()
            raise ConnectionRefused(f"nobody answers: {failure}", final=False) from None
        return SocketTransport(connection)

    async def handshake(self, headers: Headers, query: str = "") -> int:
        """Send a handshake as it stands."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [
            f"GET {WEBSOCKET_PATH}{'?' if query else ''}{query} HTTP/1.1".encode(),
            f"host: 127.0.0.1:{self.port}".encode(),
            b"upgrade: websocket",
            b"connection: Upgrade",
            b"sec-websocket-version: 13",
            b"sec-websocket-key: " + base64.b64encode(os.urandom(16)),
            *(name + b": " + value for name, value in headers),
        ]
        writer.write(b"\r\n".join([*lines, b"", b""]))
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return int((await reader.readline()).split()[1])
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


class SocketTransport(WebSocket):
    """A WebSocket that can also break off."""

    def __init__(self, connection: ClientConnection) -> None:
        super().__init__(connection)
        self._socket = connection

    def drop(self) -> None:
        """Break off without a word, as when a machine loses its network."""
        self._socket.transport.abort()


class SocketSite(Site):
    """Real processes behind a WebSocket; shared by the scenarios of a run, so each must leave them running."""

    def __init__(self, processes: Processes, model: ModelServer) -> None:
        super().__init__(processes.installation.data_dir, model)
        self.processes = processes
        self._door = SocketDoor(processes.installation.port)

    async def open(self, headers: Headers, *, narrow: bool = False) -> Transport:
        """Open a WebSocket."""
        return await self._door.open(headers, narrow=narrow)

    async def handshake(self, headers: Headers, query: str = "") -> int:
        """Send a handshake as it stands."""
        return await self._door.handshake(headers, query)

    async def reload(self) -> None:
        """Send SIGHUP to the web process."""
        os.kill(self.processes.serve.pid, signal.SIGHUP)

    async def restart(self) -> None:
        """Stop the processes by SIGTERM and start them again."""
        await asyncio.to_thread(self.processes.stop)
        self.processes.start()
