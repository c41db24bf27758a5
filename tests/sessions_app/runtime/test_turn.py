"""The turn loop against the real kernel and gate: what is said, called, asked, parked and resumed (behaviour 6.3, 6.4, 6.7)."""

from __future__ import annotations

import pytest

from sessions_app.db import in_db
from sessions_app.models import Operation
from tests.support.scripts import Gate, Say, Think, Use
from tests.support.turns import Turns
from tests.support.waiting import eventually

DENIED = "The call was not run: permission was denied."


# Replies


async def test_a_plain_reply(turns: Turns) -> None:
    """6.4, the event order of an ordinary turn."""
    client = await turns.session()
    turns.model.will(Say("Hello ", "you."))
    assert await turns.turn(client) == [
        ["appended user: hello", "operation.started", "state running/running_turn"],
        ["updated running"],
        ["appended assistant: Hello you.", "operation.completed", "state running/idle"],
    ]


async def test_a_reply_of_several_items_with_reasoning(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Think("Let me ", "see."), Say("One."), Say("Two."))
    await turns.turn(client)
    assert await turns.history(client) == [
        "user: hello",
        "ReasoningItem",
        "assistant: One.",
        "assistant: Two.",
    ]


async def test_a_reply_of_nothing(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will()
    story = await turns.turn(client)
    assert story[-1] == ["operation.completed", "state running/idle"]


async def test_the_model_is_asked_with_the_whole_history(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Say("first"))
    await turns.turn(client, "one")
    await turns.turn(client, "two")
    assert turns.model.heard() == ["developer: Be brief.", "user: one", "assistant: first", "user: two"]


async def test_what_is_finished_is_committed_while_a_long_reply_goes_on(turns: Turns) -> None:
    """6.4: "commit each finished output item"; reasoning waits for what it led to."""
    client = await turns.session()
    turns.model.will(Say("One."), Think("Hm."), Say("Two", Gate("on"), "."))
    await turns.send(client)
    await turns.gates.reached("on")
    await turns.until(lambda: len(turns.world.history(client)) > 2, "the first item is in history")
    assert await turns.history(client) == ["user: hello", "assistant: One."]
    turns.gates.open("on")
    await turns.idle(client)
    assert await turns.history(client) == [
        "user: hello",
        "assistant: One.",
        "ReasoningItem",
        "assistant: Two.",
    ]


# Calls


async def test_a_call_is_run_and_its_output_goes_back_to_the_model(turns: Turns) -> None:
    """6.4: "tool call before its output"."""
    client = await turns.session()
    turns.model.will(Say("I look."), Use("read", '{"a":"b"}', call_id="call_a"))
    turns.model.will(Say("It is so."))
    assert (await turns.turn(client))[2:] == [
        ["appended assistant: I look., call: call_a"],
        ['appended output: call_a: did {"a":"b"}'],
        ["appended assistant: It is so.", "operation.completed", "state running/idle"],
    ]
    assert turns.model.heard()[-2:] == ["call: call_a", 'output: call_a: did {"a":"b"}']
    assert turns.tools["read"].runs == ["call_a"]


async def test_parallel_calls_are_committed_in_call_order(turns: Turns) -> None:
    """6.4: "in parallel, outputs committed in call order"."""
    client = await turns.session()
    turns.model.will(*(Use("read", f'{{"gate":"{name}"}}', call_id=f"call_{name}") for name in "abc"))
    await turns.send(client)
    for name in "abc":
        await turns.gates.reached(name)
    turns.gates.open("c")
    await turns.told(client, "tool.finished")
    assert await turns.history(client) == ["user: hello", "call: call_a", "call: call_b", "call: call_c"]
    turns.gates.open("a")
    await turns.until(lambda: len(turns.world.history(client)) == 6, "the first output is in history")
    turns.gates.open("b")
    await turns.idle(client)
    assert [item.partition(": did")[0] for item in (await turns.history(client))[4:]] == [
        "output: call_a",
        "output: call_b",
        "output: call_c",
        "assistant: ok",
    ]
    assert len(turns.model.requests) == 2, "the model is asked again once all have returned"


async def test_calls_of_several_replies(turns: Turns) -> None:
    client = await turns.session()
    for number in range(3):
        turns.model.will(Use("read", call_id=f"call_{number}"))
    await turns.turn(client)
    assert len(turns.model.requests) == 4
    assert turns.tools["read"].runs == ["call_0", "call_1", "call_2"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing_like_it", "There is no tool named nothing_like_it."),
        ("fail", "no such thing"),
        ("crash", "The tool failed."),
    ],
)
async def test_a_call_that_fails_is_told_to_the_model(turns: Turns, name: str, said: str) -> None:
    client = await turns.session()
    turns.model.will(Use(name, call_id="call_a"), Use("read", call_id="call_b"))
    await turns.turn(client)
    assert turns.model.heard()[-2:] == [f"output: call_a: {said}", "output: call_b: did {}"]
    assert (await turns.operation(client)).state == "completed"


