"""Sites behind their Unix socket, and those behind a gateway, in this process and in real ones.

Owns: who goes in by the socket. Does not own: the site (`local`), or the client's end (`ochat_client.transports.lines`).
"""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from django.conf import settings

from ochat_client.transports import MAX_FRAME_BYTES, lines, open_transport
from ochat_site.stdio.gateway import Gateway
from ochat_site.stdio.streams import Streams
from ochat_site.web import SOCKET_NAME
from sessions_app import ids
from tests.conformance.fixture import ADMIN, ALL
from tests.conformance.local import LocalSite
from tests.conformance.sites import Headers, Processes, SocketSite, bearer
from tests.support.model_servers import ModelServer
from tests.support.processes import ROOT

if TYPE_CHECKING:
    from ochat_client.transports import Transport


def socket_path() -> Path:
    """Return where the site in this process listens."""
    return settings.ENV.run_dir / SOCKET_NAME


class UnixSite(LocalSite):
    """ADMIN goes in by the Unix socket, as our own user; everybody else by the WebSocket, which knows them apart."""

    principal: ClassVar = {
        "id": ids.derived_id("pri", "unix", str(os.geteuid())),
        "authentication_kind": "unix.peer_credentials",
        "scopes": list(ALL),
        "attributes": {
            "unix.gid": str(os.getegid()),
            "unix.pid": str(os.getpid()),
            "unix.uid": str(os.geteuid()),
        },
    }

    slow_code = None

    def __init__(self, data_dir: Path, model: ModelServer) -> None:
        super().__init__(data_dir, model)
        self._opened: list[Transport] = []

    async def open(self, headers: Headers, *, narrow: bool = False) -> Transport:
        """Connect to the socket; the system holds little of what a client does not read here anyway."""
        if list(headers) != [bearer(ADMIN)]:
            return await super().open(headers, narrow=narrow)
        self._opened.append(await self.connect_lines())
        return self._opened[-1]

    async def connect_lines(self) -> Transport:
        """Reach the site by lines."""
        return await lines.connect(str(socket_path()), max_frame_bytes=MAX_FRAME_BYTES)

    async def close(self) -> None:
        """Let every client go, those too whose connection the server has ended."""
        for transport in self._opened:
            await transport.close()
        await super().close()


class ProcessSite(SocketSite):
    """Real processes; ADMIN goes in by their Unix socket, or by a gateway process in front of `scheme`."""

    slow_code = None

    def __init__(self, processes: Processes, model: ModelServer, scheme: str = "") -> None:
        super().__init__(processes, model)
        self._scheme = scheme
        self._opened: list[Transport] = []

    async def open(self, headers: Headers, *, narrow: bool = False) -> Transport:
        """Connect, or start a gateway that does."""
        if list(headers) != [bearer(ADMIN)]:
            return await super().open(headers, narrow=narrow)
        socket_uri = f"unix://{self.data_dir / 'run' / SOCKET_NAME}"
        if not self._scheme:
            transport = await open_transport(socket_uri, token=None)
        else:
            port = self.processes.installation.port
            uri = socket_uri if self._scheme == "unix" else f"{self._scheme}://127.0.0.1:{port}"
            transport = await open_transport(f"stdio:{shlex.join(self._gateway(uri))}", token=None)
        self._opened.append(transport)
        return transport

    def _gateway(self, uri: str) -> list[str]:
        token = self.data_dir / "admin.token"
        token.write_text(ADMIN.token, encoding="utf-8")
        manage = str(ROOT / "manage.py")
        return [sys.executable, manage, "ochat_stdio", "--connect", uri, "--bearer-token-file", str(token)]

    async def close(self) -> None:
        """Let every client go, and with it its gateway."""
        for transport in self._opened:
            await transport.close()
        await super().close()


class GatewaySite(UnixSite):
    """ADMIN goes in by a gateway: lines on its input and output, the Unix socket behind it."""

    def __init__(self, data_dir: Path, model: ModelServer) -> None:
        super().__init__(data_dir, model)
        self._gateways: list[asyncio.Task[int]] = []

    async def connect_lines(self) -> Transport:
        """Start a gateway in this process, its two streams one socket."""
        ours, theirs = socket.socketpair()
        ours.settimeout(0)
        uri = f"unix://{socket_path()}"
        streams = Streams(os.dup(theirs.fileno()), theirs.detach())
        gateway = Gateway(streams, await super().connect_lines(), uri)
        self._gateways.append(asyncio.create_task(gateway.run()))
        return lines.LineTransport(ours, MAX_FRAME_BYTES)

    async def close(self) -> None:
        """Let every client go, and with it its gateway."""
        await super().close()
        await asyncio.gather(*self._gateways)
