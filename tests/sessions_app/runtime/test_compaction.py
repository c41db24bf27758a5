"""Compactions against the real kernel: what the model is asked, what becomes of the history (behaviour 9.2, 14.4)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from django.core.files.storage import default_storage

from jobs_app import recovery
from sessions_app import archives, processes
from sessions_app.commands import compaction
from sessions_app.commands.operations import ClaimLost
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.errors import Conflict, InternalError, InvalidState
from sessions_app.history import user_message
from sessions_app.models import Archive, Session
from sessions_app.records import InputMessageItem, InputText
from sessions_app.runtime.compaction import HEADING, INSTRUCTION, newer_half
from sessions_app.runtime.models.port import ModelError
from tests.support.replay_law import snapshot
from tests.support.scripts import Break, Gate, Say, Think, Use
from tests.support.turns import Turns
from tests.support.world import Client, Story, World

OVERFLOW = ModelError("context_overflow", "too long", retryable=False)


async def compacted(turns: Turns, client: Client) -> Story:
    """Compact a session and wait for the end; what its log tells of that."""
    before = await in_db(turns.world.counters, client)
    await in_db(turns.world.compact, client)
    await turns.idle(client)
    return await in_db(turns.world.story, client, before[1])


async def test_the_history_becomes_a_summary(turns_on_each: Turns) -> None:
    """9.2: "keep every leading system/developer entry of the initial prompt, add one developer entry with the summary"."""
    turns = turns_on_each
    client = await turns.session()
    await turns.turn(client, "one")
    turns.model.will(Think("Hm."), Say("They ", "said one."))
    before = await in_db(turns.world.counters, client)

    assert await compacted(turns, client) == [
        ["operation.started", "state running/compacting"],
        ["updated running"],
        [
            f"replaced by developer: Be brief., developer: {HEADING}They said one.",
            "operation.completed",
            "state running/idle",
        ],
    ]
    assert turns.model.heard() == [
        "developer: Be brief.",
        "user: one",
        "assistant: ok",
        f"user: {INSTRUCTION}",
    ]
    after = await in_db(snapshot, client.session_id)
    assert after.archived_revisions == (after.revision - 1,)
    assert after.revision - 1 > before[0]
    archive = await in_db(Archive.objects.get)
    assert await in_db(_archived, archive) == ["developer", "user", "assistant"]
    await turns.turn(client, "two")
    assert turns.model.heard() == [
        "developer: Be brief.",
        f"developer: {HEADING}They said one.",
        "user: two",
    ]


def _archived(archive: Archive) -> list[str]:
    with archives.opened(archive) as entries:
        return [msgspec.json.decode(placed.entry.payload)["role"] for placed in entries]


async def test_a_stopped_session_stays_stopped(turns: Turns) -> None:
    """9.2: "Accepted while idle **or stopped**"; "Result state follows desired"."""
    client = await turns.session()
    await turns.stop(client)
    story = await compacted(turns, client)
    assert story[0] == ["operation.started", "state stopped/compacting"]
    assert story[-1][1:] == ["operation.completed", "state stopped/stopped"]


async def test_a_message_meanwhile_waits_and_starts_a_turn(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Say("short", Gate("on")))
    await in_db(turns.world.compact, client)
    await turns.gates.reached("on")
    await turns.send(client, "later")
    turns.gates.open("on")
    await turns.until(lambda: len(turns.world.history(client)) == 4, "the turn has ended")
    await turns.idle(client)
    assert await turns.history(client) == [
        f"developer: {HEADING}short",
        "user: later",
        "assistant: ok",
    ]


async def test_cancelled_while_the_model_speaks(turns: Turns) -> None:
    """9.2: "Failure or cancel: history unchanged; operation.failed/cancelled"."""
    client = await turns.session()
    await turns.turn(client, "one")
    turns.model.will(Say("short", Gate("on")))
    before = await in_db(turns.world.counters, client)
    await in_db(turns.world.compact, client)
    await turns.gates.reached("on")
    history = await turns.history(client)
    await turns.cancel(client)
    await turns.idle(client)

    story = await in_db(turns.world.story, client, before[1])
    assert story[2:] == [
        ["updated cancelling"],
        ["operation.cancelled", "moderator.notification", "state running/idle"],
    ]
    assert await turns.history(client) == history
    assert not await in_db(Archive.objects.exists)


@pytest.mark.parametrize(
    ("script", "code"),
    [((Break(OVERFLOW),), "internal_error"), ((Use("read"),), "internal_error")],
    ids=["model failed", "no summary"],
)
async def test_a_failure_leaves_the_history_alone(
    turns: Turns, script: Sequence[Break | Use], code: str
) -> None:
    client = await turns.session()
    await turns.turn(client, "one")
    history = await turns.history(client)
    turns.model.will(*script)
    story = await compacted(turns, client)

    assert story[-1] == ["operation.failed", "state running/idle"]
    assert code.encode() in ((await turns.operation(client)).error or b"")
    assert await turns.history(client) == history
    assert not await in_db(Archive.objects.exists)


async def test_a_history_that_the_model_cannot_take(turns: Turns) -> None:
    """The oldest of it is left out of the request, never of the archive."""
    client = await turns.session()
    for text in ("one", "two", "three"):
        await turns.turn(client, text)
    turns.model.will(Break(OVERFLOW))
    turns.model.will(Say("short"))
    assert (await compacted(turns, client))[-1][1] == "operation.completed"
    assert turns.model.heard()[:-1] == ["developer: Be brief.", "user: three", "assistant: ok"]
    assert len(await in_db(_archived, await in_db(Archive.objects.get))) == 7


async def test_a_stopping_process_interrupts(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Say("short", Gate("on")))
    await in_db(turns.world.compact, client)
    await turns.gates.reached("on")
    await turns.host.stop(2)
    operation = await turns.operation(client)
    assert (operation.state, operation.interruption) == ("interrupted", "server_shutdown")
    assert await in_db(turns.world.states, client) == ("running", "idle")


# In the kernel alone


def test_the_worker_is_lost(world: World) -> None:
    """14.4: `operation.interrupted`, and its late result is nobody's."""
    client = world.idle()
    lost = world.new_process("worker")
    world.compact(client)
    claim = world.claim(client)
    written = archives.write(client.session_id)
    world.new_process("worker")
    world.let_die(lost)
    with world.telling(client) as story:
        recovery.end_dead_processes()
    assert story == [["operation.interrupted", "state running/idle"]]
    with pytest.raises(ClaimLost):
        compaction.complete(claim, user_message("late"), written)
    assert world.history(client) == ["developer: Be brief."]
    assert processes.expired() == []


