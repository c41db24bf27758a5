"""Which ASGI application serves what: paths of WebSockets, the protocol's HTTP routes and probes, and Django for the rest.

Owns: the choice by scope type and path. Does not own: the applications, nor HTTP routes (`urls`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from ochat_site.transports.extensions import BODY_EXTENSION
from ochat_site.transports.websocket import Receive, Scope, Send

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

API_PREFIX = "/v1/"


class Router:
    """The ASGI application of the web process."""

    def __init__(
        self,
        http: Application,
        websockets: Mapping[str, Application],
        *,
        api: Application | None = None,
        probes: Mapping[str, Application] = MappingProxyType({}),
    ) -> None:
        """Give WebSockets and `probes` to the application of their path, what lies below `/v1` to `api`, the rest to `http`."""
        self._http = http
        self._websockets = websockets
        self._api = api
        self._probes = probes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or one WebSocket."""
        if scope["type"] == "websocket":
            await self._websockets.get(scope["path"], refuse_websocket)(scope, receive, send)
        elif self._api is not None and scope["path"].startswith(API_PREFIX):
            await self._api(scope, receive, send)
        elif BODY_EXTENSION in scope.get("extensions", {}):
            await refuse_body(scope, receive, send)
        else:
            await self._probes.get(scope["path"], self._http)(scope, receive, send)


async def refuse_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a handshake (403)."""
    await receive()
    await send({"type": "websocket.close"})


async def refuse_body(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 413 to a body above the limit."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": b"The body is too large.\n"})
