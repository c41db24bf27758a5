"""The deferred queue: order, bounds, adoption, what is left over when an operation ends (behaviour 6.2, 6.3)."""

from __future__ import annotations

import pytest

from sessions_app import history, ids, ledger, limits
from sessions_app.commands import entries, operations
from sessions_app.errors import InternalError, ResourceLimit, to_error
from sessions_app.limits import ServerSettings
from sessions_app.models import HistoryEntry, Session
from sessions_app.participants import OperationOutcome
from tests.support.world import Client, World, together


def busy(world: World) -> Client:
    """Open a session with a turn that a worker holds, and two messages behind it."""
    client = world.idle()
    world.turn(client, "first")
    world.send(client, "second")
    world.send(client, "third")
    return client


def end(world: World, client: Client, outcome: OperationOutcome) -> None:
    """Let the worker end the active turn."""
    with ledger.session_txn(client.session_id, client.caller) as txn:
        error = to_error(InternalError("broken")) if outcome == "failed" else None
        operations.end(txn, operations.Ending(outcome, error=error))


@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_what_is_left_over_starts_the_next_turn(world: World, outcome: OperationOutcome) -> None:
    """6.3.1: "after *completed* or *failed*…: adopt all and start a `user_submit` turn (events history.appended, operation.started,
    state) in a follow-up transaction"."""
    client = busy(world)
    world.dispatched.operations.clear()
    with world.telling(client) as story:
        end(world, client, outcome)
    assert story == [
        [f"operation.{outcome}", "state running/idle"],
        ["appended user: second, user: third", "operation.started", "state running/running_turn"],
    ]
    operation = world.session(client.session_id).active_operation
    assert operation is not None
    assert operation.reason == "user_submit"
    assert world.dispatched.operations == [operation.id]
    assert world.deferred(client) == []


@pytest.mark.parametrize("outcome", ["cancelled", "interrupted"])
def test_what_is_left_over_waits_after_an_end_by_force(world: World, outcome: OperationOutcome) -> None:
    """6.3.2: "after *cancelled* or *interrupted*: keep them queued, stay idle"; 6.3.3: "whenever a new message starts a turn, adopt
    queued entries **before** it in the same transaction"."""
    client = busy(world)
    end(world, client, outcome)
    assert world.states(client) == ("running", "idle")
    assert world.deferred(client) == ["user: second", "user: third"]
    with world.telling(client) as story:
        sent = world.send(client, "fourth")
    assert story == [
        [
            "appended user: second, user: third, user: fourth",
            "operation.started",
            "state running/running_turn",
        ]
    ]
    newest = HistoryEntry.objects.latest("position")
    assert sent.history_id == ids.history_id(client.session_id, newest.number)


@pytest.mark.parametrize("obstacle", ["stopped", "halted"])
def test_nothing_follows_in_a_session_that_takes_no_messages(world: World, obstacle: str) -> None:
    """6.3.1: only "if desired is running and not halted/failed"."""
    client = busy(world)
    if obstacle == "stopped":
        world.stop(client)
    else:
        Session.objects.update(halted=True)
    end(world, client, "completed")
    assert world.session(client.session_id).active_operation is None
    assert world.deferred(client) == ["user: second", "user: third"]


def test_an_entry_keeps_its_id_when_it_is_adopted(world: World) -> None:
    """6.3: "all entries move, in order and with the same IDs, to canonical history"."""
    client = world.idle()
    world.turn(client)
    sent = [world.send(client, text) for text in ("second", "third")]
    end(world, client, "completed")
    rows = list(HistoryEntry.objects.order_by("-position")[:2])[::-1]
    assert [ids.history_id(client.session_id, row.number) for row in rows] == [one.history_id for one in sent]


def test_the_queue_has_a_length(world: World) -> None:
    """6.2: "full at `max_deferred_entries` or 4 MiB → `resource_limit`, retryable"; 11.4: a new key succeeds later."""
    client = world.idle()
    claim = world.turn(client)
    with limits.using(ServerSettings(max_deferred_entries=2)):
        world.send(client, "second")
        world.send(client, "third")
        before = world.counters(client)
        with pytest.raises(ResourceLimit) as refused:
            world.send(client, "fourth")
        assert refused.value.retryable
        assert world.counters(client) == before
        world.finish(claim, "done")
        assert world.send(client, "fourth").disposition == "deferred"
    assert world.deferred(client) == ["user: fourth"]


def test_the_queue_has_a_size(world: World) -> None:
    """16: "deferred entries per session: 256, 4 MiB together"."""
    client = world.idle()
    world.turn(client)
    half = "x" * (limits.MAX_ENTRY_BYTES // 2)
    world.send(client, half)
    with pytest.raises(ResourceLimit) as refused:
        world.send(client, half)
    assert refused.value.retryable
    assert world.send(client, half[:-1000]).disposition == "deferred"


def test_a_full_queue_takes_as_many_as_fit(committed_world: World) -> None:
    """0.1: racing writers count under the lock: never more than the bound."""
    world = committed_world
    client = world.idle()
    world.turn(client)

    def send() -> bool:
        try:
            world.send(client, "more")
        except ResourceLimit:
            return False
        return True

    with limits.using(ServerSettings(max_deferred_entries=2)):
        assert together(*[send] * 4).count(True) == 2
    assert len(world.deferred(client)) == 2


def test_prompts_that_wait_for_the_end_of_a_turn_are_not_adopted(world: World) -> None:
    """6.3: "Prompts queued through OCP wait in the same queue…: none is adopted inside a running turn or by another message"."""
    client = world.idle()
    claim = world.turn(client)
    with ledger.session_txn(client.session_id, client.caller) as txn:
        entry = history.user_message("of its own")
        entries.defer(txn, entry, client.caller, adopt=entries.TURN_END, origin="ocp", key="k")
    world.send(client, "second")
    world.propose(claim, "deny")
    assert world.deferred(client) == ["user: of its own"]
    with world.telling(client) as story:
        world.finish(claim, "done")
    assert story == [["appended assistant: done", "operation.completed", "state running/idle"]]
    world.send(client, "third")
    assert world.deferred(client) == ["user: of its own"]


def test_large_histories_are_told_in_several_events(world: World) -> None:
    """8.1, 16: "windows in events … 8 MiB": no event holds more, however much is appended at once."""
    client = world.idle()
    before = world.counters(client)[1]
    entry = history.user_message("x" * (3 * limits.MIB))
    with ledger.session_txn(client.session_id, client.caller) as txn:
        entries.append_and_tell(txn, [entry] * 5)
    events = world.events(client.session_id, before)
    assert [event.kind for event in events] == ["history.appended"] * 3
    assert all(len(event.payload) <= limits.MAX_WINDOW_BYTES for event in events)
    assert len({event.revision for event in events}) == 1


def test_a_history_id_is_never_used_again(world: World) -> None:
    """0.4: "history sequence (per session namespace, gaps allowed, never reused)"."""
    client = world.idle()
    with ledger.session_txn(client.session_id, client.caller) as txn:
        first = entries.take_number(txn, 5)
    with ledger.session_txn(client.session_id, client.caller) as txn:
        assert entries.take_number(txn) == first + 5
