"""Which application serves what."""

from collections.abc import Mapping
from typing import Any

import pytest

from ochat_site.routing import Router
from ochat_site.transports.extensions import BODY_EXTENSION


class Application:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.scopes: list[Mapping[str, Any]] = []

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        self.scopes.append(scope)


async def serve(router: Router, scope: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    sent: list[Mapping[str, Any]] = []

    async def receive() -> Mapping[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    await router(scope, receive, send)
    return sent


@pytest.mark.parametrize(
    ("scope", "served"),
    [
        ({"type": "http", "path": "/v1/ws"}, "http"),
        ({"type": "http", "path": "/admin/", "extensions": {}}, "http"),
        ({"type": "websocket", "path": "/v1/ws"}, "websocket"),
        ({"type": "websocket", "path": "/v1/ws/"}, None),
        ({"type": "websocket", "path": "/admin/"}, None),
        ({"type": "http", "path": "/admin/", "extensions": {BODY_EXTENSION: {}}}, None),
    ],
)
async def test_every_scope_has_its_application(scope: Mapping[str, Any], served: str | None) -> None:
    applications = {"http": Application(), "websocket": Application()}
    router = Router(applications["http"], {"/v1/ws": applications["websocket"]})

    await serve(router, scope)

    assert [name for name, application in applications.items() if application.scopes] == (
        [served] if served else []
    )


@pytest.mark.parametrize(
    ("path", "served"),
    [
        ("/v1/rpc", "api"),
        ("/v1/nothing", "api"),
        ("/v1", "http"),
        ("/v10/rpc", "http"),
        ("/healthz", "probe"),
        ("/healthz/", "http"),
    ],
)
async def test_the_protocol_has_its_own_application(path: str, served: str) -> None:
    """A body above the limit is its business, too: there the answer has a code."""
    applications = {"http": Application(), "api": Application(), "probe": Application()}
    router = Router(
        applications["http"], {}, api=applications["api"], probes={"/healthz": applications["probe"]}
    )

    await serve(router, {"type": "http", "path": path})
    assert [name for name, application in applications.items() if application.scopes] == [served]
    if served == "api":
        await serve(router, {"type": "http", "path": path, "extensions": {BODY_EXTENSION: {}}})
        assert len(applications["api"].scopes) == 2


async def test_an_unknown_websocket_is_refused() -> None:
    sent = await serve(Router(Application(), {}), {"type": "websocket", "path": "/v1/ws"})

    assert sent == [{"type": "websocket.close"}]


async def test_a_body_that_is_too_large_is_told_so() -> None:
    scope = {"type": "http", "path": "/", "extensions": {BODY_EXTENSION: {}}}
    start, body = await serve(Router(Application(), {}), scope)

    assert start["status"] == 413
    assert body["body"]
