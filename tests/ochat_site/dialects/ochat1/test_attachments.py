"""Attaching over the protocol: what is answered, and where the events go on (behaviour 5.2, 8.3, 11.4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sessions_app import models
from sessions_app.commands import operations
from sessions_app.db import in_db
from sessions_app.records import LivenessOwnerBound, Scope
from tests.support.serving import Held, Host, Peer, Refused, identity
from tests.support.waiting import eventually
from tests.support.world import SCOPES, World

OWNED = LivenessOwnerBound(disconnect_grace_ms=60_000, stop_mode="graceful")
READER: tuple[Scope, ...] = ("session.transcript.read",)


async def complete_turn(world: World, held: Held) -> None:
    """Let a worker finish the turn that runs."""

    def work() -> None:
        active = world.session(held.session_id).active_operation_id
        claim = operations.claim(held.session_id, active or "op_none")
        assert claim is not None
        world.finish(claim, "Hi.")

    await in_db(work)


# What is answered


async def test_who_knows_nothing_gets_a_snapshot(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world, start=True)
    replay = held.answer["replay"]

    assert replay["type"] == "snapshot"
    assert replay["snapshot"]["session"]["id"] == held.session_id
    assert replay["snapshot"]["latest_event_sequence"] == held.latest
    assert len(replay["snapshot"]["canonical_history"]["entries"]) == 1


@pytest.mark.parametrize("ahead", [0, 1, 10, 2**62])
async def test_who_knows_everything_gets_no_events(host: Host, served_world: World, ahead: int) -> None:
    held = await (await host.client()).create(served_world, start=True)
    again = await (await host.client()).attach(held.session_id, after_sequence=held.latest + ahead)

    assert again.answer["replay"] == {"type": "events", "events": []}
    assert again.latest == held.latest


async def test_who_knows_a_part_gets_the_rest(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world, start=True)
    await held.say()
    again = await (await host.client()).attach(held.session_id, after_sequence=held.latest)

    assert [event["sequence"] for event in again.answer["replay"]["events"]] == [2, 3, 4]
    assert again.latest == 4


async def test_who_knows_too_little_gets_a_snapshot(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world, start=True)
    await held.say()
    await in_db(models.Session.objects.filter(id=held.session_id).update, oldest_sequence=3)

    late = await (await host.client()).attach(held.session_id, after_sequence=1)
    just = await (await host.client()).attach(held.session_id, after_sequence=2)

    assert late.answer["replay"]["type"] == "snapshot"
    assert [event["sequence"] for event in just.answer["replay"]["events"]] == [3, 4]


async def test_what_may_not_be_seen_is_hidden_in_answer_and_push(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world, start=True)
    reader = await host.client(identity(scopes=READER))
    seen = await reader.attach(held.session_id, "read_only", after_sequence=0)
    await held.say()

    assert {event["visibility"] for event in seen.answer["replay"]["events"]} == {"redacted"}
    assert {event["visibility"] for event in await reader.told(3)} == {"redacted"}
    assert all("visibility" not in event for event in await held.peer.told(3))


# Where the events go on


async def test_events_go_on_behind_the_answer(host: Host, served_world: World) -> None:
    """Whoever attaches while others send sees every event once: in the answer or behind it."""
    writer = await (await host.client()).create(served_world, start=True)
    peers = [await host.client() for _ in range(4)]

    async def come_late(peer: Peer, turns: int) -> list[int]:
        for _ in range(turns):
            await asyncio.sleep(0)
        held = await peer.attach(writer.session_id, after_sequence=0)
        answered = [event["sequence"] for event in held.answer["replay"]["events"]]
        await eventually(lambda: peer.sequences() and peer.sequences()[-1] == 12, "the last event")
        return [*answered, *peer.sequences()]

    comers = [
        asyncio.create_task(come_late(peer, turns))
        for peer, turns in zip(peers, (0, 5, 50, 500), strict=True)
    ]
    for _ in range(9):
        await writer.say()

    for seen in await asyncio.gather(*comers):
        assert seen == list(range(1, 13))


async def test_who_does_not_subscribe_is_told_nothing(host: Host, served_world: World) -> None:
    writer = await (await host.client()).create(served_world, start=True)
    silent = await (await host.client()).attach(writer.session_id, subscribe=False)

    await silent.say()
    await writer.peer.told(3)

    assert silent.peer.sequences() == []
    assert silent.attachment_id not in silent.peer.connection.attachments


async def test_a_small_event_size_ends_the_subscription(host: Host, served_world: World) -> None:
    writer = await (await host.client()).create(served_world, start=True)
    small = await host.connect()
    await small.initialize(max_inbound_event_bytes=64)
    await small.attach(writer.session_id)

    await writer.say()

    await eventually(lambda: small.connection.is_closing, "the end of a client that can be told nothing")


async def test_a_detached_client_is_told_nothing_more(host: Host, served_world: World) -> None:
    writer = await (await host.client()).create(served_world, start=True)
    other = await (await host.client()).attach(writer.session_id)

    left = await other.call("session.detach")
    await writer.say()
    await writer.peer.told(3)

    assert left == {"revision": 4, "latest_event_sequence": 1}
    assert other.peer.sequences() == []
    assert await other.refusal("session.send_message", text="hello") == "permission_denied"


async def test_detaching_twice_is_for_the_same_key_alone(host: Host, served_world: World) -> None:
    """Behaviour 5.4."""
    held = await (await host.client()).create(served_world)

    first = await held.call("session.detach", idempotency_key="k")
    assert await held.call("session.detach", idempotency_key="k") == first
    assert await held.refusal("session.detach") == "permission_denied"


async def test_an_attachment_is_of_its_connection_alone(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world, start=True)
    other = await host.client()

    assert await other.refusal("session.send_message", **held.params(text="x")) == "permission_denied"
    assert await other.refusal("session.detach", **held.params()) == "permission_denied"


async def test_a_lost_connection_detaches_everything(host: Host, served_world: World) -> None:
    client = await host.client()
    held = await client.create(served_world)
    await client.attach(held.session_id, "read_only", subscribe=False)

    client.connection.lost()
    await client.connection.wait_closed()

    assert await in_db(models.Attachment.objects.count) == 0


# Replayed receipts


async def test_a_repeated_attach_on_its_connection_starts_anew(host: Host, served_world: World) -> None:
    writer = await (await host.client()).create(served_world, start=True)
    peer = await host.client()
    first = await peer.attach(writer.session_id, idempotency_key="k")
    await writer.say()
    await peer.told(3)

    second = await peer.attach(writer.session_id, idempotency_key="k")
    await complete_turn(served_world, writer)
    await eventually(lambda: peer.sequences()[-1:] == [8], "the end of the turn")

    assert second.attachment_id == first.attachment_id
    assert second.answer["replay"]["type"] == "snapshot"
    assert second.latest == 4
    assert peer.sequences() == [2, 3, 4, 5, 6, 7, 8]


async def test_a_repeated_attach_elsewhere_registers_nothing(host: Host, served_world: World) -> None:
    """Behaviour 11.4: the attachment only works on its own connection."""
    writer = await (await host.client()).create(served_world, start=True)
    first = await (await host.client()).attach(writer.session_id, idempotency_key="k")
    elsewhere = await (await host.client()).attach(writer.session_id, idempotency_key="k")

    assert elsewhere.attachment_id == first.attachment_id
    assert elsewhere.peer.connection.attachments == {}
    assert await elsewhere.refusal("session.send_message", text="x") == "permission_denied"
    await writer.say()
    await first.peer.told(3)
    assert elsewhere.peer.sequences() == []


async def test_a_repeated_attach_after_detaching_registers_nothing(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world)
    again = await held.peer.attach(held.session_id, idempotency_key="k")
    await again.call("session.detach")

    once_more = await held.peer.attach(held.session_id, idempotency_key="k")

    assert once_more.attachment_id == again.attachment_id
    assert set(held.peer.connection.attachments) == {held.attachment_id}


async def test_a_repeated_attach_shows_what_may_be_seen_now(host: Host, served_world: World) -> None:
    writer = await (await host.client()).create(served_world, start=True)
    await writer.say()
    peer = await host.client()
    await peer.attach(writer.session_id, "read_only", idempotency_key="k", after_sequence=1)

    less = await host.client(identity(scopes=READER))
    again = await less.attach(writer.session_id, "read_only", idempotency_key="k", after_sequence=1)

    assert {event["visibility"] for event in again.answer["replay"]["events"]} == {"redacted"}


async def test_a_session_that_is_gone_answers_so_to_attach_alone(host: Host, served_world: World) -> None:
    client = await host.client()
    wanted = {"spec": await in_db(served_world.spec), "requested_mode": "read_write", "subscribe": True}
    made = await client.call("session.create", wanted, idempotency_key="c")
    session_id = made["session"]["id"]
    await client.attach(session_id, idempotency_key="a")
    await in_db(models.Session.objects.filter(id=session_id).update, archived_at=served_world.clock())

    with pytest.raises(Refused) as refused:
        await client.attach(session_id, idempotency_key="a")
    assert refused.value.code == "session_not_found"
    again = await client.call("session.create", wanted, idempotency_key="c")
    assert again == {name: value for name, value in made.items() if name != "attachment"}


async def test_a_session_that_is_hidden_by_now_answers_so(host: Host, served_world: World) -> None:
    admin = await host.client(identity("root", scopes=(*SCOPES, "configuration.admin")))
    held = await (await host.client()).create(served_world)
    await admin.attach(held.session_id, "read_only", idempotency_key="a")

    demoted = await host.client(identity("root"))
    with pytest.raises(Refused) as refused:
        await demoted.attach(held.session_id, "read_only", idempotency_key="a")
    assert refused.value.code == "permission_denied"


# Owner leases


async def owner(peer: Peer, session_id: str, **more: Any) -> Held:
    """Attach as the owner, always under the same key."""
    return await peer.attach(session_id, "owner_read_write", **{"idempotency_key": "own", **more})


async def owned(host: Host, world: World) -> Held:
    """Make a session that has an owner."""
    held = await (await host.client()).create(world, "read_only", liveness=OWNED)
    return await owner(held.peer, held.session_id)


async def test_an_owner_gets_a_token_and_a_lease(host: Host, served_world: World) -> None:
    held = await owned(host, served_world)

    assert held.answer["attachment"]["owner_lease"]["generation"] == 1
    assert len(held.answer["reclaim_token"]) == 64


async def test_others_get_no_token(host: Host, served_world: World) -> None:
    client = await host.client()
    bound = await client.create(served_world, liveness=OWNED)
    detached = await client.create(served_world, "owner_read_write")

    assert "reclaim_token" not in bound.answer
    assert "reclaim_token" not in detached.answer
    assert "owner_lease" not in detached.answer["attachment"]


async def test_a_repeated_attach_gives_the_token_while_it_is_in_force(
    host: Host, served_world: World
) -> None:
    held = await owned(host, served_world)
    token = held.answer["reclaim_token"]
    assert (await owner(held.peer, held.session_id)).answer["reclaim_token"] == token

    held.peer.connection.lost()
    await held.peer.connection.wait_closed()
    again = await owner(await host.client(), held.session_id)
    assert again.answer["reclaim_token"] == token

    taken_over = await owner(await host.client(), held.session_id, reclaim_token=token, idempotency_key="new")
    assert taken_over.answer["reclaim_token"] != token
    late = await owner(await host.client(), held.session_id)
    assert "reclaim_token" not in late.answer
