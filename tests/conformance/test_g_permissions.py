"""Scenarios G: permissions, with a prompt of one tool that the model calls once."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ochat_client import ProtocolError, methods
from ochat_site.dialects.ochat1.types import PermissionRespondResult
from tests.conformance.peers import Hold, code, history, told
from tests.conformance.sites import Site
from tests.support.model_scripts import Call, Reply, Text, Wait

CALL = Reply(Call("clock", call_id="c1"))
ANSWER = Reply(Text("done"))


async def test_g1(site: Site) -> None:
    """The profile denies or allows: the tool is not run, or run; the operation ends."""
    peer = await site.peer()
    for profile, runs in (("unattended", False), ("open", True)):
        site.model.answer(CALL, ANSWER)
        hold = await peer.create(profile, start=True)
        await hold.say("go")
        ended = await hold.until_ended()

        assert ended.kind == "operation.completed"
        assert _ran(hold) is runs
        assert hold.view.permissions == {}
        assert history(await hold.snapshot())[-1] == "assistant: done"
        assert (await _output(hold)).startswith("The call was not run") is not runs


async def test_g2(site: Site) -> None:
    """ask with a writer attached: nothing runs before the answer, then it does."""
    site.model.answer(CALL, ANSWER)
    hold = await (await site.peer()).create("interactive", start=True)
    await hold.say("go")
    asked = await hold.until_asked()

    observed = (await hold.snapshot()).session.observed_state
    assert observed.__struct_config__.tag == "waiting_for_permission"
    assert asked.state == "pending"
    assert asked.invocation_display == "clock(<redacted>)"
    assert not _ran(hold)
    assert len(site.model.requests) == 1
    await hold.answer(asked, "approve_once")
    assert (await hold.until_ended()).kind == "operation.completed"

    assert _ran(hold)
    assert hold.view.permissions[asked.id].state == "approved"
    assert len(await _outputs(hold)) == 1
    assert (await hold.snapshot()).permissions[0] == hold.view.permissions[asked.id]


async def test_g2_denied(site: Site) -> None:
    """ask with a writer attached: nothing runs before the answer, then it does.

    Denied, the turn goes on with an output that says so (behaviour 6.7).
    """
    site.model.answer(CALL, ANSWER)
    hold = await (await site.peer()).create("interactive", start=True)
    await hold.say("go")
    await hold.answer(await hold.until_asked(), "deny", "not today")
    assert (await hold.until_ended()).kind == "operation.completed"

    assert not _ran(hold)
    assert "not today" in await _output(hold)


@pytest.mark.parametrize("profile", ["interactive", "patient"])
async def test_g3(site: Site, profile: str) -> None:
    """ask with nobody there: the fallback at once, or a request that waits for a writer."""
    site.model.answer(Reply(Text("soon", Wait("gate")), Call("clock", call_id="c1")), ANSWER)
    writer = await (await site.peer()).create(profile, start=True)
    observer = await (await site.peer()).attach(writer.session_id, "read_only")
    await writer.say("go")
    await observer.until_text("soon")
    await writer.detach()
    site.model.open("gate")

    if profile == "interactive":
        assert (await observer.until_ended()).kind == "operation.completed"
        assert observer.view.permissions == {}
        assert not _ran(observer)
        return
    asked = await observer.until_asked()
    back = await (await site.peer()).attach(writer.session_id)
    assert [request.id for request in back.view.pending_permissions] == [asked.id]
    await back.answer(asked, "approve_once")
    await observer.until_ended()
    assert _ran(observer)


@pytest.mark.parametrize(
    ("profile", "state"),
    # No rule can be evaluated yet, which counts as an error of it, and so denies.
    [("brief-deny", "denied"), ("brief-allow", "approved"), ("brief-policy", "denied")],
)
async def test_g5(site: Site, profile: str, state: str) -> None:
    """A request's time passes: its fallback decides, once."""
    site.model.answer(CALL, ANSWER)
    hold = await (await site.peer()).create(profile, start=True)
    await hold.say("go")
    assert (await hold.until_ended()).kind == "operation.completed"

    (request,) = hold.view.permissions.values()
    assert request.state == state
    assert request.resolution
    assert request.resolution.reason == "timed out"
    assert not request.resolution.principal_id
    assert hold.kinds.count("permission.resolved") == 1
    assert _ran(hold) is (state == "approved")


async def test_g7(site: Site) -> None:
    """Two writers answer at once: one is taken, the other was too late."""
    site.model.answer(CALL, ANSWER)
    writers = [await (await site.peer()).create("interactive", start=True)]
    writers.append(await (await site.peer()).attach(writers[0].session_id))
    await writers[0].say("go")
    asked = [await writer.until_asked() for writer in writers]
    assert asked[0] == asked[1]

    outcomes = await asyncio.gather(
        writers[0].answer(asked[0], "approve_once"),
        writers[1].answer(asked[1], "deny"),
        return_exceptions=True,
    )
    [won] = [outcome for outcome in outcomes if isinstance(outcome, PermissionRespondResult)]
    [lost] = [outcome for outcome in outcomes if isinstance(outcome, ProtocolError)]
    await writers[0].until_ended()

    assert lost.code == "already_resolved"
    assert writers[0].view.permissions[asked[0].id] == won.permission
    assert writers[0].kinds.count("permission.resolved") == 1
    assert _ran(writers[0]) is (won.permission.state == "approved")


