"""What the server says of itself (behaviour 1.2, 14.1, wire 4)."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app import limits
from sessions_app.limits import ServerSettings
from tests.support.serving import INITIALIZE, Host, identity

FEATURES = [
    "attachments.multi_client",
    "events.durable",
    "events.recoverable",
    "permissions.configurable",
    "sessions.durable",
    "workspaces.configured",
]
VERSION = {"major": 1, "minor": 0}
LIMITS = {
    "max_request_bytes": 16_777_216,
    "max_event_bytes": 16_777_216,
    "max_page_size": 1000,
    "max_attachments_per_connection": 64,
}


async def initialized(host: Host, **changed: Any) -> Any:
    client = await host.connect(identity(scopes=("session.own", "prompt.list"), zone="1", team="red"))
    return await client.initialize(**changed)


async def test_initialize_says_what_holds_here(host: Host) -> None:
    answer = await initialized(host)

    assert answer.pop("server_time").endswith("Z")
    assert answer == {
        "protocol_name": "ochat.agent",
        "selected_version": VERSION,
        "implementation": {"name": "ochat-server", "version": "1.2.3"},
        "server_id": "srv_test",
        "enabled_features": ["events.durable", "sessions.durable"],
        "principal": {
            "id": "pri_ann",
            "authentication_kind": "http.static_bearer",
            "scopes": ["prompt.list", "session.own"],
            "attributes": {"team": "red", "zone": "1"},
        },
        "limits": LIMITS,
        "event_retention": {"minimum_age_ms": 0, "maximum_events": 100_000},
        "timing": {
            "heartbeat_interval_ms": 15_000,
            "owner_lease_duration_ms": 60_000,
            "owner_renew_after_ms": 30_000,
            "disconnect_grace_default_ms": 10_000,
        },
    }


async def test_settings_are_those_in_force(host: Host) -> None:
    with limits.using(ServerSettings(max_events_per_session=1000, owner_renew_after_ms=7)):
        answer = await initialized(host)

    assert answer["event_retention"]["maximum_events"] == 1000
    assert answer["timing"]["owner_renew_after_ms"] == 7


async def test_features_come_in_the_servers_order(host: Host) -> None:
    answer = await initialized(host, features=[*reversed(FEATURES), "future.thing"])

    assert answer["enabled_features"] == FEATURES


async def test_a_range_of_versions_meets_in_1_0(host: Host) -> None:
    answer = await initialized(host, protocol_max={"major": 1, "minor": 7})

    assert answer["selected_version"] == VERSION


async def test_initialize_again_changes_nothing(host: Host) -> None:
    client = await host.client()

    assert (await client.initialize())["server_id"] == "srv_test"
    assert client.connection.initialized


@pytest.mark.parametrize("params", [{}, {"payload": None}, {"payload": {"b": [1.50, "\n"], "a": {}}}])
async def test_a_ping_comes_back(host: Host, params: dict[str, Any]) -> None:
    answer = await (await host.client()).call("protocol.ping", params)

    assert answer.pop("server_time").endswith("Z")
    assert answer == {**params, "ready": True, "draining": False}


async def test_a_draining_process_says_so(host: Host) -> None:
    client = await host.client()
    host.server.draining = True

    answer = await client.call("protocol.ping")
    assert (answer["ready"], answer["draining"]) == (False, True)
    assert await (await host.connect()).refusal("protocol.initialize", **INITIALIZE) == "server_shutting_down"


async def test_info(host: Host) -> None:
    client = await host.client(identity(scopes=()))

    assert await client.call("server.info") == {
        "server_id": "srv_test",
        "implementation": {"name": "ochat-server", "version": "1.2.3"},
        "protocol_version": VERSION,
        "features": FEATURES,
        "transports": ["http", "websocket"],
        "limits": LIMITS,
        "unsafe_development_auth": False,
    }
    with limits.using(ServerSettings(require_auth=False)):
        assert (await client.call("server.info"))["unsafe_development_auth"]


async def test_health_shows_components_to_who_asks_and_may(host: Host) -> None:
    may, may_not = await host.client(), await host.client(identity(scopes=()))

    assert (await may.call("server.health"))["components"] == []
    shown = await may.call("server.health", include_details=True)
    assert shown["components"] == [{"name": "daemon", "status": "healthy"}]
    hidden = await may_not.call("server.health", include_details=True)
    assert (hidden["status"], hidden["components"]) == ("healthy", [])
