"""The calls inside a turn: proposed, decided, waiting, running, done; parked and resumed; never started twice (behaviour 6.4)."""

from __future__ import annotations

import msgspec
import pytest

from permissions_app.decisions import PermissionGate
from sessions_app import history, limits
from sessions_app.commands import calls, operations
from sessions_app.commands.calls import Progress, Proposed
from sessions_app.models import Operation, ToolCall
from sessions_app.records import ToolOutputPartInputImage, ToolOutputPartInputText
from tests.support.world import TIERS, Client, Gate, World, assistant, started, together

DENIED = "output: call_0: denied"


def states(client: Client) -> list[str]:
    rows = ToolCall.objects.filter(session_id=client.session_id).order_by("position")
    return list(rows.values_list("state", flat=True))


def starts(progress: Progress) -> list[str]:
    return [row.call_id for row in progress.start]


def said(client: Client, world: World) -> list[str]:
    """What entered history behind the prompt's and the user's message."""
    return world.history(client)[2:]


# Deciding


def test_a_call_that_may_run_is_running_before_the_tool_is(world: World) -> None:
    """6.4: "each step is committed under the session's lock, `running` before the tool runs"; "tool call before its output"."""
    client = world.idle()
    claim = world.turn(client)
    with world.telling(client) as story:
        progress = world.propose(claim, "run", said=[assistant("let me see")])
    assert story == [["appended assistant: let me see, call: call_0"]]
    assert (starts(progress), progress.parked, progress.complete) == (["call_0"], False, False)
    row = ToolCall.objects.get()
    assert (row.state, row.approved, row.name, row.arguments) == ("running", True, "run", "{}")
    assert msgspec.json.decode(row.started or b"")["payload"]["call_id"] == "call_0"
    assert progress.anchor == world.counters(client)[1]


def test_a_refused_call_has_its_output_at_once(world: World) -> None:
    """6.7: "a denied call yields a canonical error output and the turn continues"."""
    client = world.idle()
    claim = world.turn(client)
    with world.telling(client) as story:
        progress = world.propose(claim, "deny")
    assert story == [["appended call: call_0", f"appended {DENIED}"]]
    assert (starts(progress), progress.parked, progress.complete) == ([], False, True)


def test_a_call_of_no_tool_is_answered_without_asking(world: World) -> None:
    client = world.idle()
    progress = world.propose(world.turn(client), "unheard_of")
    assert progress.complete
    assert said(client, world)[1:] == ["output: call_0: There is no tool named unheard_of."]
    assert world.gate.asked == []


def test_only_new_calls_are_decided(world: World) -> None:
    """6.4: a call is decided once: what runs is never asked about again, whatever else is proposed."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run")
    world.propose(claim, "run", "deny")
    assert world.gate.asked == ["call_0", "call_1", "call_2"]
    assert states(client) == ["running", "running", "done"]


def test_custom_calls_get_custom_outputs(world: World) -> None:
    """wire 6: the family of the output is the family of the call."""
    client = world.idle()
    claim = world.turn(client)
    item = history.entry_of(history.call_item("custom", "call_c", "run", "plain"))
    wanted = [Proposed(call_id="call_c", name="run", kind="custom", arguments="plain")]
    calls.propose(claim, [item], wanted, Gate(), TIERS, started, live_sequence=0)
    world.advance(claim, (0, "out"))
    rows = [row for row in world.events(client.session_id) if row.kind == "history.appended"]
    assert msgspec.json.decode(rows[-1].payload)[0]["payload"]["type"] == "custom_tool_call_output"


# Outputs


def test_outputs_enter_in_the_order_of_the_calls(world: World) -> None:
    """6.4: "run tool calls (in parallel, outputs committed in call order)"; "Outputs enter history from the rows, as far as the
    calls before them have theirs"."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run", "run", "run")
    with world.telling(client) as story:
        world.advance(claim, (1, "second"))
        world.advance(claim, (0, "first"))
        last = world.advance(claim, (2, "third"))
    assert story == [
        ["appended output: call_0: first, output: call_1: second"],
        ["appended output: call_2: third"],
    ]
    assert last.complete


