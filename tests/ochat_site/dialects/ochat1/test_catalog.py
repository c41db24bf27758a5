"""Prompts and workspaces, listed and looked up (behaviour 3, 12.1)."""

from __future__ import annotations

from typing import Any

import pytest

from sessions_app.db import in_db
from sessions_app.ids import derived_id
from tests.support.serving import Host, Peer, identity
from tests.support.world import World

NAMES = ("one", "two", "three", "four", "five")


@pytest.fixture
async def client(host: Host, served_world: World) -> Peer:
    """A client of a server with five prompts, of which `two` is disabled and `three` is broken."""

    def fill() -> None:
        rows = {name: served_world.prompt(name=name) for name in NAMES}
        rows["two"].enabled = False
        rows["three"].unavailable_reason = "the tool is not known"
        for row in rows.values():
            row.save()

    await in_db(fill)
    return await host.client()


async def listed(client: Peer, method: str, **params: Any) -> list[str]:
    """Return the names of all items, page by page."""
    names: list[str] = []
    more: dict[str, Any] = {}
    while True:
        page = await client.call(method, params, **more)
        assert len(page["items"]) <= params["limit"]
        names += [item["name"] for item in page["items"]]
        if "next_cursor" not in page:
            return names
        more = {"cursor": page["next_cursor"]}


@pytest.mark.parametrize("limit", [1, 2, 4, 5, 6, 1_000_000])
async def test_prompts_are_listed_by_id(client: Peer, limit: int) -> None:
    assert await listed(client, "prompt.list", limit=limit) == sorted(
        NAMES, key=lambda name: derived_id("prd", name)
    )


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({"enabled": True}, {"one", "three", "four", "five"}),
        ({"enabled": False}, {"two"}),
        ({"available": True}, {"one", "four", "five"}),
        ({"available": False}, {"two", "three"}),
        ({"enabled": True, "available": False}, {"three"}),
    ],
)
async def test_prompts_are_filtered(client: Peer, filters: dict[str, bool], names: set[str]) -> None:
    assert set(await listed(client, "prompt.list", limit=1, **filters)) == names


async def test_workspaces_are_filtered(client: Peer) -> None:
    assert set(await listed(client, "workspace.list", limit=1)) == {"physical", "temporary"}
    assert await listed(client, "workspace.list", limit=1, kind="temporary") == ["temporary"]
    assert await listed(client, "workspace.list", limit=1, access="exclusive") == []
    assert await listed(client, "workspace.list", limit=1, available=False) == []


async def test_one_is_looked_up(client: Peer) -> None:
    prompt = await client.call("prompt.get", prompt_id=derived_id("prd", "three"))
    assert (prompt["name"], prompt["unavailable_reason"]) == ("three", "the tool is not known")
    workspace = await client.call("workspace.get", workspace_id=derived_id("wsd", "physical"))
    assert workspace["name"] == "physical"


async def test_an_unknown_one_is_not_found(client: Peer) -> None:
    assert await client.refusal("prompt.get", prompt_id="prd_none") == "prompt_not_found"
    assert await client.refusal("workspace.get", workspace_id="wsd_none") == "workspace_not_found"


async def test_a_cursor_belongs_to_its_listing_and_its_reader(host: Host, client: Peer) -> None:
    """Behaviour 12.2."""
    cursor = (await client.call("prompt.list", limit=2))["next_cursor"]
    same_again = await host.client()
    others = [
        await host.client(identity("bob")),
        await host.client(identity(scopes=("prompt.list", "workspace.list"))),
        await host.client(identity(zone="1")),
    ]

    assert (await same_again.call("prompt.list", limit=2, cursor=cursor))["items"]
    for other in others:
        assert await other.refusal("prompt.list", limit=2, cursor=cursor) == "invalid_request"
    for params in ({"limit": 3}, {"limit": 2, "enabled": True}):
        assert await client.refusal("prompt.list", **params, cursor=cursor) == "invalid_request"
    assert await client.refusal("workspace.list", limit=2, cursor=cursor) == "invalid_request"


async def test_reads_are_audited(host: Host, client: Peer) -> None:
    await client.call("prompt.list", limit=2)
    await client.refusal("prompt.get", prompt_id="prd_none")
    await (await host.client(identity(scopes=()))).refusal("prompt.list", limit=2)

    assert await host.audited() == [
        ("protocol.command.succeeded", "protocol.initialize", "success"),
        ("protocol.command.succeeded", "prompt.list", "success"),
        ("protocol.command.failed", "prompt.get", "prompt_not_found"),
        ("protocol.command.succeeded", "protocol.initialize", "success"),
        ("protocol.command.denied", "prompt.list", "permission_denied"),
    ]
