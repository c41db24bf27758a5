"""kill -9 of each child of `up`, and of all of them: nothing acknowledged is lost, nothing is stuck, nobody restarts by hand.

What a worker does when it dies between two of its steps is tested where its steps are; here the whole system is seen from
outside, and only `up` starts anything again.
"""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from ochat_client import Backoff, Client, ConnectionRefused, Durable, Lost, ReconnectingSession, Restored
from sessions_app.db import in_db
from sessions_app.events import DurableEvent
from sessions_app.models import Operation, ToolCall
from tests.conformance.fixture import ADMIN, CODING, Person
from tests.conformance.peers import Hold, Peer, answered, history, shown, spec
from tests.e2e.installed import CHILDREN, InstalledDoor

pytestmark = pytest.mark.timeout(300)

STALL_SECONDS = 600.0
"""A model that falls silent for longer than any test lasts."""


async def _back(door: InstalledDoor, person: Person = ADMIN) -> Peer:
    """Connect as soon as somebody answers."""

    async def attempt() -> Peer | None:
        try:
            return await door.peer(person)
        except ConnectionRefused:
            return None

    peer = await answered(attempt, "the server answers again")
    assert peer is not None
    return peer


def _saved(session_id: str, text: bytes) -> bool:
    found = Operation.objects.filter(session=session_id).values_list("streamed", flat=True)
    return any(text in bytes(streamed or b"") for streamed in found)


async def _stalled_turn(door: InstalledDoor, hold: Hold, text: str = "first second third") -> None:
    """Say something, and let the model fall silent in the middle of its answer, once that is saved."""
    door.mock.reply(text).stall(after_chunks=9, seconds=STALL_SECONDS)
    await hold.say("go")
    await hold.until_text("first")
    await answered(lambda: in_db(_saved, hold.session_id, b"first"), "what was streamed is saved")


async def _works(door: InstalledDoor, hold: Hold, *deferred: str) -> None:
    """Let another turn run, and check that its model was asked with well-formed input and every text that was said."""
    door.mock.reset().reply("All is well.")
    await hold.say("again")
    assert (await hold.until_ended()).kind == "operation.completed"
    now = await hold.snapshot()
    assert history(now)[-1] == "assistant: All is well."
    assert history(now)[-2 - len(deferred) : -1] == [*(f"user: {text}" for text in deferred), "user: again"]
    assert not now.deferred_entries
    door.mock.assert_resilient(strict=True)


async def test_the_worker_in_a_turn(door: InstalledDoor) -> None:
    """The turn ends as interrupted with what was streamed; what was deferred waits; the next turn works."""
    hold = await (await door.peer()).create(CODING, start=True)
    await _stalled_turn(door, hold)
    deferred = await hold.say("and this")
    assert deferred.disposition == "deferred"

    killed = door.installed.kill("worker")
    ended = await hold.until_ended()

    assert ended.kind == "operation.interrupted"
    assert msgspec.json.decode(ended.payload)["state"]["reason"] == "worker_lost"
    now = await hold.snapshot()
    assert history(now)[1] == "user: go"
    assert history(now)[2].startswith("assistant: first")
    assert history(now)[2].endswith("…")
    assert now.session.observed_state.__struct_config__.tag == "idle"
    assert [shown(entry) for entry in now.deferred_entries] == ["user: and this"]
    assert len(door.mock.requests) == 1
    door.installed.await_replaced(killed)
    await _works(door, hold, "and this")


@pytest.mark.long
async def test_the_web_process_in_a_turn(door: InstalledDoor) -> None:
    """The turn goes on; a client that reconnects by itself misses nothing, and its calls get through."""
    made = await (await door.peer()).client.create_session(spec(CODING, start=True))

    async def dial() -> Client:
        return (await door.peer()).client

    backoff = Backoff(first=0.05, limit=1.0)
    async with await ReconnectingSession.open(dial, made.session.id, backoff=backoff) as session:
        door.mock.reply("first second third fourth").pace(150)
        await session.send_message("go")
        seen: list[DurableEvent] = []
        lost = restored = 0
        killed: dict[str, int] = {}
        async for update in session:
            if isinstance(update, Lost):
                lost += 1
            elif isinstance(update, Restored):
                restored += 1
            elif isinstance(update, Durable):
                seen.append(update.event)
                if update.event.kind == "session.updated":
                    killed = door.installed.kill("serve")
                if update.event.kind == "operation.completed":
                    break
        assert lost >= 1
        assert restored >= 1
        sequences = [event.sequence for event in seen]
        assert sequences == [*range(sequences[0], sequences[0] + len(sequences))]
        door.mock.pace(0)
        await session.send_message("again")
        async for _ in session:
            if history(session.projection.snapshot())[-2:-1] == ["user: again"]:
                break
        assert history(session.projection.snapshot())[1:3] == [
            "user: go",
            "assistant: first second third fourth",
        ]
    door.installed.await_replaced(killed)


