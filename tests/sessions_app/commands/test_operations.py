"""The life of an operation: claims, its four ends, cancellation and their races (behaviour 6.4 to 6.6, 14.4)."""

from __future__ import annotations

import msgspec
import pytest

from sessions_app import history, ids, ledger, processes
from sessions_app.callers import system
from sessions_app.commands import operations
from sessions_app.commands.operations import Cancelling, Claim, ClaimLost, Ending, StreamedItem
from sessions_app.encoding import encode
from sessions_app.errors import (
    Conflict,
    InternalError,
    OperationNotFound,
    PromptUnavailable,
    SessionNotFound,
    to_error,
)
from sessions_app.models import HistoryEntry, Operation, Session, ToolCall
from sessions_app.participants import OperationOutcome
from sessions_app.records import OutputMessageItem, ReasoningItem
from tests.support.world import Client, World, assistant, called, together

FAILURE = to_error(InternalError("the model is away", retryable=True))
INTERRUPTED = "output: call_0: The call was interrupted before it returned; what it did is unknown."
NEVER_RUN = "output: call_{}: The call was not run: the operation ended first."


def spoken(claim: Claim, text: str = "half a sent", offset: int = 0) -> StreamedItem:
    """Return text of an output item that is not finished."""
    return StreamedItem(number=claim.first_number + offset, item_id="msg_7", text=text)


def operation_of(client: Client) -> Operation:
    return Operation.objects.get(session_id=client.session_id)


# Claims


def test_the_first_claim_makes_the_operation_running(world: World) -> None:
    """6.4: "`session.updated` (summary with operation `running`) when the worker is ready"."""
    client = world.idle()
    world.send(client)
    with world.telling(client) as story:
        claim = world.claim(client)
    assert story == [["updated running"]]
    row = operation_of(client)
    assert (row.state, row.process_id, row.attempt) == ("running", processes.current_id(), 1)
    assert (claim.attempt, claim.live_sequence, claim.anchor, claim.resumed) == (
        1,
        0,
        world.counters(client)[1],
        False,
    )


def test_the_numbers_of_a_claim_are_nobody_elses(world: World) -> None:
    """0.4: "history sequence (gaps allowed, never reused)": promised ones are taken, and given back only while they are the
    last."""
    client = world.idle()
    claim = world.turn(client)
    promised = range(claim.first_number, claim.first_number + claim.numbers)
    deferred = world.send(client, "meanwhile")
    number = ids.history_number(client.session_id, deferred.history_id)
    assert number == promised.stop
    assert operations.reserve_numbers(claim).start == promised.stop + 1
    world.finish(claim, "done", promised=promised)
    numbers = list(HistoryEntry.objects.order_by("position").values_list("number", flat=True))
    assert len(set(numbers)) == len(numbers)
    assert number in numbers