def test_a_step_of_a_call_is_a_revision(world: World) -> None:
    """0.3: "Transactions that bump revision without events: … a step of a tool call's row"; one that finds nothing is none."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run", "run")
    revision, sequence = world.counters(client)
    world.advance(claim, (1, "second"))
    assert world.counters(client) == (revision + 1, sequence)
    world.advance(claim)
    assert world.counters(client) == (revision + 1, sequence)


def test_a_result_counts_once(world: World) -> None:
    """6.4: "One entry is committed once"."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run", "run")
    world.advance(claim, (0, "first"))
    world.advance(claim, (0, "again"))
    world.advance(claim, (1, "second"), (7, "of no call"))
    assert said(client, world)[2:] == ["output: call_0: first", "output: call_1: second"]


def test_a_long_output_is_cut_and_says_so(world: World) -> None:
    """6.1: "a tool output is cut and says so in words"; at most 4 MiB encoded."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run")
    world.advance(claim, (0, "é" * limits.MAX_ENTRY_BYTES))
    output = said(client, world)[1]
    assert output.endswith(history.CUT_NOTE)
    assert limits.MAX_ENTRY_BYTES // 2 - 1024 < len(output) < limits.MAX_ENTRY_BYTES


def test_outputs_may_have_parts(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run")
    parts = (
        ToolOutputPartInputText(text="see"),
        ToolOutputPartInputImage(image_url="data:,x", detail="auto"),
    )
    calls.advance(claim, [calls.Finished(0, parts)], started, 0)
    assert "data:,x" in said(client, world)[1]


# Parking and resuming


def test_a_turn_parks_when_every_call_is_done_or_waits(world: World) -> None:
    """6.4: "When every call of the step is done or waiting, the operation **parks**: its claim is given up, nothing runs or is held
    for it"."""
    client = world.idle()
    claim = world.turn(client)
    progress = world.propose(claim, "run", "ask", live_sequence=5)
    assert not progress.parked
    progress = world.advance(claim, (0, "first"), live_sequence=9)
    assert (progress.parked, progress.complete, starts(progress)) == (True, False, [])
    row = Operation.objects.get()
    assert (bool(row.process_id), row.parked, row.live_sequence, row.state) == (False, True, 9, "running")


@pytest.mark.parametrize("allowed", [True, False])
def test_an_answer_queues_a_parked_turn_again(world: World, allowed: bool) -> None:
    """6.4: "An answer commits the resolution and queues the operation again; a resumed loop starts only calls that were never
    started"."""
    client = world.idle()
    parked = world.turn(client)
    assert world.propose(parked, "ask", "ask", live_sequence=7).parked
    world.dispatched.operations.clear()

    assert world.answer(client, "call_0", allowed=allowed)
    assert world.dispatched.operations == [parked.operation_id]
    claim = world.claim(client)
    assert (claim.live_sequence, claim.resumed) == (7, True)
    progress = world.advance(claim)
    assert starts(progress) == (["call_0"] if allowed else [])
    assert progress.parked is not allowed, "the other call still waits"
    expected = [] if allowed else ["output: call_0: not allowed"]
    assert said(client, world)[2:] == expected


def test_no_call_is_ever_started_twice(world: World) -> None:
    """6.4: "No tool is ever run twice": not by a second look, not by a second claim, not after its worker was lost."""
    client = world.idle()
    claim = world.turn(client)
    started_ids = starts(world.propose(claim, "run", "ask"))
    started_ids += starts(world.advance(claim))
    world.answer(client, "call_1")
    started_ids += starts(world.advance(claim))
    started_ids += starts(world.advance(claim, (0, "first")))
    started_ids += starts(world.advance(claim, (1, "second")))
    assert started_ids == ["call_0", "call_1"]


