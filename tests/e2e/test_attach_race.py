"""Attaching while the last event of a turn is committed: the answer is always there, in the snapshot or behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sessions_app.commands import operations
from sessions_app.db import in_db
from tests.conformance.fixture import READER
from tests.conformance.peers import Hold, history
from tests.conformance.sites import SocketSite
from tests.support.model_scripts import Reply, Text
from tests.support.serving import Held, Host, Peer
from tests.support.waiting import eventually
from tests.support.world import World


def _finish(world: World, session_id: str, text: str) -> None:
    claim = operations.claim(session_id, world.session(session_id).active_operation_id or "op_none")
    assert claim is not None
    world.finish(claim, text)


async def _attach_during_the_end(host: Host, world: World, writer: Held, peer: Peer, number: int) -> Held:
    """Let a turn end while `peer` attaches, each let go a little later than the other from time to time."""

    async def end() -> None:
        for _ in range(number % 7):
            await asyncio.sleep(0)
        await in_db(_finish, world, writer.session_id, f"answer {number}.")

    async def come() -> Held:
        for _ in range(number % 5 * 40):
            await asyncio.sleep(0)
        return await peer.attach(writer.session_id)

    await writer.say(f"question {number}")
    _, held = await asyncio.gather(end(), come())
    return held


def _texts(entries: Any) -> list[str]:
    return [str(entry["payload"]) for entry in entries]


TURNS = 8
"""Of one session, then another: snapshots that are checked to the last member should stay short."""


async def _rounds(host: Host, world: World, count: int) -> None:
    client, peer = await host.client(), await host.client()
    writer = await client.create(world, start=True)
    for number in range(count):
        if number % TURNS == TURNS - 1:
            await writer.call("session.detach")
            writer = await client.create(world, start=True)
        told = len(peer.sequences())
        held = await _attach_during_the_end(host, world, writer, peer, number)
        latest = (await in_db(world.session, writer.session_id)).latest_sequence
        await eventually(lambda: held.latest + len(peer.sequences()) - told >= latest, "the last event")  # noqa: B023

        snapshot = held.answer["replay"]["snapshot"]
        events = [notification["params"] for notification in peer.notifications[told:]]
        assert [event["sequence"] for event in events] == [*range(held.latest + 1, latest + 1)]
        appended = [
            entry for event in events if event["kind"] == "history.appended" for entry in event["payload"]
        ]
        shown = _texts([*snapshot["canonical_history"]["entries"], *appended])
        assert len([text for text in shown if f"answer {number}." in text]) == 1
        states = [event["payload"] for event in events if event["kind"] == "session.state_changed"]
        observed = states[-1]["observed_state"] if states else snapshot["session"]["observed_state"]
        assert observed == {"type": "idle"}
        await held.call("session.detach")


async def test_the_answer_is_always_there(host: Host, served_world: World) -> None:
    await _rounds(host, served_world, 60)


@pytest.mark.long
@pytest.mark.timeout(1200)
async def test_the_answer_is_always_there_a_thousand_times(host: Host, served_world: World) -> None:
    await _rounds(host, served_world, 1000)


@pytest.mark.parametrize("rounds", [8, pytest.param(50, marks=pytest.mark.long)])
async def test_over_sockets(socket_site: SocketSite, rounds: int) -> None:
    """A second client attaches as soon as the first has heard the last word, which is when the end is being committed."""
    creator = await socket_site.peer()
    comers = [await socket_site.peer(), await socket_site.peer(READER)]
    writer = await creator.create(start=True)
    for number in range(rounds):
        if number % TURNS == TURNS - 1:
            await writer.detach()
            writer = await creator.create(start=True)
        answer = f"answer {number}."
        socket_site.model.answer(Reply(Text(answer)))
        await writer.say(f"question {number}")
        await writer.until_text(answer)
        holds = await asyncio.gather(*(comer.attach(writer.session_id, "read_only") for comer in comers))
        for hold in holds:
            await _until_idle(hold)
            said = history(hold.view.snapshot())
            assert said[-1] == f"assistant: {answer}"
            assert said.count(f"assistant: {answer}") == 1
            await hold.detach()
        await _until_idle(writer)


async def _until_idle(hold: Hold) -> None:
    await hold.until(lambda: hold.view.session.observed_state.__struct_config__.tag == "idle")
