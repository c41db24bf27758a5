"""Sessions over the protocol: made, listed, read, started, spoken to, stopped (behaviour 4, 6, 11, 12)."""

from __future__ import annotations

from typing import Any

import pytest

from ochat_site.dialects.ochat1 import codec
from ochat_site.dialects.ochat1.types import SessionStopParams
from ochat_site.rpc.dispatch import fingerprint
from sessions_app import models, processes, receipts
from sessions_app.callers import EVERYTHING, Attached, Caller
from sessions_app.commands.messages import Changed
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.receipts import Call
from sessions_app.records import PromptRefLocalPath, WorkspaceRequestCurrent
from tests.support.serving import Host, Refused, identity
from tests.support.world import SCOPES, World


async def test_a_client_makes_a_session_attaches_and_sends(host: Host, served_world: World) -> None:
    client = await host.client()
    spec = await in_db(served_world.spec, start=True)

    made = await client.call("session.create", spec=spec, subscribe=False)
    held = await client.attach(made["session"]["id"])
    sent = await held.say("hello")

    assert "attachment" not in made
    assert (made["revision"], made["latest_event_sequence"]) == (1, 1)
    assert sent["disposition"] == "started"
    kinds = [event["kind"] for event in await client.told(3)]
    assert kinds == ["history.appended", "operation.started", "session.state_changed"]
    assert client.sequences() == [held.latest + 1, held.latest + 2, sent["latest_event_sequence"]]


async def test_a_session_made_with_an_attachment_ends_as_its_summary_says(
    host: Host, served_world: World
) -> None:
    """Behaviour 4.2, step 8."""
    client = await host.client()
    spec = await in_db(served_world.spec)
    made = await client.call("session.create", spec=spec, requested_mode="read_write", subscribe=True)

    assert (made["revision"], made["latest_event_sequence"]) == (2, 1)
    assert made["session"]["revision"] == 2
    assert made["attachment"]["replay"]["snapshot"]["session"] == made["session"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"prompt": PromptRefLocalPath(path="/x")}, "prompt_unavailable"),
        ({"workspace": WorkspaceRequestCurrent()}, "workspace_unavailable"),
    ],
)
async def test_a_refused_session_leaves_nothing(
    host: Host, served_world: World, changed: dict[str, Any], code: str
) -> None:
    spec = {**_members(await in_db(served_world.spec)), **changed}

    assert await (await host.client()).refusal("session.create", spec=spec, subscribe=False) == code
    assert await in_db(models.Session.objects.count) == 0


def _members(struct: Any) -> dict[str, Any]:
    return {
        name: getattr(struct, name)
        for name in struct.__struct_fields__
        if name not in ("permission_profile", "display_name")
    }


# Lists and reads


async def test_everybody_lists_what_they_may_see(host: Host, served_world: World) -> None:
    ann, bob = await host.client(identity("ann")), await host.client(identity("bob"))
    root = await host.client(identity("root", scopes=(*SCOPES, "configuration.admin")))
    anns = [(await ann.create(served_world, labels={"n": str(n)})).session_id for n in range(3)]
    bobs = [(await bob.create(served_world, start=True)).session_id]

    async def listed(client: Any, **params: Any) -> list[str]:
        page = await client.call("session.list", limit=100, **params)
        return [session["id"] for session in page["items"]]

    assert await listed(ann) == sorted(anns)
    assert await listed(bob) == bobs
    assert await listed(root) == sorted([*anns, *bobs])
    assert await listed(root, owner_principal_id="pri_bob") == bobs
    assert await listed(root, desired_state="running") == bobs
    assert await listed(ann, labels={"n": "1"}) == [anns[1]]
    assert await listed(ann, labels={"n": "1", "m": "1"}) == []