@pytest.mark.long
async def test_valkey_in_a_turn(door: InstalledDoor) -> None:
    """It carries only hints: the turn completes, and what is said while it is away runs as well."""
    hold = await (await door.peer()).create(CODING, start=True)
    door.mock.reply("first second third fourth").pace(150)
    await hold.say("go")
    await hold.until_text("first")

    killed = door.installed.kill("valkey-server")
    assert (await hold.until_ended()).kind == "operation.completed"
    assert history(await hold.snapshot())[2] == "assistant: first second third fourth"
    door.mock.pace(0)
    await _works(door, hold)
    door.installed.await_replaced(killed)
    await _works(door, hold)


@pytest.mark.long
@pytest.mark.parametrize("victims", [CHILDREN, ("worker",), ("serve",)], ids=["all", "worker", "serve"])
async def test_while_a_request_waits(door: InstalledDoor, victims: tuple[str, ...]) -> None:
    """The request is still there and can be answered; its tool runs once."""
    peer = await door.peer()
    hold = await peer.create("patient", start=True)
    door.mock.call_tool("clock", text="I look.").reply("It is late.")
    await hold.say("What time is it?")
    asked = await hold.until_asked()
    before = (await hold.snapshot()).latest_event_sequence

    door.installed.await_replaced(door.installed.kill(*victims))
    again = await (await _back(door)).attach(hold.session_id)
    waiting = await again.snapshot()
    assert [request.id for request in again.view.pending_permissions] == [asked.id]
    assert waiting.session.observed_state.__struct_config__.tag == "waiting_for_permission"
    assert waiting.latest_event_sequence == before
    assert (await again.say("while it waits")).disposition == "deferred"

    await again.answer(asked, "approve_once")
    await again.until(lambda: again.kinds.count("operation.completed") == 1)
    now = await again.snapshot()
    outputs = [entry for entry in now.canonical_history.entries if entry.kind == "tool_output"]
    assert len(outputs) == 1
    assert await in_db(_calls, hold.session_id) == [("done", True)]
    assert again.view.permissions[asked.id].state == "approved"
    assert "user: while it waits" in history(now)
    await again.until(lambda: again.view.session.observed_state.__struct_config__.tag == "idle")
    await _works(door, again)


def _calls(session_id: str) -> list[tuple[str, bool]]:
    return list(ToolCall.objects.filter(session=session_id).values_list("state", "committed"))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_killed_whenever(door: InstalledDoor, seed: int) -> None:
    """Clients that say things, while somebody kills children at random: all that was acknowledged is in history once."""
    dice = random.Random(seed)
    door.mock.pace(20)
    made = [(await (await door.peer()).client.create_session(spec(CODING, start=True))) for _ in range(3)]
    sessions = [one.session.id for one in made]

    async def dial() -> Client:
        return (await door.peer()).client

    async def talk(session: ReconnectingSession) -> list[str]:
        acknowledged = []
        async with session:
            reading = asyncio.ensure_future(_read(session))
            for _ in range(12):
                acknowledged.append((await session.send_message("word " * 5)).history_id)
                # A person's pace, or nothing would be left to say when the first child dies.
                await asyncio.wait([reading], timeout=0.2)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return acknowledged

    backoff = Backoff(first=0.05, limit=1.0)
    opened = [await ReconnectingSession.open(dial, id, backoff=backoff) for id in sessions]
    talking = asyncio.gather(*map(talk, opened))
    while not talking.done():
        door.installed.await_replaced(door.installed.kill(*dice.sample(CHILDREN, dice.randint(1, 3))))
        await asyncio.wait([talking], timeout=dice.uniform(1, 4))
    said = await talking

    door.mock.pace(0)
    peer = await _back(door)
    for session_id, acknowledged in zip(sessions, said, strict=True):
        hold = await peer.attach(session_id)
        await _until_idle(hold)
        await hold.say("and the rest")
        await _until_idle(hold)
        entries = (await hold.snapshot()).canonical_history.entries
        of_users = [entry.id for entry in entries if entry.role == "user"]
        assert of_users[:-1] == acknowledged
        assert not (await hold.snapshot()).deferred_entries


async def _read(session: ReconnectingSession) -> None:
    async for _ in session:
        pass


async def _until_idle(hold: Hold) -> None:
    async def is_idle() -> bool:
        session = (await hold.snapshot()).session
        return session.observed_state.__struct_config__.tag == "idle"

    await answered(is_idle, "nothing runs any more", seconds=120)
