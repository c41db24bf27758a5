"""Requests and grants over the protocol (behaviour 7.2 to 7.4, scenarios G)."""

from __future__ import annotations

import asyncio

import pytest

from sessions_app import models
from sessions_app.db import in_db
from sessions_app.records import Scope
from tests.support.serving import Held, Host, Refused, identity
from tests.support.world import SCOPES, World

READER: tuple[Scope, ...] = ("session.transcript.read",)


async def asking(host: Host, world: World, *names: str) -> tuple[Held, list[str]]:
    """Make a session whose turn waits on requests about calls of these tools; its writer, and the requests' ids."""
    held = await (await host.client()).create(world, start=True)
    await held.say()
    return held, await in_db(world.ask, held.session_id, *names)


def answer(permission_id: str, choice: str = "approve_once", **more: object) -> dict[str, object]:
    return {"permission_id": permission_id, "permission_generation": 0, "choice": choice, **more}


async def test_what_is_asked_is_listed_and_answered(host: Host, served_world: World) -> None:
    """G2: "pending, waiting_for_permission, tool not run before; then run; permission approved"."""
    held, [request] = await asking(host, served_world, "write")
    listed = await held.peer.call("permission.list", session_id=held.session_id, limit=10)
    assert [(one["id"], one["state"]) for one in listed["items"]] == [(request, "pending")]
    assert listed["items"][0]["invocation_display"] == "write(<redacted>)"

    before = await in_db(served_world.session, held.session_id)
    answered = await held.call("permission.respond", **answer(request, reason="looks right"))

    assert answered["permission"]["state"] == "approved"
    assert answered["permission"]["resolution"]["principal_id"] == "pri_ann"
    assert answered["permission"]["resolution"]["reason"] == "looks right"
    assert (answered["revision"], answered["latest_event_sequence"]) == (
        before.revision + 1,
        before.latest_sequence + 2,
    )
    told = await held.peer.told(answered["latest_event_sequence"] - held.latest)
    assert [event["kind"] for event in told[-2:]] == ["permission.resolved", "session.state_changed"]
    listed = await held.peer.call("permission.list", session_id=held.session_id, limit=10, state="pending")
    assert listed == {"items": []}


async def test_requests_are_paged_by_id(host: Host, served_world: World) -> None:
    """K8: "every item once, stable order"; 12.2: a cursor is of its params."""
    held, requests = await asking(host, served_world, "write", "ask", "write")
    wanted = {"session_id": held.session_id, "limit": 1}
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await held.peer.call("permission.list", wanted, **cursor)
        seen += [one["id"] for one in page["items"]]
        if "next_cursor" not in page:
            break
        cursor = {"cursor": page["next_cursor"]}

    assert seen == sorted(requests)
    for changed in ({"limit": 2}, {"state": "pending"}):
        code = await held.peer.refusal("permission.list", **{**wanted, **cursor, **changed})
        assert code == "invalid_request"


async def test_who_may_not_see_a_session_sees_none_of_its_requests(host: Host, served_world: World) -> None:
    """2.6: "unknown session → `session_not_found`; known but not visible → `permission_denied`"."""
    held, _ = await asking(host, served_world, "write")
    other = await host.client(identity("bob"))
    assert await other.refusal("permission.list", session_id=held.session_id, limit=1) == "permission_denied"
    assert await other.refusal("permission.list", session_id="ses_none", limit=1) == "session_not_found"
    root = await host.client(identity("root", scopes=(*SCOPES, "configuration.admin")))
    assert len((await root.call("permission.list", session_id=held.session_id, limit=9))["items"]) == 1


async def test_two_writers_answer_at_once(host: Host, served_world: World) -> None:
    """G7: "one success, one `already_resolved`"."""
    held, [request] = await asking(host, served_world, "write")
    other = await (await host.client()).attach(held.session_id)

    async def respond(writer: Held, choice: str) -> str:
        try:
            await writer.call("permission.respond", **answer(request, choice))
        except Refused as refused:
            return refused.code
        return "answered"

    outcomes = await asyncio.gather(respond(held, "approve_once"), respond(other, "deny"))
    assert sorted(outcomes) == ["already_resolved", "answered"]


