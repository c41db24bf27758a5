"""Scenarios C: catalog and workspaces."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sessions_app.records import PromptRef, PromptRefLocalPath, WorkspaceRequest, WorkspaceRequestCurrent
from tests.conformance import fixture
from tests.conformance.fixture import BROKEN, EDITABLE, ELSEWHERE
from tests.conformance.peers import Hold, Peer, answered, code, spec
from tests.conformance.sites import Site


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"prompt": "nowhere"}, "prompt_not_found"),
        ({"prompt": BROKEN}, "prompt_unavailable"),
        ({"workspace": "nowhere"}, "workspace_not_found"),
        ({"workspace": ELSEWHERE}, "permission_denied"),
    ],
)
async def test_c1(site: Site, options: dict[str, Any], expected: str) -> None:
    """create with an unknown, local or unusable prompt or workspace, or a pair that is not allowed."""
    peer = await site.peer()

    assert await code(peer.client.create_session(spec(**options))) == expected


@pytest.mark.parametrize(
    ("member", "reference", "expected"),
    [
        ("prompt", PromptRefLocalPath(path="/etc/passwd"), "prompt_unavailable"),
        ("workspace", WorkspaceRequestCurrent(), "workspace_unavailable"),
    ],
)
async def test_c1_on_this_machine(
    site: Site, member: str, reference: PromptRef | WorkspaceRequest, expected: str
) -> None:
    """create with an unknown, local or unusable prompt or workspace, or a pair that is not allowed."""
    peer = await site.peer()

    wanted = msgspec.structs.replace(spec(), **{member: reference})
    assert await code(peer.client.create_session(wanted)) == expected


async def test_c4(site: Site) -> None:
    """A session keeps its prompt revision through edit, reload, restart and deletion of the source."""
    source = site.data_dir / "prompts" / f"{EDITABLE}.chatmd"
    peer = await site.peer()
    try:
        first = await peer.create(EDITABLE, start=True)
        before = await _revision(peer)
        fixture.write_prompt(site.data_dir, EDITABLE, "Say B.")
        await site.reload()
        await answered(lambda: _changed(peer, before), "the new revision")
        second = await peer.create(EDITABLE, start=True)
        assert first.view.session.prompt_revision == before
        assert second.view.session.prompt_revision == await _revision(peer) != before

        source.unlink()
        await site.reload()
        await site.restart()
        again = await site.peer()
        for held, text in ((first, "Say A."), (second, "Say B.")):
            assert text in await _asked_with(site, await again.attach(held.session_id))
    finally:
        fixture.write_prompt(site.data_dir, EDITABLE, "Say A.")
        await site.reload()


async def _revision(peer: Peer) -> str:
    found = await peer.call("prompt.get", prompt_id=fixture.prompt(EDITABLE))
    revision: str = found["current_revision"]
    return revision


async def _changed(peer: Peer, before: str) -> bool:
    return await _revision(peer) != before


async def _asked_with(site: Site, hold: Hold) -> str:
    """Let a turn run, and return what the model was asked with."""
    count = len(site.model.requests)
    await hold.say("hello")
    assert (await hold.until_ended()).kind == "operation.completed"
    (request,) = site.model.requests[count:]
    return request.raw.decode()
