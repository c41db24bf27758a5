"""HTTP without a wire: requests at the door of the ASGI application, and the client's HTTP transport on top of them.

Owns: a request, a stream that holds what its reader does not take, the site of which clients speak HTTP. Does not own: the
application, the client's transport (`ochat_client.transports.http`), or real sockets (`tests.e2e`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from ochat_client import ConnectionRefused
from ochat_client.transports import Transport
from ochat_client.transports.http import Answer, Http
from ochat_site.transports.extensions import BODY_EXTENSION, STREAM_EXTENSION
from tests.conformance.local import LocalSite
from tests.conformance.sites import Headers

Application = Callable[..., Any]

CHUNK_BYTES = 64 * 1024


class LocalRequest:
    """One request: both ends of it. To the application it is a `RawStream`, which like a real one holds what nobody takes."""

    FULL_BYTES = 64 * 1024

    def __init__(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        body: bytes = b"",
        *,
        query: str = "",
        peer: str = "127.0.0.1",
        too_large: bool = False,
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "scheme": "http",
            "query_string": query.encode(),
            "headers": [(b"host", b"local"), *headers],
            "client": (peer, 1),
            "extensions": {STREAM_EXTENSION: self, **({BODY_EXTENSION: {}} if too_large else {})},
        }
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._to_application: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for start in range(0, max(len(body), 1), CHUNK_BYTES):
            self._to_application.put_nowait(
                {
                    "type": "http.request",
                    "body": body[start : start + CHUNK_BYTES],
                    "more_body": start + CHUNK_BYTES < len(body),
                }
            )
        self._drained: Callable[[], None] | None = None
        self._buffered = 0
        self._taken = 0
        self._full = False

    # The client's end

    def hang_up(self) -> None:
        """Leave."""
        if not self.ended.is_set():
            self._finish()

    async def body(self) -> bytes:
        """Return the whole body."""
        return b"".join([piece async for piece in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Take the body as it comes."""
        while (piece := await self.pieces.get()) is not None:
            self._buffered -= len(piece)
            self._taken += len(piece)
            if self._full and not self._buffered:
                self._full = False
                if self._drained is not None:
                    self._drained()
            yield piece

    def header(self, name: bytes) -> bytes | None:
        """Return a header of the answer."""
        return next((value for key, value in self.headers if key == name), None)

    # The application's end

    async def from_client(self) -> dict[str, Any]:
        """Return the next ASGI message to the application."""
        return await self._to_application.get()

    async def to_client(self, message: Any) -> None:
        """Take an ASGI message of the application."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
            self.begun.set()
            return
        self.send_part(message.get("body", b""))
        if not message.get("more_body", False):
            self._finish()

    def listen(self, drained: Callable[[], None]) -> None:
        """See `RawStream`, as all below."""
        self._drained = drained

    def send_part(self, data: bytes) -> None:
        if data and not self.ended.is_set():
            self.pieces.put_nowait(data)
            self._buffered += len(data)
            self._full = self._full or self._buffered > self.FULL_BYTES

    def is_full(self) -> bool:
        return self._full

    def buffered(self) -> int:
        return self._buffered

    def taken(self) -> int:
        return self._taken

    def end_response(self) -> None:
        if not self.ended.is_set():
            self._finish()

    def _finish(self) -> None:
        self.ended.set()
        self.begun.set()
        self.pieces.put_nowait(None)
        self._to_application.put_nowait({"type": "http.disconnect"})


class Requests:
    """Requests at the door of a site in this process."""

    def __init__(self, site: LocalSite, headers: Headers = ()) -> None:
        self._site = site
        self._headers = list(headers)
        self._open: set[LocalRequest] = set()

    def send(self, request: LocalRequest) -> LocalRequest:
        """Enter the application with a request."""
        self._site.enter(request.scope, request.from_client, request.to_client)
        return request

    async def ask(
        self,
        method: str,
        path: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        **options: Any,
    ) -> Reply:
        """Send a request and return the whole answer."""
        request = self.send(LocalRequest(method, path, [*self._headers, *headers], body, **options))
        content = await request.body()
        return Reply(request.status, request.headers, content)

    # `ochat_client.transports.http.Exchange`

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """Send a request."""
        reply = await self.ask(method, path, _encoded(headers), body)
        return Answer(
            reply.status, {key.decode(): value.decode() for key, value in reply.headers}, reply.body
        )

    async def stream(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[Answer | bytes]:
        """Send a GET."""
        request = LocalRequest("GET", path, [*self._headers, *_encoded(headers)])
        self.send(request)
        self._open.add(request)
        try:
            await request.begun.wait()
            if request.status != 200:
                yield Answer(request.status, {}, await request.body())
                return
            yield Answer(request.status)
            async for piece in request:
                yield piece
        finally:
            request.hang_up()
            self._open.discard(request)

    async def close(self) -> None:
        """Hang up."""
        for request in list(self._open):
            request.hang_up()


class Reply:
    """A whole answer."""

    def __init__(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def header(self, name: bytes) -> bytes | None:
        """Return a header, or None."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """The code of a bare error."""
        return str(self.json["code"])


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers.items()]


class HttpSite(LocalSite):
    """The site in this process, whose clients speak HTTP."""

    async def open(self, headers: Headers, *, narrow: bool = False) -> Transport:
        """Make a transport, once the credential is known to count."""
        requests = Requests(self, headers)
        if (await requests.ask("GET", "/v1/health")).status != 200:
            raise ConnectionRefused("the request was refused", final=True)
        return Http(requests)

    async def handshake(self, headers: Headers, query: str = "") -> int:
        """Ask something; 101 stands for being let in."""
        status = (await Requests(self, headers).ask("GET", "/v1/health", query=query)).status
        return {200: 101, 401: 403}.get(status, status)