def test_unused_numbers_are_given_back(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    used = claim.first_number
    said = [assistant("done", used)]
    world.finish(claim, entries=said, promised=range(used + 1, used + claim.numbers))
    assert world.session(client.session_id).next_history == used + 1


def test_two_workers_race_for_an_operation(committed_world: World) -> None:
    """14.2: "Each step is safe to run twice at once": one claim, one event, whoever is told."""
    world = committed_world
    client = world.idle()
    sent = world.send(client)
    assert sent.operation_id is not None
    operation_id = sent.operation_id
    claims = together(*[lambda: operations.claim(client.session_id, operation_id)] * 4)
    assert [claim is not None for claim in claims].count(True) == 1
    assert operation_of(client).attempt == 1


def test_there_is_nothing_to_claim(world: World) -> None:
    client = world.idle()
    assert operations.claim(client.session_id, "op_none") is None
    claim = world.turn(client)
    assert operations.claim(client.session_id, claim.operation_id) is None, "claimed"
    world.propose(claim, "ask")
    assert operations.claim(client.session_id, claim.operation_id) is None, "parked"
    world.cancel(client)
    assert operations.claim(client.session_id, claim.operation_id) is None, "ended"
    with pytest.raises(SessionNotFound):
        operations.claim("ses_unknown", claim.operation_id)


def test_a_claim_is_held_until_another_one_is_made(world: World) -> None:
    """6.6: "Results with a stale operation ID or claim are ignored"."""
    client = world.idle()
    stale = world.turn(client)
    world.propose(stale, "ask")
    world.answer(client, "call_0")
    fresh = world.claim(client)
    assert (fresh.attempt, fresh.resumed) == (2, True)
    before = world.counters(client), world.history(client)

    for act in (
        lambda: world.advance(stale, (0, "late")),
        lambda: world.propose(stale, "run"),
        lambda: world.finish(stale, "late"),
        lambda: operations.commit_said(stale, [assistant("late")]),
        lambda: operations.reserve_numbers(stale),
        lambda: operations.check_held(stale),
    ):
        with pytest.raises(ClaimLost):
            act()
    operations.save_streamed([(stale, [spoken(stale)])])
    assert (world.counters(client), world.history(client)) == before
    assert operation_of(client).streamed is None
    operations.check_held(fresh)


def test_a_claim_of_another_process_is_not_this_ones(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    world.new_process()
    with pytest.raises(ClaimLost):
        world.finish(claim, "done")
    with pytest.raises(ClaimLost):
        operations.check_held(claim)


def test_a_cancelled_claim_says_so(world: World) -> None:
    """6.6: "signal the worker; when it yields, the terminal transaction"."""
    client = world.idle()
    claim = world.turn(client)
    world.cancel(client)
    for act in (
        lambda: world.propose(claim, "run"),
        lambda: world.advance(claim),
        lambda: operations.commit_said(claim, [assistant("late")]),
        lambda: operations.check_held(claim),
    ):
        with pytest.raises(Cancelling):
            act()
    assert operations.moved([claim], ()) == {claim.operation_id}


def test_what_is_said_is_committed_while_the_reply_goes_on(world: World) -> None:
    """6.4: "per finished item: `history.appended`"."""
    client = world.idle()
    claim = world.turn(client)
    with world.telling(client) as story:
        anchor = operations.commit_said(claim, [assistant("first", claim.first_number)])
    assert story == [["appended assistant: first"]]
    assert anchor == world.counters(client)[1]


def test_the_buffer_of_streamed_text_raises_nothing(world: World) -> None:
    """0.3: "the buffer of streamed text [is] no session transaction and raise[s] nothing"."""
    client = world.idle()
    claim = world.turn(client)
    before = world.counters(client)
    operations.save_streamed([(claim, [spoken(claim)])])
    assert world.counters(client) == before
    assert operation_of(client).streamed == encode([spoken(claim)])


# The terminal transaction


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled", "interrupted"])
@pytest.mark.parametrize("desired", ["running", "stopped"])
def test_the_terminal_transaction(world: World, outcome: OperationOutcome, desired: str) -> None:
    """6.5: "One form for all four outcomes… in this order: history.appended; operation.…; when cancelled, moderator.notification;
    state (idle if desired running, else stopped); permission.resolved; job.state_changed", one revision."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run")
    jobs = [
        world.job(client.session_id, status, operation_id=claim.operation_id)
        for status in ("queued", "running")
    ]
    world.job(client.session_id)  # of no operation: left alone
    if desired == "stopped":
        world.stop(client)
    revision = world.counters(client)[0]
    with world.telling(client) as story:
        world.finish(
            claim,
            outcome=outcome,
            error=FAILURE if outcome == "failed" else None,
            interruption="worker_lost" if outcome == "interrupted" else "",
            entries=[assistant("finished")],
            streamed=[spoken(claim)],
        )

    unfinished = [] if outcome == "completed" else ["assistant: half a sent…"]
    observed = "idle" if desired == "running" else "stopped"
    assert story == [
        [
            f"appended {', '.join(['assistant: finished', *unfinished, INTERRUPTED])}",
            f"operation.{outcome}",
            *(["moderator.notification"] if outcome == "cancelled" else []),
            f"state {desired}/{observed}",
            "job.state_changed cancelled",
            "job.state_changed interrupted",
        ]
    ]
    assert world.counters(client)[0] == revision + 1
    row = operation_of(client)
    assert (row.state, bool(row.process_id), row.parked, row.streamed) == (outcome, False, False, None)
    assert (row.interruption, row.retryable) == (
        ("worker_lost", True) if outcome == "interrupted" else ("", False)
    )
    assert world.session(client.session_id).active_operation is None
    for job in jobs:
        job.refresh_from_db()
    assert [job.status for job in jobs] == ["cancelled", "interrupted"]
    assert world.session(client.session_id).failure is None, "the session does **not** become failed (4.4)"


def test_the_summary_of_an_ended_operation(world: World) -> None:
    """6.5: "Provider or worker failure → operation.failed with the error"."""
    client = world.idle()
    world.finish(world.turn(client), outcome="failed", error=FAILURE)
    event = next(event for event in world.events(client.session_id) if event.kind == "operation.failed")
    assert msgspec.json.decode(event.payload)["state"] == {
        "type": "failed",
        "error": {"code": "internal_error", "message": "the model is away", "retryable": True, "data": {}},
    }


def test_the_incomplete_text_comes_from_the_saved_buffer(world: World) -> None:
    """6.5: "streamed text that is in no entry yet, as an assistant entry with ID and status `incomplete`" — saved by a worker that
    is gone, under the id that was promised to the readers of the stream."""
    client = world.idle()
    claim = world.turn(client)
    operations.save_streamed([(claim, [spoken(claim), spoken(claim, "", offset=1)])])
    operations.interrupt(
        client.session_id, claim.operation_id, processes.current_id(), operations.WORKER_LOST
    )

    entry = HistoryEntry.objects.latest("position")
    item = msgspec.json.decode(entry.payload, type=OutputMessageItem)
    assert (entry.number, item.id, item.status) == (claim.first_number, "msg_7", "incomplete")
    assert world.history(client)[2:] == ["assistant: half a sent…"], "an item without text is no entry"
    assert operation_of(client).interruption == "worker_lost"


def test_a_saved_buffer_may_be_older_than_the_history(world: World) -> None:
    """6.5: only text "that is in no entry yet": the item was finished and committed after it was last saved."""
    client = world.idle()
    claim = world.turn(client)
    operations.save_streamed([(claim, [spoken(claim), spoken(claim, "the next", offset=1)])])
    operations.commit_said(claim, [assistant("half a sentence, finished", claim.first_number)])
    operations.interrupt(
        client.session_id, claim.operation_id, processes.current_id(), operations.WORKER_LOST
    )
    assert world.history(client)[2:] == ["assistant: half a sentence, finished", "assistant: the next…"]


def test_what_may_be_committed_already_is_not_committed_twice(world: World) -> None:
    """6.4: "One entry is committed once: the same ID with identical payload is a no-op" — after a commit whose answer was lost."""
    client = world.idle()
    claim = world.turn(client)
    said = [assistant("said", claim.first_number)]
    operations.commit_said(claim, said)
    world.finish(claim, entries=[*said, assistant("more", claim.first_number + 1)], in_doubt=True)
    assert world.history(client)[2:] == ["assistant: said", "assistant: more"]


def test_trailing_incomplete_reasoning_is_dropped(world: World) -> None:
    """6.5: "Trailing incomplete reasoning is dropped"."""
    client = world.idle()
    claim = world.turn(client)
    thought = history.entry_of(encode(ReasoningItem(id="rs_1", summary=())))
    world.finish(claim, outcome="cancelled", entries=[thought])
    assert world.history(client)[1:] == ["user: hello"]


def test_every_call_has_an_output_afterwards(world: World) -> None:
    """6.5: "an error output for every call without one… So the next request is always well formed": running, waiting, returned
    behind one that has not, and asked for in the last reply but never proposed."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, "run", "ask", "run")
    world.advance(claim, (2, "returned"))
    world.finish(claim, outcome="failed", error=FAILURE, entries=[called("call_9")])
    assert world.history(client)[2:] == [
        "call: call_0",
        "call: call_1",
        "call: call_2",
        "call: call_9",
        INTERRUPTED,
        NEVER_RUN.format(1),
        "output: call_2: returned",
        NEVER_RUN.format(9),
    ]
    assert set(ToolCall.objects.values_list("state", "committed")) == {("done", True)}


def test_a_call_with_an_unheard_of_id_gets_its_output_too(committed_world: World) -> None:
    """6.5, 9.1: call ids are the model's; a very long one, or one with a NUL, must end its turn like any other."""
    world = committed_world
    client = world.idle()
    claim = world.turn(client)
    strange = ["x" * 10_000, "a\0b"]
    world.finish(claim, entries=[called(call_id) for call_id in strange])
    assert world.history(client)[2:] == [
        *(f"call: {call_id}" for call_id in strange),
        *(f"output: {call_id}: The call was not run: the operation ended first." for call_id in strange),
    ]


def test_a_session_that_runs_no_operation_ends_none(world: World) -> None:
    client = world.idle()
    with pytest.raises(OperationNotFound), ledger.session_txn(client.session_id, system("test")) as txn:
        operations.end(txn, Ending("completed"))


# Cancelling


def test_cancel_names_the_active_operation(world: World) -> None:
    """F8: "cancel with another ID; when idle; twice: `conflict`; `operation_not_found`; success without change"."""
    client = world.idle()
    claim = world.turn(client)
    with pytest.raises(Conflict):
        world.cancel(client, "op_another")
    world.cancel(client)
    with world.telling(client) as story:
        world.cancel(client, claim.operation_id)
    assert story == []
    world.finish(claim)
    with pytest.raises(OperationNotFound):
        world.cancel(client, claim.operation_id)


def test_a_result_behind_a_cancel_is_recorded_as_cancelled(world: World) -> None:
    """6.6: "cancel first → a later normal result is recorded as cancelled"; what was said is kept (F7)."""
    client = world.idle()
    claim = world.turn(client)
    with world.telling(client) as story:
        world.cancel(client)
        world.finish(claim, "all of it")
    assert story == [
        ["updated cancelling"],
        [
            "appended assistant: all of it",
            "operation.cancelled",
            "moderator.notification",
            "state running/idle",
        ],
    ]


def test_a_failure_behind_a_cancel_is_recorded_as_cancelled(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    world.cancel(client)
    world.finish(claim, outcome="failed", error=FAILURE)
    row = operation_of(client)
    assert (row.state, row.error, row.retryable) == ("cancelled", None, False)


def test_a_cancel_of_an_unclaimed_operation_ends_it(world: World) -> None:
    """6.6: "For an operation that no worker holds (parked or not yet claimed) the command itself commits `cancelling` and then the
    terminal transaction"; the answer is the state after both."""
    client = world.idle()
    world.send(client)
    answer = world.cancel(client)
    assert answer.session.observed_state.__class__.__name__ == "ObservedIdle"
    assert (answer.revision, answer.latest_event_sequence) == world.counters(client)


def test_cancel_and_result_race(committed_world: World) -> None:
    """6.6: "Races, decided by the session's lock": exactly one terminal event, whoever comes first."""
    world = committed_world
    client = world.idle()
    claim = world.turn(client)

    def cancel() -> str:
        try:
            world.cancel(client, claim.operation_id)
        except OperationNotFound:
            return "too late"
        return "cancelled"

    def finish() -> str:
        world.finish(claim, "done")
        return "finished"

    first, _ = together(cancel, finish)
    terminal = [
        event.kind for event in world.events(client.session_id) if event.kind.startswith("operation.")
    ]
    expected = "operation.completed" if first == "too late" else "operation.cancelled"
    assert terminal == ["operation.started", expected]
    assert world.history(client)[2:] == ["assistant: done"]
    assert world.states(client) == ("running", "idle")


# Lost and unloadable


def test_what_a_lost_worker_had_not_begun_is_given_back(world: World) -> None:
    """14.4: "no model request sent and no tool started under its claim → unclaimed and queued again, no event; the third time
    as the next row"."""
    client = world.idle()
    claim = world.turn(client)
    assert world.propose(claim, "ask", "ask").parked
    world.answer(client, "call_0")
    for _ in range(2):
        claim = world.claim(client)
        with world.telling(client) as story:
            operations.interrupt(
                client.session_id, claim.operation_id, processes.current_id(), operations.WORKER_LOST
            )
        assert story == []
        assert operation_of(client).process is None
        assert world.dispatched.operations[-1] == claim.operation_id
        with pytest.raises(ClaimLost):
            operations.check_held(claim)
    world.claim(client)
    with world.telling(client) as story:
        operations.interrupt(
            client.session_id, claim.operation_id, processes.current_id(), operations.WORKER_LOST
        )
    assert "operation.interrupted" in story[0]


def test_what_goes_on_after_it_was_given_back_is_at_work(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    assert world.propose(claim, "ask").parked
    world.answer(client, "call_0")
    claim = world.claim(client)
    assert [row.call_id for row in world.advance(claim).start] == ["call_0"]
    operations.interrupt(
        client.session_id, claim.operation_id, processes.current_id(), operations.WORKER_LOST
    )
    assert operation_of(client).state == "interrupted"


def test_what_a_lost_worker_held_is_interrupted(world: World) -> None:
    """14.4: "`operation.interrupted`, reason `worker_lost`, retryable true; one in `cancelling` ends cancelled instead"."""
    client = world.idle()
    lost = world.turn(client)
    with world.telling(client) as story:
        operations.interrupt(client.session_id, lost.operation_id, "prc_other", operations.WORKER_LOST)
        assert story == []
        operations.interrupt(
            client.session_id, lost.operation_id, processes.current_id(), operations.WORKER_LOST
        )
        operations.interrupt(
            client.session_id, lost.operation_id, processes.current_id(), operations.WORKER_LOST
        )
    assert story == [["operation.interrupted", "state running/idle"]]

    cancelled = world.turn(client)
    world.cancel(client)
    with world.telling(client) as story:
        operations.interrupt(
            client.session_id, cancelled.operation_id, processes.current_id(), operations.WORKER_LOST
        )
    assert story == [["operation.cancelled", "moderator.notification", "state running/idle"]]


def test_an_operation_of_an_unloadable_session_fails(world: World) -> None:
    """14.4: "an operation that a worker claims, parked ones included, ends failed with it after `session.error`"."""
    client = world.idle()
    sent = world.send(client)
    refusal = PromptUnavailable("damaged")
    with world.telling(client) as story:
        operations.fail_unloadable(client.session_id, sent.operation_id or "", refusal)
        operations.fail_unloadable(client.session_id, sent.operation_id or "", refusal)
    assert story == [["session.error"], ["operation.failed", "state running/idle"]]

    with world.telling(client) as story:
        again = world.send(client)
        operations.fail_unloadable(client.session_id, again.operation_id or "", refusal)
    assert "session.error" not in [event for revision in story for event in revision], "once per cause (8.1)"


def test_a_claimed_operation_is_its_workers(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    operations.fail_unloadable(client.session_id, claim.operation_id, PromptUnavailable("damaged"))
    assert world.states(client) == ("running", "running_turn")


def test_a_transient_session_goes_with_its_last_turn(world: World) -> None:
    """4.2: transient sessions: "delete them when they stop"."""
    client = world.idle(transient=True, liveness=world.owner_bound())
    claim = world.turn(client)
    world.stop(client)
    assert world.session(client.session_id).archived_at is None
    world.finish(claim, "done")
    assert world.session(client.session_id).archived_at is not None
    with pytest.raises(SessionNotFound):
        world.start(client)


def test_a_turn_begins_in_the_generation_of_its_session(world: World) -> None:
    client = world.idle()
    Session.objects.update(generation=4)
    claim = world.turn(client)
    assert claim.generation == operation_of(client).generation == 4