def test_an_answer_while_others_run_reaches_the_worker_that_holds_them(world: World) -> None:
    """6.4: the worker of a running operation is told; the row says what to start."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run", "ask")
    world.dispatched.operations.clear()
    assert operations.moved([claim], {claim.operation_id}) == set()
    world.answer(client, "call_1")
    assert world.dispatched.operations == []
    assert operations.moved([claim], {claim.operation_id}) == {claim.operation_id}
    assert starts(world.advance(claim)) == ["call_1"]


def test_only_waiting_calls_are_answered(world: World) -> None:
    """7.3: "the operation is no longer waiting on this call"."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run", "ask")
    assert not world.answer(client, "call_0")
    assert not world.answer(client, "call_unknown")
    assert world.answer(client, "call_1")
    before = world.counters(client)
    assert not world.answer(client, "call_1")
    assert world.counters(client) == before


def test_the_newest_call_of_an_id_is_answered(world: World) -> None:
    """Models use call ids again: an answer is about the call that waits."""
    client = world.idle()
    claim = world.turn(client)
    wanted = [Proposed(call_id="same", name="ask", kind="function", arguments="{}")]
    for _ in range(2):
        entry = history.entry_of(history.call_item("function", "same", "ask", "{}"))
        calls.propose(claim, [entry], wanted, world.gate, TIERS, started, live_sequence=0)
        world.answer(client, "same", allowed=False)
        claim = world.claim(client)
        assert world.advance(claim).complete
    assert states(client) == ["done", "done"]
    world.finish(claim)


def test_one_reply_does_not_use_a_call_id_twice(world: World) -> None:
    """An answer names its call by its id: the second call of the id is refused, the first one waits."""
    client = world.idle()
    claim = world.turn(client)
    wanted = [Proposed(call_id="same", name="ask", kind="function", arguments="{}")] * 2
    entry = history.entry_of(history.call_item("function", "same", "ask", "{}"))
    assert calls.propose(claim, [entry] * 2, wanted, world.gate, TIERS, started, live_sequence=0).parked
    assert states(client) == ["waiting", "done"]
    assert world.answer(client, "same")
    claim = world.claim(client)
    assert starts(world.advance(claim)) == ["same"]
    world.advance(claim, (0, "out"))
    assert said(client, world)[2:] == [
        "output: same: out",
        "output: same: The call was not run: another call has the same id.",
    ]


def test_two_answers_race(committed_world: World) -> None:
    """7.3: "First commit wins": one answer counts, the turn is queued once."""
    world = committed_world
    client = world.idle()
    parked = world.turn(client)
    world.propose(parked, "ask")
    world.dispatched.operations.clear()
    answers = together(*[lambda: world.answer(client, "call_0")] * 3)
    assert answers.count(True) == 1
    assert world.dispatched.operations == [parked.operation_id]


def test_a_parked_turn_outlives_its_worker(world: World) -> None:
    """14.4: "A parked operation is held by no process: it and its requests stay as they are"."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "write", gate=PermissionGate())
    with world.telling(client) as story:
        operations.interrupt(client.session_id, claim.operation_id, "prc_gone", operations.WORKER_LOST)
        world.new_process()
        operations.interrupt(client.session_id, claim.operation_id, "", operations.WORKER_LOST)
    assert story == []
    assert world.states(client) == ("running", "waiting_for_permission")


# The safe point


def test_deferred_messages_wait_for_all_outputs(world: World) -> None:
    """6.3: "Consumed only at safe points of the running turn: before the next provider request, after all pending tool outputs of
    the previous one… A call/output pair is never split"."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run", "run")
    world.send(client, "one more")
    world.send(client, "and another")
    world.advance(claim, (0, "first"))
    assert world.deferred(client) == ["user: one more", "user: and another"]
    with world.telling(client) as story:
        progress = world.advance(claim, (1, "second"))
    assert story == [["appended output: call_1: second", "appended user: one more, user: and another"]]
    assert progress.complete
    assert world.deferred(client) == []


def test_deferred_messages_wait_while_a_turn_is_parked(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "deny", "ask")
    world.send(client, "patience")
    world.answer(client, "call_1", allowed=False)
    assert world.deferred(client) == ["user: patience"]
    assert world.advance(world.claim(client)).complete
    assert said(client, world)[-2:] == ["output: call_1: not allowed", "user: patience"]