async def test_g8(site: Site) -> None:
    """A read-only client cannot answer, and the request stays pending."""
    site.model.answer(CALL, ANSWER)
    writer = await (await site.peer()).create("interactive", start=True)
    reader = await (await site.peer()).attach(writer.session_id, "read_only")
    await writer.say("go")
    asked = await reader.until_asked()

    assert await code(reader.answer(asked, "approve_once")) == "permission_denied"
    listed = await reader.peer.call("permission.list", session_id=writer.session_id, limit=10)
    assert [(one["id"], one["state"]) for one in listed["items"]] == [(asked.id, "pending")]
    await writer.until_asked()
    await writer.answer(asked, "deny")
    await writer.until_ended()


async def test_g10(site: Site) -> None:
    """A session grant lets the same call run unasked, and no other."""
    other = Reply(Call("clock", '{"timezone":"Europe/Paris"}', call_id="c3"))
    site.model.answer(CALL, Reply(Call("clock", call_id="c2")), other, ANSWER)
    hold = await (await site.peer()).create("interactive", start=True)
    await hold.say("go")
    first = await hold.until_asked()
    await hold.answer(first, "approve_session")
    await hold.until(lambda: [one for one in hold.view.pending_permissions if one.id != first.id])
    third = hold.view.pending_permissions[0]

    assert third.call_id == "c3"
    assert third.runtime_identity != first.runtime_identity
    assert _calls(hold) == ["c1", "c2"]
    [grant] = hold.view.grants.values()
    assert (grant.scope, grant.identity_digest) == ("exact_session", first.runtime_identity)
    await hold.answer(third, "deny")
    await hold.until_ended()
    assert _calls(hold) == ["c1", "c2"]


async def test_g12(site: Site) -> None:
    """A revoked grant is told of, listed as revoked, and its call asks again."""
    site.model.answer(CALL, Reply(Text("once")), Reply(Call("clock", call_id="c2")), ANSWER)
    hold = await (await site.peer()).create("interactive", start=True)
    await hold.say("go")
    await hold.answer(await hold.until_asked(), "approve_session")
    await hold.until_ended()
    [grant] = hold.view.grants.values()

    revoked = await hold.mutate(methods.GRANT_REVOKE, grant_id=grant.id, reason="enough")
    await hold.until_kind("grant.revoked")

    assert (revoked.grant.state, revoked.grant.revocation_reason) == ("revoked", "enough")
    assert hold.view.grants[grant.id] == revoked.grant
    listed = await hold.peer.call("grant.list", session_id=hold.session_id, state="revoked", limit=10)
    assert [one["id"] for one in listed["items"]] == [grant.id]
    again = hold.mutate(methods.GRANT_REVOKE, grant_id=grant.id, reason="enough")
    assert await code(again) == "already_resolved"
    await hold.say("again")
    asked = await hold.until_asked()
    assert asked.call_id == "c2"
    await hold.answer(asked, "deny")
    await hold.until_ended()


async def test_g13(site: Site) -> None:
    """Cancelling while a request waits cancels it and closes its call with an error output."""
    site.model.answer(CALL, ANSWER)
    hold = await (await site.peer()).create("interactive", start=True)
    sent = await hold.say("go")
    asked = await hold.until_asked()

    assert sent.operation_id
    await hold.cancel(sent.operation_id)
    await hold.until_kind("permission.resolved")

    assert told(hold.events)[-3:] == [
        ["history.appended", "permission.requested", "state(running,waiting_for_permission)"],
        ["updated(cancelling)"],
        [
            "history.appended",
            "operation.cancelled",
            "moderator.notification",
            "state(running,idle)",
            "permission.resolved",
        ],
    ]
    closed = hold.view.permissions[asked.id]
    assert closed.state == "cancelled"
    assert closed.resolution
    assert closed.resolution.choice == "deny"
    assert not closed.resolution.principal_id
    assert "not run" in await _output(hold)
    assert not _ran(hold)
    assert len(site.model.requests) == 1


def _ran(hold: Hold) -> bool:
    """Tell whether a tool was started."""
    return bool(_calls(hold))


def _calls(hold: Hold) -> list[str]:
    """Return the ids of the calls that were started, as far as was told."""
    started = [live for live in hold.lives if live.kind == "tool.started"]
    return [msgspec.json.decode(live.payload)["call_id"] for live in started]


async def _outputs(hold: Hold) -> list[str]:
    entries = (await hold.snapshot()).canonical_history.entries
    return [msgspec.json.decode(entry.payload)["output"] for entry in entries if entry.kind == "tool_output"]


async def _output(hold: Hold) -> str:
    (output,) = await _outputs(hold)
    return output