async def test_a_list_goes_on_behind_its_last_id(host: Host, served_world: World) -> None:
    client = await host.client()
    made = sorted([(await client.create(served_world)).session_id for _ in range(5)])

    first = await client.call("session.list", limit=2)
    await in_db(models.Session.objects.filter(id=made[2]).update, archived_at=served_world.clock())
    second = await client.call("session.list", limit=2, cursor=first["next_cursor"])

    assert [session["id"] for session in (*first["items"], *second["items"])] == [*made[:2], *made[3:]]
    assert "next_cursor" not in second


async def test_who_may_not_see_a_session_is_told_so(host: Host, served_world: World) -> None:
    """Behaviour 2.6: that it exists is shown."""
    held = await (await host.client()).create(served_world)
    other = await host.client(identity("bob"))

    assert await other.refusal("session.get", session_id=held.session_id) == "permission_denied"
    assert await other.refusal("session.get", session_id="ses_none") == "session_not_found"
    attach = {"requested_mode": "read_only", "subscribe": False}
    assert await other.refusal("session.attach", session_id=held.session_id, **attach) == "permission_denied"
    assert await other.refusal("session.attach", session_id="ses_none", **attach) == "session_not_found"


async def test_history_is_read_in_windows(host: Host, served_world: World) -> None:
    """Behaviour 12.3."""
    client = await host.client()
    held = await client.create(served_world, start=True)

    def grow() -> None:
        for number in range(4):
            owner = served_world.attach(held.session_id)
            served_world.finish(served_world.turn(owner, f"question {number}"), f"answer {number}")

    await in_db(grow)
    whole = await client.call("session.get", session_id=held.session_id)
    ids = [entry["id"] for entry in whole["canonical_history"]["entries"]]

    async def window(**request: Any) -> Any:
        history = {"limit": 3, "effective": False, **request}
        return (await client.call("session.get", session_id=held.session_id, history=history))[
            "canonical_history"
        ]

    def shown(found: Any) -> list[int]:
        return [ids.index(entry["id"]) for entry in found["entries"]]

    assert len(ids) == 9
    assert whole["canonical_history"]["structurally_complete"]
    tail = await window(position="tail", tail_count=50)
    before = await window(position="cursor", window_cursor=tail["previous_cursor"])
    first = await window(position="cursor", window_cursor=before["previous_cursor"])
    again = await window(position="cursor", window_cursor=before["next_cursor"])
    assert [shown(tail), shown(before), shown(first), shown(again)] == [
        [6, 7, 8],
        [3, 4, 5],
        [0, 1, 2],
        [6, 7, 8],
    ]
    assert (tail["reached_end"], first["reached_start"]) == (True, True)
    assert "previous_cursor" not in first
    assert shown(await window(position="after", history_id=ids[0])) == [1, 2, 3]
    assert shown(await window(position="before", history_id=ids[2])) == [0, 1]


async def test_window_cursors_are_for_their_reader_and_limit(host: Host, served_world: World) -> None:
    client, other = await host.client(), await host.client(identity(zone="1"))
    held = await client.create(served_world, start=True)
    await held.say()

    async def refused(by: Any, cursor: str, **changed: Any) -> str:
        history = {"position": "cursor", "window_cursor": cursor, "limit": 1, "effective": False, **changed}
        code: str = await by.refusal("session.get", session_id=held.session_id, history=history)
        return code

    tail = {"position": "tail", "tail_count": 1, "limit": 1, "effective": False}
    got = await client.call("session.get", session_id=held.session_id, history=tail)
    cursor = got["canonical_history"]["previous_cursor"]
    assert await refused(other, cursor) == "invalid_request"
    assert await refused(client, cursor, limit=2) == "invalid_request"
    assert await refused(client, cursor, effective=True) == "invalid_request"
    assert await refused(client, "forged") == "invalid_request"


async def test_an_unknown_anchor_is_refused(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world)
    anchor = f"{len(held.session_id)}:{held.session_id}:99"
    history = {"position": "after", "history_id": anchor, "limit": 1, "effective": False}

    code = await held.peer.refusal("session.get", session_id=held.session_id, history=history)
    assert code == "invalid_request"


