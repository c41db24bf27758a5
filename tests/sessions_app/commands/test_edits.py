"""Deleting an entry of a history (behaviour 4.6, 9.1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sessions_app import history, ids
from sessions_app.commands import edits, operations
from sessions_app.encoding import encode
from sessions_app.errors import Conflict, InvalidRequest, InvalidState, PermissionDenied, Refusal
from sessions_app.models import HistoryEntry, Session
from sessions_app.records import (
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
)
from tests.support.replay_law import replay_law
from tests.support.world import Client, World

HISTORY = "canonical_history"


def with_entries(world: World, *payloads: bytes) -> tuple[Client, list[int]]:
    """Make an idle session with a turn of these items; their history sequences."""
    client = world.idle()
    claim = world.turn(client)
    said = [history.entry_of(payload, claim.first_number + index) for index, payload in enumerate(payloads)]
    operations.commit_said(claim, said)
    world.finish(claim)
    return client, [entry.number for entry in said if entry.number is not None]


def call(name: str) -> bytes:
    return encode(FunctionCallItem(name="run", arguments="{}", call_id=name))


def output(name: str) -> bytes:
    return encode(FunctionCallOutputItem(call_id=name, output="done"))


def custom_call(name: str) -> bytes:
    return encode(CustomToolCallItem(name="run", input="", call_id=name))


def custom_output(name: str) -> bytes:
    return encode(CustomToolCallOutputItem(call_id=name, output="custom"))


def left(client: Client, numbers: list[int]) -> list[int]:
    """Return which of the entries are still there, by their place."""
    there = set(HistoryEntry.objects.filter(session=client.session_id).values_list("number", flat=True))
    return [index for index, number in enumerate(numbers) if number in there]


def test_the_first_entry_goes_and_everybody_is_told(world: World) -> None:
    """9.1: "One transaction, one event `history.replaced` with the remaining window. Revision +1, sequence +1"."""
    client, _ = with_entries(world, call("a"), output("a"))
    before = world.counters(client)
    with replay_law(client.session_id, HISTORY), world.telling(client) as story:
        changed = world.delete_entry(client, 0)

    assert story == [["replaced by user: hello, call: a, output: a: done"]]
    assert (changed.revision, changed.latest_event_sequence) == (before[0] + 1, before[1] + 1)
    assert world.counters(client) == (changed.revision, changed.latest_event_sequence)
    assert HistoryEntry.objects.filter(session=client.session_id, initial=True).count() == 0


@pytest.mark.parametrize("deleted", [0, 1])
def test_a_call_and_its_output_go_together(world: World, deleted: int) -> None:
    client, numbers = with_entries(world, call("a"), output("a"), call("b"), output("b"))
    with replay_law(client.session_id, HISTORY):
        world.delete_entry(client, numbers[deleted])
    assert left(client, numbers) == [2, 3]


@pytest.mark.parametrize(
    ("deleted", "expected"),
    [(0, [1, 2, 3]), (1, [0, 2]), (2, [0, 1, 3]), (3, [0, 2])],
    ids=["first call", "second call", "other family", "output"],
)
def test_the_partner_is_the_nearest_of_its_family(world: World, deleted: int, expected: list[int]) -> None:
    """9.1: "searching in the right direction and stopping at another same-direction item with that ID"."""
    world.break_laws()  # The first call has no output of its own.
    client, numbers = with_entries(world, call("a"), call("a"), custom_call("a"), output("a"))
    world.delete_entry(client, numbers[deleted])
    assert left(client, numbers) == expected


def test_a_custom_pair(world: World) -> None:
    client, numbers = with_entries(world, custom_call("a"), custom_output("a"))
    world.delete_entry(client, numbers[1])
    assert left(client, numbers) == []


def running(world: World, client: Client) -> None:
    world.send(client)


def queued(world: World, client: Client) -> None:
    Session.objects.filter(id=client.session_id).update(observed="queued_for_slot")


@pytest.mark.parametrize(
    ("prepare", "refusal"), [(running, Conflict), (queued, InvalidState)], ids=["running", "queued"]
)
def test_a_session_that_is_not_at_rest(
    world: World, prepare: Callable[[World, Client], None], refusal: type[Refusal]
) -> None:
    client = world.idle()
    prepare(world, client)
    before = world.counters(client)
    with pytest.raises(refusal):
        world.delete_entry(client, 0)
    assert world.counters(client) == before


def test_the_checks_come_in_their_order(world: World) -> None:
    """4.6: "revision → conflict; busy → conflict; not idle/stopped → invalid_state; unknown ID → invalid_request"."""
    client = world.idle()
    revision = world.counters(client)[0]
    with pytest.raises(Conflict, match="revision"):
        world.delete_entry(client, 99, revision - 1)
    with pytest.raises(InvalidRequest):
        world.delete_entry(client, 99)
    world.send(client)
    with pytest.raises(Conflict, match="revision"):
        world.delete_entry(client, 99, revision)
    with pytest.raises(Conflict, match="operation"):
        world.delete_entry(client, 99)


def test_an_entry_of_another_session_is_unknown(world: World) -> None:
    client, other = world.idle(), world.idle()
    call = world.call(client.caller, "session.delete_history")
    with pytest.raises(InvalidRequest):
        edits.delete_history(
            call, client.session_id, ids.history_id(other.session_id, 0), world.counters(client)[0]
        )


def test_the_key_gives_the_same_answer_again(world: World) -> None:
    client, numbers = with_entries(world, call("a"), output("a"))
    revision = world.counters(client)[0]
    once = world.delete_entry(client, numbers[0], revision, key="again")
    assert world.delete_entry(client, numbers[0], revision, key="again") == once
    assert world.counters(client)[0] == once.revision


def test_a_reader_deletes_nothing(world: World) -> None:
    writer = world.idle()
    reader = world.attach(writer.session_id, "read_only")
    with pytest.raises(PermissionDenied):
        world.delete_entry(reader, 0)