async def test_arguments_that_cannot_be_shown_stop_no_call(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Use("read", '{"a":"unshowable"}'))
    await turns.turn(client)
    assert len(turns.tools["read"].runs) == 1


async def test_a_call_id_stands_for_one_call(turns: Turns) -> None:
    """The answer about one call must never start another one."""
    client = await turns.session()
    turns.model.will(
        Use("danger", '{"a":"harmless"}', call_id="same"), Use("danger", '{"a":"harmful"}', call_id="same")
    )
    await turns.send(client)
    await turns.parked(client)
    (permission_id,) = await turns.pending(client)
    await turns.answer(client, permission_id)
    await turns.idle(client)
    assert turns.tools["danger"].runs == ["same"]
    assert (await turns.history(client))[3:5] == [
        'output: same: did {"a":"harmless"}',
        "output: same: The call was not run: another call has the same id.",
    ]


# Permissions (behaviour 7.1, 7.2)


async def test_a_profile_that_denies_runs_nothing(turns: Turns) -> None:
    """G1; 6.7: the model reads the denial and the turn goes on."""
    client = await turns.session("deny")
    turns.model.will(Use("read", call_id="call_a"))
    await turns.turn(client)
    assert turns.tools["read"].runs == []
    assert turns.model.heard()[-1].startswith("output: call_a: The call was not run")
    assert (await turns.operation(client)).state == "completed"


async def test_ask_parks_and_the_answer_runs_the_call_once(turns: Turns) -> None:
    """G2; 6.4: "its claim is given up, nothing runs or is held for it"."""
    client = await turns.session("ask")
    turns.model.will(Say("May I?"), Use("read", call_id="call_a"))
    await turns.send(client)
    parked = await turns.parked(client)
    assert (bool(parked.process_id), parked.state, turns.tools["read"].runs) == (False, "running", [])
    (permission_id,) = await turns.pending(client)
    before = await in_db(turns.world.counters, client)
    await turns.answer(client, permission_id)
    await turns.idle(client)
    assert turns.tools["read"].runs == ["call_a"]
    assert (await in_db(turns.world.story, client, before[1])) == [
        ["permission.resolved approved", "state running/running_turn"],
        ["appended output: call_a: did {}"],
        ["appended assistant: ok", "operation.completed", "state running/idle"],
    ]


async def test_a_denied_call_is_told_to_the_model(turns: Turns) -> None:
    """6.7."""
    client = await turns.session("ask")
    turns.model.will(Use("read", call_id="call_a"))
    await turns.send(client)
    await turns.parked(client)
    (permission_id,) = await turns.pending(client)
    await turns.answer(client, permission_id, "deny")
    await turns.idle(client)
    assert turns.tools["read"].runs == []
    assert turns.model.heard()[-1] == f"output: call_a: {DENIED}"


@pytest.mark.parametrize("first", [0, 1])
async def test_two_requests_answered_in_either_order(turns: Turns, first: int) -> None:
    client = await turns.session("ask")
    turns.model.will(Use("read", call_id="call_0"), Use("edit", call_id="call_1"))
    await turns.send(client)
    await turns.parked(client)
    waiting = await turns.pending(client, 2)
    await turns.answer(client, waiting[first])
    await turns.until(
        lambda: Operation.objects.filter(parked=True, attempt=2).exists(), "parked again, on the other one"
    )
    await turns.over()
    await turns.answer(client, waiting[1 - first])
    await turns.idle(client)
    assert (await turns.history(client))[3:] == [
        "output: call_0: did {}",
        "output: call_1: did {}",
        "assistant: ok",
    ]
    assert [turns.tools[name].runs for name in ("read", "edit")] == [["call_0"], ["call_1"]]


