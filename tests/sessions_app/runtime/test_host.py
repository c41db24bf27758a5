"""The turns of one process: how they get there, how many run, how they are stopped (design 4, behaviour 14.3, 14.4)."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from jobs_app import sweep
from sessions_app.commands import operations
from sessions_app.db import in_db
from sessions_app.models import Operation, Process, PromptRevision, Session
from tests.support.scripts import Gate, Say, Use
from tests.support.turns import Turns
from tests.support.waiting import eventually
from tests.support.world import Client


async def story(turns: Turns, client: Client) -> list[str]:
    """Return the whole log of a session."""
    return [event for revision in await in_db(turns.world.story, client) for event in revision]


# Getting work


async def test_a_full_host_takes_the_next_when_a_turn_ends(turns: Turns) -> None:
    """Design 5: "A full one leaves the row unclaimed, and the process looks again when a slot frees"."""
    turns.host = turns.new_host(max_turns=1)
    first, second = await turns.session(), await turns.session()
    turns.model.will(Say("One", Gate("here"), "."))
    await turns.send(first)
    await turns.gates.reached("here")
    sent = await turns.send(second)
    for _ in range(3):
        turns.submitted(sent.operation_id or "")
    assert (await turns.operation(second)).attempt == 0
    turns.gates.open("here")
    await turns.idle(second)
    assert len(turns.model.requests) == 2


async def test_an_operation_told_twice_is_asked_once(turns: Turns) -> None:
    turns.loses_work = True
    client = await turns.session()
    sent = await turns.send(client)
    for _ in range(3):
        turns.host.submit(sent.operation_id or "")
    await turns.idle(client)
    turns.host.submit(sent.operation_id or "")
    await turns.over()
    assert len(turns.model.requests) == 1


async def test_hosts_that_race_for_an_operation(turns_on_each: Turns) -> None:
    turns = turns_on_each
    turns.loses_work = True
    hosts = [turns.new_host() for _ in range(4)]
    for _ in range(3):
        client = await turns.session()
        sent = await turns.send(client)
        await asyncio.gather(*(host.run(sent.operation_id or "") for host in hosts))
        assert await turns.history(client) == ["user: hello", "assistant: ok"]
    assert len(turns.model.requests) == 3


async def test_work_whose_word_was_lost_is_found(turns: Turns) -> None:
    """14.2: the sweep queues "turns that were committed and never claimed"."""
    turns.loses_work = True
    client = await turns.session()
    await turns.send(client)
    turns.loses_work = False
    await in_db(turns.world.new_process)
    turns.world.clock.advance(seconds=2)
    await in_db(Process.objects.update, kind="worker", beat_at=turns.world.clock())
    await in_db(sweep.dispatch_unclaimed)
    await turns.idle(client)
    assert await turns.history(client) == ["user: hello", "assistant: ok"]


@pytest.mark.parametrize("_again", range(5))
async def test_an_answer_in_the_moment_of_parking(turns: Turns, _again: int) -> None:
    """The word of it arrives while the turn that parked is not over yet."""
    client = await turns.session("ask")
    turns.model.will(Use("read", call_id="call_a"))
    await turns.send(client)
    (permission_id,) = await turns.pending(client)
    await turns.answer(client, permission_id)
    await turns.idle(client)
    assert turns.tools["read"].runs == ["call_a"]


async def test_many_turns_at_once(turns: Turns) -> None:
    clients = [await turns.session() for _ in range(8)]
    for _ in clients:
        turns.model.will(Say("On", Gate("here"), "e."))
    for client in clients:
        await turns.send(client)
    await eventually(lambda: len(turns.model.requests) == len(clients), "all of them are asked")
    saved = Operation.objects.filter(streamed__isnull=False)
    await turns.until(lambda: saved.count() == len(clients), "the text of all of them is saved")
    turns.gates.open("here")
    for client in clients:
        await turns.idle(client)
        assert await turns.history(client) == ["user: hello", "assistant: One."]


# Stopping (behaviour 14.3)


async def test_stopping_lets_turns_finish_and_takes_nothing_more(turns: Turns) -> None:
    client, later = await turns.session(), await turns.session()
    turns.model.will(Say("Hel", Gate("here"), "lo"))
    await turns.send(client)
    await turns.gates.reached("here")
    stopping = asyncio.create_task(turns.host.stop(60))
    await asyncio.sleep(0)
    await turns.send(later)
    turns.gates.open("here")
    await stopping
    assert await turns.history(client) == ["user: hello", "assistant: Hello"]
    assert (await turns.operation(later)).attempt == 0


async def test_stopping_interrupts_what_does_not_finish(turns: Turns) -> None:
    """14.3: "what still runs near its end is ended as in 14.4, reason `server_shutdown`"; text and calls as ever."""
    talking, calling = await turns.session(), await turns.session()
    turns.model.will(Say("Hel", Gate("talking"), "lo"))
    await turns.send(talking)
    await turns.gates.reached("talking")
    turns.model.will(Use("read", '{"gate":"calling"}', call_id="a"))
    await turns.send(calling)
    await turns.gates.reached("calling")
    await turns.host.stop(2)
    for client in (talking, calling):
        row = await turns.operation(client)
        assert (row.state, row.interruption) == ("interrupted", operations.SERVER_SHUTDOWN)
        assert await in_db(turns.world.states, client) == ("running", "idle")
    assert (await turns.history(talking))[-1] == "assistant: Hel…"
    assert (await turns.history(calling))[-1].startswith("output: a: The call was interrupted")
    turns.host = turns.new_host()
    for client in (talking, calling):
        await turns.turn(client, "again")


async def test_stopping_leaves_what_is_parked(turns: Turns) -> None:
    """14.3: "Parked operations and their requests are left alone"; another process goes on."""
    client = await turns.session("ask")
    turns.model.will(Use("read", call_id="a"))
    await turns.send(client)
    await turns.parked(client)
    await turns.host.stop(0.1)
    turns.host = turns.new_host()
    (permission_id,) = await turns.pending(client)
    await turns.answer(client, permission_id)
    await turns.idle(client)
    assert turns.tools["read"].runs == ["a"]


async def test_a_turn_parks_while_its_process_stops(turns: Turns) -> None:
    """14.3: "an operation whose calls are all done or waiting parks"."""
    client = await turns.session()
    turns.model.will(Use("danger", call_id="a"), Use("read", '{"gate":"here"}', call_id="b"))
    await turns.send(client)
    await turns.gates.reached("here")
    stopping = asyncio.create_task(turns.host.stop(60))
    await asyncio.sleep(0)
    turns.gates.open("here")
    await stopping
    assert (await turns.operation(client)).parked
    assert len(await turns.pending(client)) == 1


# What cannot be loaded (behaviour 14.4)


async def test_a_turn_without_its_workspace_ends(turns: Turns) -> None:
    turns.loses_work = True
    client = await turns.session()
    sent = await turns.send(client)
    shutil.rmtree(turns.world.folder / "project")
    turns.host.submit(sent.operation_id or "")
    await turns.idle(client)
    assert (await story(turns, client))[-3:] == ["session.error", "operation.failed", "state running/idle"]
    assert b'"workspace_unavailable"' in ((await turns.operation(client)).error or b"")
    assert turns.model.requests == []


async def test_a_parked_turn_without_its_workspace_ends(turns: Turns) -> None:
    """14.4: "an operation that a worker claims, parked ones included"."""
    client = await turns.session("ask")
    turns.model.will(Use("read", call_id="a"), Use("edit", call_id="b"))
    await turns.send(client)
    await turns.parked(client)
    shutil.rmtree(turns.world.folder / "project")
    permission_id, _ = await turns.pending(client, 2)
    await turns.answer(client, permission_id)
    await turns.idle(client)
    assert (await story(turns, client))[-5:] == [
        "session.error",
        "appended output: a: The call was not run: the operation ended first., "
        "output: b: The call was not run: the operation ended first.",
        "operation.failed",
        "state running/idle",
        "permission.resolved cancelled",
    ]
    assert turns.tools["read"].runs == []


async def test_a_prompt_with_a_tool_that_is_gone(turns: Turns) -> None:
    client = await turns.session()
    turns.host = turns.new_host(tools={})
    await turns.turn(client)
    assert b'"prompt_unavailable"' in ((await turns.operation(client)).error or b"")


async def test_a_prompt_that_names_no_model(turns: Turns) -> None:
    def make() -> Client:
        return turns.world.idle(prompt=turns.world.prompt("<developer>Be brief.</developer>", name="plain"))

    client = await in_db(make)
    await turns.turn(client)
    assert b'"configuration_invalid"' in ((await turns.operation(client)).error or b"")
    turns.host = turns.new_host(default_model=lambda: "test:scripted")
    await turns.turn(client)
    assert (await turns.operation(client)).state == "completed"


async def test_a_turn_that_cannot_be_prepared_ends(turns: Turns) -> None:
    """Accepted work runs or ends with a reason, whatever is wrong with it."""
    client = await turns.session()

    def damage() -> None:
        revision = Session.objects.get(id=client.session_id).prompt_revision_id
        PromptRevision.objects.filter(id=revision).update(config=b"no JSON")

    await in_db(damage)
    await turns.turn(client)
    row = await turns.operation(client)
    assert (row.state, b'"internal_error"' in (row.error or b"")) == ("failed", True)


async def test_a_workspace_of_another_host_is_not_offered_to_tools(turns: Turns) -> None:
    client = await turns.session()

    def move() -> None:
        instance = Session.objects.get(id=client.session_id).workspace_instance
        assert instance is not None
        instance.host = "elsewhere"
        instance.save()

    turns.model.will(Use("read"))
    await turns.turn(client)
    await in_db(move)
    turns.model.will(Use("read"))
    await turns.turn(client)
    here, elsewhere = turns.tools["read"].workspaces
    assert here is not None
    assert here.endswith("/project")
    assert elsewhere is None