async def test_the_effective_view_leaves_the_canonical_list_empty(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world)
    history = {"position": "tail", "tail_count": 9, "limit": 9, "effective": True}
    got = await held.peer.call("session.get", session_id=held.session_id, history=history)

    assert len(got["effective_history"]["entries"]) == 1
    assert got["canonical_history"] == {
        "entries": [],
        "reached_start": False,
        "reached_end": False,
        "structurally_complete": False,
    }


# Lives


async def test_a_session_starts_and_stops(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world)

    started = await held.call("session.start", queue_if_limited=False)
    again = await held.call("session.start", queue_if_limited=False)
    stopped = await held.call("session.stop", mode="graceful")

    assert started["session"]["observed_state"] == {"type": "idle"}
    assert again == started
    assert stopped["session"]["observed_state"] == {"type": "stopped"}
    states = [event["payload"]["observed_state"]["type"] for event in await held.peer.told(3)]
    assert states == ["starting", "idle", "stopped"]


async def test_messages_start_turns_or_wait(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world)

    with pytest.raises(Refused) as refused:
        await held.say()
    assert (refused.value.code, refused.value.retryable) == ("invalid_state", True)
    await held.call("session.start", queue_if_limited=False)
    first, second = await held.say("one"), await held.say("two")
    assert (first["disposition"], second["disposition"]) == ("started", "deferred")
    assert "operation_id" not in second


async def test_the_text_of_a_message_has_two_forms(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world, start=True)
    content = {"kind": "plain_text", "text": "hello", "attachments": []}

    short = await held.say("hello", idempotency_key="k")
    assert await held.call("session.send_message", content=content, idempotency_key="k") == short


async def test_an_operation_is_cancelled_by_its_name(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world, start=True)
    operation_id = (await held.say())["operation_id"]

    assert await held.refusal("session.cancel_operation", operation_id="op_other") == "conflict"
    cancelled = await held.call("session.cancel_operation", operation_id=operation_id)
    assert "active_operation" not in cancelled["session"]
    code = await held.refusal("session.cancel_operation", operation_id=operation_id)
    assert code == "operation_not_found"


async def test_a_read_only_attachment_changes_nothing(host: Host, served_world: World) -> None:
    writer = await (await host.client()).create(served_world, start=True)
    reader = await (await host.client()).attach(writer.session_id, "read_only")

    assert await reader.refusal("session.send_message", text="x") == "permission_denied"
    assert await reader.refusal("session.stop", mode="cancel") == "permission_denied"
    assert await reader.refusal("session.start", queue_if_limited=True) == "permission_denied"
    assert await reader.refusal("session.cancel_operation", operation_id="op_x") == "permission_denied"


# Idempotency


async def test_a_key_has_one_outcome(host: Host, served_world: World) -> None:
    """Behaviour 11."""
    held = await (await host.client()).create(served_world, start=True)

    first = await held.say("hello", idempotency_key="k")
    assert await held.say("hello", idempotency_key="k") == first
    with pytest.raises(Refused, match="idempotency_conflict"):
        await held.say("other", idempotency_key="k")
    code = await held.refusal("session.cancel_operation", operation_id="op_other", idempotency_key="c")
    await held.call("session.cancel_operation", operation_id=first["operation_id"])
    again = await held.refusal("session.cancel_operation", operation_id="op_other", idempotency_key="c")
    assert code == again == "conflict"


async def test_another_attachment_is_another_request(host: Host, served_world: World) -> None:
    """Behaviour 11.2."""
    held = await (await host.client()).create(served_world, start=True)
    await held.say("hello", idempotency_key="k")
    other = await held.peer.attach(held.session_id)

    assert (
        await other.refusal("session.send_message", text="hello", idempotency_key="k")
        == "idempotency_conflict"
    )


