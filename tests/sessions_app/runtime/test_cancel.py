"""Cancelling at every step of a turn: one end, the text kept, the calls closed, the session idle (behaviour 6.5, 6.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from sessions_app.db import in_db
from sessions_app.errors import OperationNotFound
from sessions_app.events import ToolFinishedPayload, read_live_payload
from tests.support.scripts import Gate, Say, Script, Think, Use
from tests.support.turns import Turns
from tests.support.world import Client

INTERRUPTED = "The call was interrupted before it returned; what it did is unknown."
NEVER_RUN = "The call was not run: the operation ended first."
ENDS = ("operation.completed", "operation.failed", "operation.cancelled", "operation.interrupted")


class Case:
    """The replies of a turn, one of which stops at the gate `here`, and what is left of them when it is cancelled there."""

    def __init__(self, *replies: Script, left: Sequence[str] = ()) -> None:
        self.replies = replies
        self.left = left


RUNS = '{"gate":"here"}'
CASES = {
    "before the first delta": Case([Gate("here"), Say("Hello")]),
    "in an item that has said nothing": Case([Say(Gate("here"), "Hello")]),
    "after the first delta": Case([Say("Hel", Gate("here"), "lo")], left=["assistant: Hel…"]),
    "after the last delta": Case([Say("Hel", "lo", Gate("here"))], left=["assistant: Hello…"]),
    "between two items": Case([Say("One."), Gate("here"), Say("Two.")], left=["assistant: One."]),
    "in the second item": Case(
        [Say("One."), Say("Tw", Gate("here"), "o.")], left=["assistant: One.", "assistant: Tw…"]
    ),
    "after the last item": Case([Say("One."), Gate("here")], left=["assistant: One."]),
    "in reasoning": Case([Think("Hm", Gate("here"), "."), Say("One.")]),
    "after reasoning": Case([Think("Hm."), Gate("here"), Say("One.")]),
    "in what reasoning led to": Case(
        [Think("Hm."), Say("On", Gate("here"), "e.")], left=["ReasoningItem", "assistant: On…"]
    ),
    "after a call that is not made yet": Case(
        [Say("I look."), Use("read", call_id="a"), Gate("here")],
        left=["assistant: I look.", "call: a", f"output: a: {NEVER_RUN}"],
    ),
    "in text behind a call": Case(
        [Use("read", call_id="a"), Say("Loo", Gate("here"), "king.")],
        left=["call: a", "assistant: Loo…", f"output: a: {NEVER_RUN}"],
    ),
    "while a tool runs": Case(
        [Use("read", RUNS, call_id="a")], left=["call: a", f"output: a: {INTERRUPTED}"]
    ),
    "while a tool runs and another call waits": Case(
        [Use("danger", call_id="a"), Use("read", RUNS, call_id="b")],
        left=["call: a", "call: b", f"output: a: {NEVER_RUN}", f"output: b: {INTERRUPTED}"],
    ),
    "while a tool runs and another has returned": Case(
        [Use("read", RUNS, call_id="a"), Use("edit", call_id="b")],
        left=["call: a", "call: b", f"output: a: {INTERRUPTED}", "output: b: did {}"],
    ),
    "while a tool runs that returns what it has": Case(
        [Use("keep", RUNS, call_id="a")], left=["call: a", "output: a: what I have"]
    ),
    "in the second request": Case(
        [Use("read", call_id="a")],
        [Say("It ", Gate("here"), "is.")],
        left=["call: a", "output: a: did {}", "assistant: It …"],
    ),
}


async def check_cancelled(turns: Turns, client: Client, left: Sequence[str]) -> None:
    """Check the one end of a cancelled turn, what is left of it, and that the next one works."""
    await turns.idle(client)
    story = [event for revision in await in_db(turns.world.story, client) for event in revision]
    assert [event for event in story if event in ENDS] == ["operation.cancelled"]
    ending = story[story.index("operation.cancelled") :]
    assert ending[:3] == ["operation.cancelled", "moderator.notification", "state running/idle"]
    assert await turns.history(client) == ["user: hello", *left]
    assert turns.model.closed == len(turns.model.requests), "no request is left open"
    with pytest.raises(OperationNotFound):
        await turns.cancel(client)
    await turns.turn(client, "again")
    assert (await turns.history(client))[-2:] == ["user: again", "assistant: ok"]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
async def test_cancel(turns: Turns, case: Case) -> None:
    client = await turns.session()
    for reply in case.replies:
        turns.model.will(*reply)
    await turns.send(client)
    await turns.gates.reached("here")
    if "output: b: did {}" in case.left:
        await turns.told(client, "tool.finished")
    await turns.cancel(client)
    await check_cancelled(turns, client, case.left)
    if any(INTERRUPTED in item for item in case.left):
        assert turns.tools["read"].cancelled == 1
        told = [read_live_payload(event) for event in await turns.told(client, "tool.finished")]
        assert "cancelled" in [
            payload.outcome for payload in told if isinstance(payload, ToolFinishedPayload)
        ]


@pytest.mark.parametrize("name", ["after the first delta", "while a tool runs"])
async def test_cancel_without_a_signal(turns: Turns, name: str) -> None:
    """6.6: a lost signal costs time, no more."""
    turns.loses_signals = True
    case = CASES[name]
    client = await turns.session()
    turns.model.will(*case.replies[0])
    await turns.send(client)
    await turns.gates.reached("here")
    await turns.cancel(client)
    await check_cancelled(turns, client, case.left)


async def test_cancel_before_the_claim(turns: Turns) -> None:
    """6.6: "For an operation that no worker holds … the command itself commits … the terminal transaction"."""
    turns.loses_work = True
    client = await turns.session()
    sent = await turns.send(client)
    await turns.cancel(client)
    turns.loses_work = False
    assert sent.operation_id is not None
    turns.submitted(sent.operation_id)
    await turns.over()
    assert turns.model.requests == []
    await check_cancelled(turns, client, ())


async def test_cancel_while_parked(turns: Turns) -> None:
    """G13."""
    client = await turns.session("ask")
    turns.model.will(Say("May I?"), Use("read", call_id="a"))
    await turns.send(client)
    await turns.parked(client)
    await turns.cancel(client)
    await check_cancelled(turns, client, ("assistant: May I?", "call: a", f"output: a: {NEVER_RUN}"))
    story = [event for revision in await in_db(turns.world.story, client) for event in revision]
    assert "permission.resolved cancelled" in story


async def test_what_returns_behind_the_cancellation_is_kept(turns: Turns) -> None:
    """What a call did is told to the model wherever that is known."""
    turns.loses_signals = True
    client = await turns.session()
    turns.tools["read"].first = lambda: turns.cancel(client)
    turns.model.will(Use("read", call_id="a"))
    await turns.send(client)
    await turns.idle(client)
    turns.tools["read"].first = None
    await check_cancelled(turns, client, ["call: a", "output: a: did {}"])


async def test_cancel_twice(turns: Turns) -> None:
    """F8."""
    client = await turns.session()
    turns.model.will(Say("Hel", Gate("here"), "lo"))
    await turns.send(client)
    await turns.gates.reached("here")
    await asyncio.gather(turns.cancel(client), turns.cancel(client))
    await check_cancelled(turns, client, ("assistant: Hel…",))


@pytest.mark.parametrize("attempt", range(4))
async def test_cancel_in_the_last_moment(turns_on_each: Turns, attempt: int) -> None:
    """6.6: "terminal first → cancel sees `operation_not_found`; cancel first → … the worker is torn down"."""
    turns = turns_on_each
    client = await turns.session()
    turns.model.will(Say("Hel", "lo"), Gate("here"))
    await turns.send(client)
    await turns.gates.reached("here")
    turns.gates.open("here")
    for _ in range(attempt):
        await asyncio.sleep(0)
    cancelled, _ = await asyncio.gather(turns.cancel(client), turns.idle(client), return_exceptions=True)
    await turns.idle(client)
    refused = isinstance(cancelled, OperationNotFound)
    assert refused or not isinstance(cancelled, BaseException), cancelled
    story = [event for revision in await in_db(turns.world.story, client) for event in revision]
    end = "operation.completed" if refused else "operation.cancelled"
    assert [event for event in story if event in ENDS] == [end]
    assert (await turns.history(client))[0] == "user: hello"
    assert (await turns.history(client))[1:] in (["assistant: Hello"], ["assistant: Hello…"])


async def test_a_stop_that_cancels(turns: Turns) -> None:
    """F10: "stopped soon; … every call has an output"."""
    client = await turns.session()
    turns.model.will(Say("I look."), Use("read", RUNS, call_id="a"))
    await turns.send(client)
    await turns.gates.reached("here")
    await turns.stop(client, "cancel")
    await turns.idle(client)
    assert await in_db(turns.world.states, client) == ("stopped", "stopped")
    assert (await turns.history(client))[-1] == f"output: a: {INTERRUPTED}"


async def test_a_graceful_stop_waits_for_the_answer(turns: Turns) -> None:
    """F9."""
    client = await turns.session()
    turns.model.will(Say("Hel", Gate("here"), "lo"))
    await turns.send(client)
    await turns.gates.reached("here")
    await turns.stop(client)
    assert await in_db(turns.world.states, client) == ("stopped", "running_turn")
    turns.gates.open("here")
    await turns.idle(client)
    assert await in_db(turns.world.states, client) == ("stopped", "stopped")
    assert (await turns.history(client))[-1] == "assistant: Hello"


async def test_deferred_messages_stay_queued(turns: Turns) -> None:
    """6.3, R2 and R3."""
    client = await turns.session()
    turns.model.will(Say("Hel", Gate("here"), "lo"))
    await turns.send(client)
    await turns.gates.reached("here")
    await turns.send(client, "later")
    await turns.cancel(client)
    await turns.idle(client)
    assert await in_db(turns.world.deferred, client) == ["user: later"]
    await turns.turn(client, "now")
    assert (await turns.history(client))[-3:] == ["user: later", "user: now", "assistant: ok"]
