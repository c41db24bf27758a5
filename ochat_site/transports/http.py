"""The protocol over HTTP: requests and answers, routes, and `POST /v1/rpc` (behaviour 1.3, 1.4).

Owns: what every route has in common: who asks, headers that may stand once, statuses, bare errors; and the rules of a POST. Does
not own: the socket and its limits (`ochat_site.server`), how a credential is checked (`Authenticate`), calls
(`rpc.posts`, `rpc.dispatch`), logical connections (`sessions_app.commands.logical`), streams (`sse`), the other routes
(`resources`).

These are plain ASGI applications: a stream holds no thread, and the store is asked in the database threads alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

import structlog

from ochat_site.dialects.ochat1.errors import to_error
from ochat_site.dialects.ochat1.types import ConnectionClosedResult
from ochat_site.rpc import posts
from ochat_site.rpc.dispatch import off_loop
from ochat_site.rpc.posts import Post
from ochat_site.transports.extensions import BODY_EXTENSION
from ochat_site.transports.websocket import Authenticate, Receive, Scope, Send
from sessions_app import ids, limits
from sessions_app.commands import logical
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.errors import (
    IncompatibleProtocol,
    InternalError,
    InvalidRequest,
    MethodNotFound,
    Refusal,
    ResourceLimit,
    Unauthenticated,
)

if TYPE_CHECKING:
    from ochat_site.rpc.dispatch import Dispatcher
    from permissions_app.principals import Identity
    from sessions_app.commands.logical import Logical
    from sessions_app.records import AttachmentMode
    from sessions_app.views import View

logger = structlog.get_logger(__name__)

CONNECTION_ID = b"ochat-connection-id"
PROTOCOL_VERSION = b"ochat-protocol-version"
VERSIONS = (b"1", b"1.0")

PIECE_BYTES = 64 * limits.KIB
"""In such pieces a body is sent: as much as may wait in the socket of a client that does not read."""

Headers = Sequence[tuple[bytes, bytes]]

ALWAYS: Headers = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'; sandbox"),
)
"""On every answer: none is a page, whatever it holds."""


class ClientGone(Exception):
    """The client has left before its request was complete; nobody is to be answered."""


class Request:
    """One request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wrap what ASGI gives."""
        self.scope = scope
        self.receive = receive
        self.send = send
        self.started = False
        """Whether the answer has begun."""

    @property
    def method(self) -> str:
        """The verb."""
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        """The path, unquoted."""
        return str(self.scope["path"])

    def header(self, name: bytes) -> bytes | None:
        """Return a header that may stand once, or None. Raises InvalidRequest for one that is repeated."""
        values = [value for key, value in self.scope["headers"] if key.lower() == name]
        if len(values) > 1:
            raise InvalidRequest(f"the header {name.decode()} is repeated")
        return values[0] if values else None

    def text(self, name: bytes) -> str | None:
        """Return a header as text. Raises InvalidRequest for one that is repeated or is not UTF-8."""
        value = self.header(name)
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"the header {name.decode()} is not UTF-8") from None

    async def body(self) -> bytes:
        """Return the whole body. Raises ResourceLimit above 16 MiB."""
        pieces = []
        size = 0
        async for piece in self.pieces():
            size += len(piece)
            if size > limits.MAX_FRAME_BYTES:
                raise _too_large()
            pieces.append(piece)
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Go through the body as it comes. Raises ResourceLimit for one that the server cut off, and ClientGone."""
        if BODY_EXTENSION in self.scope.get("extensions", {}):
            raise _too_large()
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientGone
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                return

    async def start(self, status: int, headers: Headers) -> None:
        """Begin the answer."""
        self.started = True
        given = {name for name, _ in headers}
        usual = [(name, value) for name, value in ALWAYS if name not in given]
        await self.send({"type": "http.response.start", "status": status, "headers": [*headers, *usual]})

    async def answer(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """Send a whole answer, in pieces that wait for the client to take them."""
        await self.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        for start in range(0, len(body), PIECE_BYTES):
            piece = body[start : start + PIECE_BYTES]
            await self.send({"type": "http.response.body", "body": piece, "more_body": True})
        await self.send({"type": "http.response.body", "body": b""})

    async def answer_nothing(self, status: int, headers: Headers) -> None:
        """Send an answer that has no body by its status."""
        await self.start(status, headers)
        await self.send({"type": "http.response.body", "body": b""})

    async def answer_json(self, status: int, value: object, headers: Headers = ()) -> None:
        """Send a whole answer that is JSON; `value` is a struct, or JSON in a Raw."""
        await self.answer(status, encode(value), [*headers, JSON])

    async def refuse(self, status: int, refusal: Refusal, headers: Headers = ()) -> None:
        """Send a bare error."""
        await self.answer_json(status, to_error(refusal), headers)


JSON = (b"content-type", b"application/json")


def _too_large() -> ResourceLimit:
    return ResourceLimit("a body holds at most 16 MiB", retryable=False)


Handler = Callable[[Request, "Identity", Mapping[str, str]], Awaitable[None]]
"""Answers a request of an authenticated client; takes what the path names. A Refusal becomes a bare error."""


@dataclass(frozen=True, slots=True)
class Route:
    """What may be asked of the paths of one form."""

    path: str
    """As a template: `/v1/blobs/{id}`."""
    methods: Mapping[str, Handler]
    statuses: Mapping[str, int] = field(default_factory=dict)
    """The statuses of certain error codes."""
    status: int = HTTPStatus.BAD_REQUEST
    """The status of any other failure."""

    @property
    def form(self) -> re.Pattern[str]:
        """What matches the paths."""
        return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", self.path))


class Api:
    """The ASGI application of every path below `/v1`."""

    def __init__(self, authenticate: Authenticate, routes: Sequence[Route]) -> None:
        """Serve these routes to whom `authenticate` knows, whatever the path; everybody else gets 401."""
        self._authenticate = authenticate
        self._routes = [(route.form, route) for route in routes]
        self._serving: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        # In a task of its own: the server cancels the application of a client that left, and what has begun is finished.
        task = asyncio.create_task(self._answer(Request(scope, receive, send)))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        await asyncio.shield(task)

    async def _answer(self, request: Request) -> None:
        route: Route | None = None
        try:
            identity = await self._authenticate(request.scope)
            route, named = self._find(request.path)
            handler = route.methods.get(request.method) if route else None
            if route is None:
                await request.refuse(HTTPStatus.NOT_FOUND, MethodNotFound("no such path"))
            elif handler is None:
                await _refuse_method(request, ", ".join(sorted(route.methods)))
            else:
                await handler(request, identity, named)
        except ClientGone:
            return
        except Unauthenticated as refusal:
            await request.refuse(HTTPStatus.UNAUTHORIZED, refusal, [(b"www-authenticate", b"Bearer")])
        except Refusal as refusal:
            await self._fail(request, _status(route, refusal), refusal)
        except Exception:
            logger.exception("http.failed", method=request.method)
            failure = InternalError("the server failed")
            await self._fail(request, HTTPStatus.INTERNAL_SERVER_ERROR, failure)

    def _find(self, path: str) -> tuple[Route | None, Mapping[str, str]]:
        for form, route in self._routes:
            found = form.fullmatch(path)
            if found is not None:
                return route, found.groupdict()
        return None, {}

    async def _fail(self, request: Request, status: int, refusal: Refusal) -> None:
        if request.started:
            logger.warning("http.cut_short", code=refusal.code)
            await request.send({"type": "http.response.body", "body": b""})
        else:
            await request.refuse(status, refusal)


async def _refuse_method(request: Request, allowed: str) -> None:
    refusal = MethodNotFound("this path has no such method")
    await request.refuse(HTTPStatus.METHOD_NOT_ALLOWED, refusal, [(b"allow", allowed.encode())])


def _status(route: Route | None, refusal: Refusal) -> int:
    if route is None:
        return HTTPStatus.BAD_REQUEST
    return route.statuses.get(refusal.code, route.status)


# Logical connections


class Streams(Protocol):
    """The event streams of this process, as calls touch them."""

    def close_attachment(self, connection_id: str, attachment_id: str) -> None:
        """End the subscription of an attachment, if a stream here serves it."""
        ...

    def changed(self, connection_id: str) -> None:
        """Let whoever streams the connection, in any process, look at its attachments again."""
        ...


class HttpClient:
    """A logical connection as the handlers of one request see it: `rpc.context.Client`."""

    transport = logical.TRANSPORT
    logical = True

    def __init__(self, found: Logical, identity: Identity, streams: Streams) -> None:
        """Speak for the connection that `found` describes, with the authority that it was opened with."""
        self.connection_id = found.id
        self.initialized = found.initialized
        self.max_event_bytes: int | None = found.max_event_bytes
        self.identity = identity
        self.changed = False
        """Whether attachments came or went."""
        self._streams = streams

    def open_attachment(
        self, attachment_id: str, session_id: str, mode: AttachmentMode, *, view: View, after: int
    ) -> None:
        """Note it: the row says where its events begin, and the stream is told behind the answer."""
        self.changed = True

    def close_attachment(self, attachment_id: str) -> None:
        """End its subscription."""
        self.changed = True
        self._streams.close_attachment(self.connection_id, attachment_id)


async def find_connection(request: Request, identity: Identity) -> Logical:
    """Return the logical connection that a request names.

    Raises InvalidRequest for none, a repeated or an unknown one, PermissionDenied for one of another authority.
    """
    named = request.header(CONNECTION_ID)
    if named is None:
        raise InvalidRequest("the header ochat-connection-id is missing")
    return await in_db(logical.find, named.decode("latin-1"), identity.principal)


class Rpc:
    """`POST /v1/rpc` and `DELETE /v1/connection`."""

    def __init__(self, dispatcher: Dispatcher, streams: Streams) -> None:
        """Answer calls by `dispatcher`; `streams` serve the events of the connections."""
        self._dispatcher = dispatcher
        self._streams = streams

    async def post(self, request: Request, identity: Identity, _named: Mapping[str, str]) -> None:
        """Answer one body: 200 with what its calls answer, 204 for nothing."""
        _check_content_type(request.header(b"content-type"))
        _check_version(request.header(PROTOCOL_VERSION))
        body = await request.body()
        post = await off_loop(len(body), posts.read, body)
        client = await self._client(request, identity, post)
        answer = await posts.answer(self._dispatcher, client, post)
        headers = [(CONNECTION_ID, client.connection_id.encode())]
        if answer:
            await request.answer(HTTPStatus.OK, answer, [*headers, JSON])
        else:
            await request.answer_nothing(HTTPStatus.NO_CONTENT, headers)
        if client.changed:
            self._streams.changed(client.connection_id)

    async def delete(self, request: Request, identity: Identity, _named: Mapping[str, str]) -> None:
        """Close a logical connection."""
        found = await find_connection(request, identity)
        try:
            await in_db(logical.close, found.id)
        except Refusal as refusal:
            # No call finds it any more, and the sweep goes on.
            logger.warning("http.close_put_off", code=refusal.code)
        self._streams.changed(found.id)
        await request.answer_json(HTTPStatus.OK, ConnectionClosedResult())

    async def _client(self, request: Request, identity: Identity, post: Post) -> HttpClient:
        if request.header(CONNECTION_ID) is not None:
            return HttpClient(await find_connection(request, identity), identity, self._streams)
        if not post.opens:
            raise IncompatibleProtocol("the first call of a connection is protocol.initialize")
        opened = await in_db(logical.open_connection, ids.new_id("con"), identity.principal)
        return HttpClient(opened, identity, self._streams)


_PARAMETER = re.compile(r'\s*([!#$%&\'*+.^_`|~0-9a-z-]+)=(?:"([^"\\]*)"|([^\s";]+))\s*')


def _check_content_type(value: bytes | None) -> None:
    media_type, *parameters = (value or b"").decode("latin-1").lower().split(";")
    if media_type.strip() != "application/json":
        raise InvalidRequest("the body must be of the type application/json")
    for parameter in parameters:
        found = _PARAMETER.fullmatch(parameter)
        if found is None or (found[1] == "charset" and (found[2] or found[3]) not in ("utf-8", "utf8")):
            raise InvalidRequest("the body must be in UTF-8")


def _check_version(value: bytes | None) -> None:
    if value not in VERSIONS:
        raise IncompatibleProtocol("the header ochat-protocol-version must be 1 or 1.0")


async def alive(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer `/healthz`: this process takes requests."""
    await _answer_probe(Request(scope, receive, send), HTTPStatus.OK, b"ok\n")


async def _answer_probe(request: Request, status: int, text: bytes) -> None:
    if request.method in ("GET", "HEAD"):
        await request.answer(status, text, [(b"content-type", b"text/plain; charset=utf-8")])
    else:
        await _refuse_method(request, "GET, HEAD")


class Readiness:
    """`/readyz`: whether this process takes new work, for whoever balances between processes."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        """`ready` asks the health; it is called in a database thread."""
        self._ready = ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 200 or 503."""
        request = Request(scope, receive, send)
        if await in_db(self._ready):
            await _answer_probe(request, HTTPStatus.OK, b"ready\n")
        else:
            await _answer_probe(request, HTTPStatus.SERVICE_UNAVAILABLE, b"not ready\n")