async def test_what_was_settled_is_replayed_while_draining(host: Host, served_world: World) -> None:
    """Behaviour 1.1: the receipt is step 6, draining step 7, the writer step 8."""
    held = await (await host.client()).create(served_world, start=True)
    spec = await in_db(served_world.spec)
    sent = await held.say("hello", idempotency_key="k")
    host.server.draining = True

    assert await held.say("hello", idempotency_key="k") == sent
    for code in (
        await held.refusal("session.send_message", text="more"),
        await held.refusal("session.send_message", text="more", attachment_id="att_foreign"),
        await held.refusal("session.start", queue_if_limited=True),
        await held.peer.refusal("session.create", spec=spec, subscribe=False),
    ):
        assert code == "server_shutting_down"
    # What ends work is no new work, and a refusal for want of the process is not kept.
    await held.call("session.cancel_operation", operation_id=sent["operation_id"])
    host.server.draining = False
    assert (await held.say("more", idempotency_key="later"))["disposition"] == "started"


async def test_a_duplicate_waits_for_the_outcome(host: Host, served_world: World) -> None:
    """Behaviour 11.3."""
    held = await (await host.client()).create(served_world, start=True)
    params = held.params(mode="graceful", idempotency_key="k")
    call = _keyed(held.peer.connection.connection_id, params)
    await in_db(receipts.open_pending, call, held.session_id)

    id = held.peer.send("session.stop", params)
    other = await (await host.client()).attach(held.session_id)
    assert (await other.say())["disposition"] == "started"
    assert not held.peer.has_answer(id)

    session = (await other.peer.call("session.list", limit=1))["items"][0]
    outcome = codec.decode(encode({"session": session, "revision": 9, "latest_event_sequence": 9}), Changed)
    await in_db(receipts.settle_pending, call, held.session_id, outcome)
    assert (await held.peer.answered("session.stop", id))["revision"] == 9


async def test_a_duplicate_does_not_wait_for_the_dead(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world, start=True)
    params = held.params(mode="graceful", idempotency_key="k")
    await in_db(receipts.open_pending, _keyed(held.peer.connection.connection_id, params), held.session_id)

    id = held.peer.send("session.stop", params)
    died = processes.current_id()
    await in_db(served_world.new_process, "web")
    await in_db(served_world.let_die, died)

    with pytest.raises(Refused) as refused:
        await held.peer.answered("session.stop", id)
    assert (refused.value.code, refused.value.retryable) == ("interrupted", False)


def _keyed(connection_id: str, params: dict[str, Any]) -> Call:
    decoded = codec.decode(encode(params), SessionStopParams)
    access = Attached(connection_id, decoded.attachment_id)
    caller = Caller("pri_ann", frozenset(), EVERYTHING, access)
    return Call(caller, "session.stop", decoded.idempotency_key, fingerprint(decoded))


# The audit trail


async def test_every_command_leaves_one_record(host: Host, served_world: World) -> None:
    """Behaviour 15."""
    held = await (await host.client()).create(served_world, start=True)
    await held.say("hello", idempotency_key="k")
    await held.say("hello", idempotency_key="k")
    await held.refusal("session.send_message", text=" x", attachment_id="att_none")
    host.server.draining = True
    await held.refusal("session.send_message", text="more")
    await held.peer.call("session.get", session_id=held.session_id)

    succeeded, failed = "protocol.command.succeeded", "protocol.command.failed"
    assert sorted(await host.audited()) == sorted(
        [
            (succeeded, "protocol.initialize", "success"),
            (succeeded, "session.create", "success"),
            (succeeded, "session.send_message", "success"),
            (succeeded, "session.send_message", "success"),
            (failed, "session.send_message", "permission_denied"),
            (failed, "session.send_message", "server_shutting_down"),
            (succeeded, "session.get", "success"),
        ]
    )
