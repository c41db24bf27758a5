"""Scenarios A: connection and envelope."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance import fixture
from tests.conformance.checked import Checked
from tests.conformance.peers import code
from tests.conformance.sites import Site

INITIALIZE: dict[str, Any] = {
    "implementation": {"name": "scenario", "version": "1"},
    "protocol_min": {"major": 1, "minor": 0},
    "protocol_max": {"major": 1, "minor": 0},
    "features": ["sessions.durable", "events.durable", "made.up"],
    "event_encodings": ["json"],
    "max_inbound_event_bytes": 16 * 2**20,
}


async def test_a1(site: Site) -> None:
    """initialize 1.0 to 1.0: name, version, the principal with all scopes, limits, retention."""
    peer = await site.connect()
    result = await peer.call("protocol.initialize", **INITIALIZE)

    assert result["protocol_name"] == "ochat.agent"
    assert result["selected_version"] == {"major": 1, "minor": 0}
    assert result["enabled_features"] == ["events.durable", "sessions.durable"]
    assert result["principal"] == site.principal
    assert result["limits"] == {
        "max_request_bytes": 16 * 2**20,
        "max_event_bytes": 16 * 2**20,
        "max_page_size": 1000,
        "max_attachments_per_connection": 64,
    }
    assert result["event_retention"] == {
        "minimum_age_ms": 0,
        "maximum_events": fixture.SETTINGS["max_events_per_session"],
    }


async def test_a3(framed_site: Site) -> None:
    """ping before initialize, or after one that failed: incompatible_protocol."""
    peer = await framed_site.connect()

    assert await code(peer.call("protocol.ping")) == "incompatible_protocol"
    later = {**INITIALIZE, "protocol_min": {"major": 2, "minor": 0}, "protocol_max": {"major": 2, "minor": 0}}
    assert await code(peer.call("protocol.initialize", **later)) == "incompatible_protocol"
    assert await code(peer.call("protocol.ping")) == "incompatible_protocol"
    await peer.client.initialize()
    assert (await peer.call("protocol.ping", payload=[1, None]))["payload"] == [1, None]


async def test_a3_what_comes_before_being_initialized(framed_site: Site) -> None:
    """ping before initialize, or after one that failed: incompatible_protocol.

    An unknown method, bad params and a missing scope are told before that (behaviour 1.1).
    """
    peer = await framed_site.connect(fixture.PUBLIC)

    assert await code(peer.call("protocol.nothing")) == "method_not_found"
    assert await code(peer.call("prompt.list")) == "invalid_request"
    assert await code(peer.call("prompt.list", limit=1)) == "permission_denied"
    assert await code(peer.call("server.info")) == "incompatible_protocol"


async def _ask(wire: Checked, id: str, method: str, params: Any) -> Any:
    call = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
    await wire.send(json.dumps(call).encode())
    return json.loads(await wire.receive())


async def test_a18(framed_site: Site) -> None:
    """Bad params with an id get an error with it; garbage without one nothing; ping its answer."""
    wire = await framed_site.wire()
    await _ask(wire, "first", "protocol.initialize", INITIALIZE)

    answer = await _ask(wire, "second", "session.list", {"limit": "many"})
    assert (answer["id"], answer["error"]["code"]) == ("second", "invalid_request")
    for garbage in (b"", b"{", b"nothing", b"[]", b"17", b'{"id":null,"method":"x"}', b'{"jsonrpc":"2.0"}'):
        await wire.send(garbage)
    answer = await _ask(wire, "third", "protocol.ping", {"payload": "here"})
    assert (answer["id"], answer["result"]["payload"]) == ("third", "here")
    await wire.close()


async def test_a24(site: Site) -> None:
    """info, health, prompt and workspace list and get: equal results on all transports.

    Each is compared with one expectation, so that all transports say the same.
    """
    peer = await site.peer()

    info = await peer.call("server.info")
    assert info["transports"] == ["http", "unix_socket", "websocket"]
    assert info["unsafe_development_auth"] is False
    assert (await peer.call("server.health"))["status"] in ("healthy", "degraded")
    prompts = (await peer.call("prompt.list", limit=100))["items"]
    assert {prompt["name"]: prompt["availability"] for prompt in prompts} == {
        **dict.fromkeys([fixture.SMOKE, fixture.CODING, fixture.EDITABLE, *fixture.PROFILES], "available"),
        fixture.BROKEN: "unavailable",
    }
    assert prompts == sorted(prompts, key=lambda prompt: prompt["id"])
    for prompt in prompts:
        assert await peer.call("prompt.get", prompt_id=prompt["id"]) == prompt
    workspaces = (await peer.call("workspace.list", limit=100))["items"]
    assert {workspace["name"] for workspace in workspaces} == {*fixture.WORKSPACES}
    for workspace in workspaces:
        assert await peer.call("workspace.get", workspace_id=workspace["id"]) == workspace
    assert await code(peer.call("prompt.get", prompt_id="prd_none")) == "prompt_not_found"
    assert await code(peer.call("workspace.get", workspace_id="wsd_none")) == "workspace_not_found"