async def test_a_call_waits_while_another_runs(turns: Turns) -> None:
    """6.4: the operation parks only when every call is done or waiting."""
    client = await turns.session()
    turns.model.will(Use("danger", call_id="call_a"), Use("read", '{"gate":"slow"}', call_id="call_b"))
    await turns.send(client)
    await turns.gates.reached("slow")
    (permission_id,) = await turns.pending(client)
    assert not (await turns.operation(client)).parked
    turns.gates.open("slow")
    await turns.parked(client)
    await turns.answer(client, permission_id)
    await turns.idle(client)
    assert [turns.tools[name].runs for name in ("danger", "read")] == [["call_a"], ["call_b"]]


@pytest.mark.parametrize("loses_signals", [False, True], ids=["told", "found"])
async def test_an_answer_starts_its_call_beside_one_that_runs(turns: Turns, loses_signals: bool) -> None:
    """Told by a signal, or found when none comes."""
    turns.loses_signals = loses_signals
    client = await turns.session()
    turns.model.will(Use("danger", call_id="call_a"), Use("read", '{"gate":"slow"}', call_id="call_b"))
    await turns.send(client)
    await turns.gates.reached("slow")
    (permission_id,) = await turns.pending(client)
    await turns.answer(client, permission_id)
    await eventually(lambda: turns.tools["danger"].runs, "the answered call runs")
    turns.gates.open("slow")
    await turns.idle(client)
    assert (await turns.operation(client)).attempt == 1, "it never parked"


async def test_a_resumed_turn_goes_on_asking(turns: Turns) -> None:
    client = await turns.session("ask")
    turns.model.will(Use("read", call_id="call_a"))
    turns.model.will(Say("Again."), Use("edit", call_id="call_b"))
    await turns.send(client)
    for _ in range(2):
        await turns.parked(client)
        (permission_id,) = await turns.pending(client)
        await turns.answer(client, permission_id)
        await turns.until(lambda: not Operation.objects.filter(parked=True).exists(), "taken up again")
    await turns.idle(client)
    assert (await turns.operation(client)).attempt == 3
    assert (await turns.history(client))[-2:] == ["output: call_b: did {}", "assistant: ok"]


# Deferred messages (behaviour 6.3)


async def test_deferred_messages_enter_at_the_safe_point(turns: Turns) -> None:
    """6.3: "before the next provider request, after all pending tool outputs of the previous one"."""
    client = await turns.session()
    turns.model.will(Use("read", '{"gate":"slow"}', call_id="call_a"))
    await turns.send(client)
    await turns.gates.reached("slow")
    for text in ("and", "also"):
        assert (await turns.send(client, text)).disposition == "deferred"
    turns.gates.open("slow")
    await turns.idle(client)
    assert turns.model.heard()[-3:] == [
        'output: call_a: did {"gate":"slow"}',
        "user: and",
        "user: also",
    ]
    assert len(turns.model.requests) == 2


async def test_leftovers_start_the_next_turn(turns: Turns) -> None:
    """6.3, R1."""
    client = await turns.session()
    turns.model.will(Say("One", Gate("on"), "."))
    await turns.send(client)
    await turns.gates.reached("on")
    await turns.send(client, "and")
    turns.gates.open("on")
    await turns.until(lambda: Operation.objects.count() == 2, "the next turn has begun")
    await turns.idle(client)
    assert await turns.history(client) == ["user: hello", "assistant: One.", "user: and", "assistant: ok"]
    assert len(turns.model.requests) == 2


async def test_messages_while_a_request_waits_are_deferred(turns: Turns) -> None:
    client = await turns.session("ask")
    turns.model.will(Use("read", call_id="call_a"))
    await turns.send(client)
    await turns.parked(client)
    await turns.send(client, "meanwhile")
    (permission_id,) = await turns.pending(client)
    await turns.answer(client, permission_id)
    await turns.idle(client)
    assert turns.model.heard()[-2:] == ["output: call_a: did {}", "user: meanwhile"]
