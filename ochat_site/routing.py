"""Which ASGI application serves what: paths of WebSockets, and Django for the rest.

Owns: the choice by scope type and path. Does not own: the applications, nor HTTP routes (`urls`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from ochat_site.transports.websocket import Receive, Scope, Send

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY_EXTENSION = "ochat.body_too_large"
"""The server puts it into the scope of a request whose body exceeds the limit, and leaves the body out."""


class Router:
    """The ASGI application of the web process."""

    def __init__(self, http: Application, websockets: Mapping[str, Application]) -> None:
        """Give requests to `http`, and WebSockets to the application of their path."""
        self._http = http
        self._websockets = websockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or one WebSocket."""
        if scope["type"] == "websocket":
            await self._websockets.get(scope["path"], refuse_websocket)(scope, receive, send)
        elif BODY_EXTENSION in scope.get("extensions", {}):
            await refuse_body(scope, receive, send)
        else:
            await self._http(scope, receive, send)


async def refuse_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a handshake (403)."""
    await receive()
    await send({"type": "websocket.close"})


async def refuse_body(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 413 to a body above the limit."""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": b"The body is too large.\n"})