async def test_a_read_only_client_cannot_answer(host: Host, served_world: World) -> None:
    """G8: "`permission_denied`, stays pending"; 5.5 comes before whether the request is known."""
    held, [request] = await asking(host, served_world, "write")
    reader = await (await host.client()).attach(held.session_id, "read_only")
    for named in (request, "per_none"):
        assert await reader.refusal("permission.respond", **answer(named)) == "permission_denied"
    assert await held.refusal("permission.respond", **answer("per_none")) == "invalid_request"
    assert await in_db(lambda: served_world.session(held.session_id).observed) == "waiting_for_permission"


async def test_an_answer_keeps_its_key(host: Host, served_world: World) -> None:
    held, [request] = await asking(host, served_world, "write")
    wanted = answer(request, "approve_prefix", idempotency_key="k")
    answered = await held.call("permission.respond", **wanted)

    assert await held.call("permission.respond", **wanted) == answered
    changed = {**wanted, "choice": "deny"}
    assert await held.refusal("permission.respond", **changed) == "idempotency_conflict"


async def granted(host: Host, world: World) -> tuple[Held, str]:
    """Make a session in which a tool was allowed for good; its writer and the grant's id."""
    held, [request] = await asking(host, world, "write")
    await held.call("permission.respond", **answer(request, "approve_prefix"))
    listed = await held.peer.call("grant.list", limit=10, session_id=held.session_id)
    return held, listed["items"][0]["id"]


async def test_a_grant_is_listed_and_revoked(host: Host, served_world: World) -> None:
    """G12: "event grant.revoked; grant listed as revoked"; 4.6: "already revoked → `already_resolved`"."""
    held, grant = await granted(host, served_world)
    before = await in_db(served_world.session, held.session_id)
    revoked = await held.call("grant.revoke", grant_id=grant, reason="enough", idempotency_key="k")

    assert (revoked["grant"]["state"], revoked["grant"]["revocation_reason"]) == ("revoked", "enough")
    assert (revoked["revision"], revoked["latest_event_sequence"]) == (
        before.revision + 1,
        before.latest_sequence + 1,
    )
    again = await held.call("grant.revoke", grant_id=grant, reason="enough", idempotency_key="k")
    assert again == revoked
    assert await held.refusal("grant.revoke", grant_id=grant, reason="enough") == "already_resolved"
    assert await held.refusal("grant.revoke", grant_id="grt_none", reason="enough") == "invalid_request"
    listed = await held.peer.call("grant.list", limit=10, state="revoked", principal_id="pri_ann")
    assert listed["items"] == [revoked["grant"]]
    assert await held.peer.call("grant.list", limit=10, state="active") == {"items": []}


async def test_grants_of_sessions_that_are_not_seen_are_left_out(host: Host, served_world: World) -> None:
    """2.6: "session.list and grant.list silently filter"."""
    held, grant = await granted(host, served_world)
    other = await host.client(identity("bob"))
    root = await host.client(identity("root", scopes=(*SCOPES, "configuration.admin")))
    for wanted in ({}, {"session_id": held.session_id}, {"session_id": "ses_none"}):
        assert await other.call("grant.list", wanted, limit=10) == {"items": []}
    assert [one["id"] for one in (await root.call("grant.list", limit=10))["items"]] == [grant]
    await in_db(models.Session.objects.update, archived_at=served_world.clock())
    assert await root.call("grant.list", limit=10) == {"items": []}


@pytest.mark.parametrize(("scope", "seen"), [("security.read", "permission"), ("grant.manage", "grant")])
async def test_only_who_holds_the_scope_is_told(
    host: Host, served_world: World, scope: Scope, seen: str
) -> None:
    """8.7: permission events need security.read, grant events grant.manage; hidden ones keep their sequence."""
    held, [request] = await asking(host, served_world, "write")
    client = await host.client(identity(scopes=(*READER, scope)))
    watcher = await client.attach(held.session_id, "read_only")
    answered = await held.call("permission.respond", **answer(request, "approve_session"))

    events = await client.told(answered["latest_event_sequence"] - watcher.latest)
    kinds = {event["kind"]: event for event in events}
    assert set(kinds) == {"permission.resolved", "session.state_changed", "grant.created"}
    for kind in ("permission.resolved", "grant.created"):
        hidden = not kind.startswith(seen)
        assert (kinds[kind]["payload"] == {}) is hidden
        assert (kinds[kind].get("visibility") == "hidden") is hidden