def test_the_archive_must_be_of_this_history(world: World) -> None:
    client = world.idle()
    old = archives.write(client.session_id)
    world.finish(world.turn(client), "answer")
    world.compact(client)
    with pytest.raises(InternalError):
        compaction.complete(world.claim(client), user_message("summary"), old)
    assert default_storage.exists(old.name)


def test_the_checks_come_in_their_order(world: World) -> None:
    """4.6: "given revision ≠ current → conflict; …; op active → conflict; not idle/stopped → invalid_state"."""
    client = world.idle()
    with pytest.raises(Conflict, match="revision"):
        world.compact(client, world.counters(client)[0] - 1)
    world.compact(client, world.counters(client)[0])
    with pytest.raises(Conflict, match="operation"):
        world.compact(client)
    queued = world.idle()
    Session.objects.filter(id=queued.session_id).update(observed="queued_for_slot")
    with pytest.raises(InvalidState):
        world.compact(queued)


def test_the_cut_leaves_no_output_without_its_call() -> None:
    def item(role: str) -> bytes:
        return encode(InputMessageItem(role=role, content=(InputText(text="x"),)))  # type: ignore[arg-type]  # a test

    developer, user = item("developer"), item("user")
    call = b'{"type":"function_call","name":"run","arguments":"{}","call_id":"a"}'
    output = b'{"type":"function_call_output","call_id":"a","output":"done"}'
    assert newer_half([developer, user, call, output, user]) == [developer, user]
    assert newer_half([developer, user, call, output]) == [developer, user, call, output]
    assert newer_half([]) == []
