"""The transition table (behaviour 4.4): what start, stop, send and cancel do in every state, event by event."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from permissions_app.decisions import PermissionGate
from sessions_app import pinned
from sessions_app.commands import messages
from sessions_app.encoding import encode
from sessions_app.errors import (
    InvalidState,
    OperationNotFound,
    PromptUnavailable,
    Refusal,
    WorkspaceUnavailable,
    to_error,
)
from sessions_app.models import Session
from tests.support.world import Client, Story, World

Setup = Callable[[World], Client]
Act = Callable[[World, Client], object]

# The states of the table, each reached by the commands that lead there.


def stopped(world: World) -> Client:
    return world.create()


def idle(world: World) -> Client:
    return world.idle()


def starting_turn(world: World) -> Client:
    client = world.idle()
    world.send(client)
    return client


def running_turn(world: World) -> Client:
    client = world.idle()
    world.turn(client)
    return client


def stopping_turn(world: World) -> Client:
    client = running_turn(world)
    world.stop(client)
    return client


def cancelling_turn(world: World) -> Client:
    client = running_turn(world)
    world.cancel(client)
    return client


def waiting(world: World) -> Client:
    client = world.idle()
    world.propose(world.turn(client), "write", gate=PermissionGate())
    return client


def failed(world: World) -> Client:
    client = world.idle()
    Session.objects.filter(id=client.session_id).update(
        observed="failed", failure=encode(to_error(InvalidState("broken")))
    )
    return client


def halted(world: World) -> Client:
    client = world.idle()
    Session.objects.filter(id=client.session_id).update(halted=True, halt_reason="enough")
    return client


# What is done in them.


def start(world: World, client: Client) -> object:
    return world.start(client)


def stop_gracefully(world: World, client: Client) -> object:
    return world.stop(client)


def stop_cancelling(world: World, client: Client) -> object:
    return world.stop(client, "cancel")


def send(world: World, client: Client) -> object:
    return world.send(client, "more")


def cancel(world: World, client: Client) -> object:
    return world.cancel(client)


ENDED_UNHELD = ["operation.cancelled", "moderator.notification"]
"""How an operation that no worker holds ends at once (6.6); the state follows."""


class Row(NamedTuple):
    """One row of the table."""

    setup: Setup
    act: Act
    states: tuple[str, str]
    """Desired and observed afterwards."""
    story: Story = []  # noqa: RUF012 - never written to


ROWS = [
    Row(stopped, start, ("running", "idle"), [["state running/starting"], ["state running/idle"]]),
    Row(idle, start, ("running", "idle")),
    Row(running_turn, start, ("running", "running_turn")),
    Row(waiting, start, ("running", "waiting_for_permission")),
    Row(stopping_turn, start, ("running", "running_turn"), [["state running/running_turn"]]),
    Row(
        idle,
        send,
        ("running", "running_turn"),
        [["appended user: more", "operation.started", "state running/running_turn"]],
    ),
    Row(running_turn, send, ("running", "running_turn"), [["deferred user: more"]]),
    Row(cancelling_turn, send, ("running", "running_turn"), [["deferred user: more"]]),
    Row(waiting, send, ("running", "waiting_for_permission"), [["deferred user: more"]]),
    Row(idle, stop_gracefully, ("stopped", "stopped"), [["state stopped/stopped"]]),
    Row(idle, stop_cancelling, ("stopped", "stopped"), [["state stopped/stopped"]]),
    Row(failed, stop_gracefully, ("stopped", "stopped"), [["state stopped/stopped"]]),
    Row(stopped, stop_gracefully, ("stopped", "stopped")),
    Row(stopped, stop_cancelling, ("stopped", "stopped")),
    Row(running_turn, stop_gracefully, ("stopped", "running_turn"), [["state stopped/running_turn"]]),
    Row(stopping_turn, stop_gracefully, ("stopped", "running_turn")),
    Row(running_turn, stop_cancelling, ("stopped", "running_turn"), [["state stopped/running_turn"]]),
    Row(stopping_turn, stop_cancelling, ("stopped", "running_turn"), [["state stopped/running_turn"]]),
    Row(cancelling_turn, stop_cancelling, ("stopped", "running_turn"), [["state stopped/running_turn"]]),
    Row(
        starting_turn,
        stop_cancelling,
        ("stopped", "stopped"),
        [["state stopped/running_turn"], [*ENDED_UNHELD, "state stopped/stopped"]],
    ),
    Row(
        waiting,
        stop_cancelling,
        ("stopped", "stopped"),
        [
            ["state stopped/waiting_for_permission"],
            [
                "appended output: call_0: The call was not run: the operation ended first.",
                *ENDED_UNHELD,
                "state stopped/stopped",
                "permission.resolved cancelled",
            ],
        ],
    ),
    Row(running_turn, cancel, ("running", "running_turn"), [["updated cancelling"]]),
    Row(cancelling_turn, cancel, ("running", "running_turn")),
    Row(
        starting_turn,
        cancel,
        ("running", "idle"),
        [["updated cancelling"], [*ENDED_UNHELD, "state running/idle"]],
    ),
    Row(
        waiting,
        cancel,
        ("running", "idle"),
        [
            ["updated cancelling"],
            [
                "appended output: call_0: The call was not run: the operation ended first.",
                *ENDED_UNHELD,
                "state running/idle",
                "permission.resolved cancelled",
            ],
        ],
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.setup.__name__}-{row.act.__name__}")
def test_transition(world: World, row: Row) -> None:
    """4.4: from a state, by a trigger, to a state, with these events in this order."""
    client = row.setup(world)
    revision, _ = world.counters(client)
    with world.telling(client) as story:
        answer = row.act(world, client)

    assert story == row.story
    assert world.states(client) == row.states
    assert world.counters(client)[0] == revision + len(row.story)
    assert isinstance(answer, messages.Changed | messages.Sent)
    assert (answer.revision, answer.latest_event_sequence) == world.counters(client)


@pytest.mark.parametrize(
    ("setup", "act", "refused", "retryable"),
    [
        (failed, start, InvalidState, False),
        (failed, send, InvalidState, False),
        (halted, send, InvalidState, False),
        (stopped, send, InvalidState, True),
        (stopping_turn, send, InvalidState, True),
        (stopped, cancel, OperationNotFound, False),
        (idle, cancel, OperationNotFound, False),
    ],
)
def test_refused_transition(
    world: World, setup: Setup, act: Act, refused: type[Refusal], retryable: bool
) -> None:
    """4.4, 4.6: what a state does not allow is refused and changes nothing."""
    client = setup(world)
    before = world.counters(client), world.states(client)
    with pytest.raises(refused) as refusal:
        act(world, client)
    assert refusal.value.retryable is retryable
    assert (world.counters(client), world.states(client)) == before


@pytest.mark.parametrize("observed", ["queued_for_slot", "starting"])
def test_message_to_a_session_that_is_being_loaded(world: World, observed: str) -> None:
    """4.4: "stopped, queued_for_slot, starting | send | unchanged; `invalid_state`, retryable"."""
    client = world.idle()
    Session.objects.filter(id=client.session_id).update(observed=observed)
    with pytest.raises(InvalidState) as refused:
        world.send(client)
    assert refused.value.retryable


@pytest.mark.parametrize("mode", ["graceful", "cancel"])
def test_jobs_follow_a_stop_that_cancels(world: World, mode: str) -> None:
    """4.5: "Graceful stop leaves jobs alone; cancel stop turns every queued/running/waiting job into `cancelled` in the same
    transaction"."""
    client = world.idle()
    jobs = [
        world.job(client.session_id, status)
        for status in ("queued", "running", "waiting_permission", "succeeded")
    ]
    with world.telling(client) as story:
        world.stop(client, "cancel" if mode == "cancel" else "graceful")

    ended = ["job.state_changed cancelled"] * 3 if mode == "cancel" else []
    assert story == [["state stopped/stopped", *ended]]
    for job in jobs:
        job.refresh_from_db()
    unfinished = ["cancelled"] * 3 if mode == "cancel" else ["queued", "running", "waiting_permission"]
    assert [job.status for job in jobs] == [*unfinished, "succeeded"]


def test_a_graceful_stop_escalates(world: World) -> None:
    """4.5: "A graceful stop followed by a cancel stop is valid and escalates", jobs included, whatever cancelled the turn."""
    client = stopping_turn(world)
    world.cancel(client)
    world.job(client.session_id)
    with world.telling(client) as story:
        world.stop(client, "cancel")
    assert story == [["job.state_changed cancelled"]]


def test_jobs_are_cancelled_before_the_operation_ends(world: World) -> None:
    """4.4: "stop cancel | state; [job.state_changed…]; then the cancelled sequence (6.6)"."""
    client = starting_turn(world)
    world.job(client.session_id)
    with world.telling(client) as story:
        world.stop(client, "cancel")
    assert story == [
        ["state stopped/running_turn", "job.state_changed cancelled"],
        [*ENDED_UNHELD, "state stopped/stopped"],
    ]


def test_a_stopping_session_stops_with_its_turn(world: World) -> None:
    """F9: "stop graceful during a turn: desired stopped at once, observed still running; after the answer stopped"."""
    client = world.idle()
    claim = world.turn(client)
    world.stop(client)
    with world.telling(client) as story:
        world.finish(claim, "done")
    assert story == [["appended assistant: done", "operation.completed", "state stopped/stopped"]]


def test_deferred_messages_stay_deferred_through_stop_and_start(world: World) -> None:
    """4.5: "Deferred messages stay deferred"; 6.3.3: a new message adopts them before itself."""
    client = world.idle()
    claim = world.turn(client, "one")
    world.send(client, "two")
    world.stop(client)
    world.finish(claim, "done")
    assert world.deferred(client) == ["user: two"]
    world.start(client)
    world.send(client, "three")
    assert world.history(client)[1:] == ["user: one", "assistant: done", "user: two", "user: three"]


def test_start_needs_the_workspace_even_where_it_changes_nothing(world: World) -> None:
    """4.5: "start: writer check → workspace available → already queued? answer"."""
    client = world.idle()
    (world.folder / "project").rmdir()
    with pytest.raises(WorkspaceUnavailable):
        world.start(client)


def test_a_missing_workspace_is_told_once_per_cause(world: World) -> None:
    """8.1: "session.error | a session is found unloadable; once per cause"; 14.4: start answers that error."""
    client = world.create()
    root = world.folder / "project"
    root.rmdir()
    with world.telling(client) as story:
        for _ in range(2):
            with pytest.raises(WorkspaceUnavailable):
                world.start(client)
    assert story == [["session.error"]]

    root.mkdir()
    with world.telling(client) as story:
        world.start(client)
        world.stop(client)
        root.rmdir()
        with pytest.raises(WorkspaceUnavailable):
            world.start(client)
    assert [event for revision in story for event in revision][-1] == "session.error", (
        "it had loaded in between"
    )


def test_a_replayed_refusal_tells_nothing_again(world: World) -> None:
    """11.3: a replay has no effect but its answer."""
    client = world.create()
    root = world.folder / "project"
    root.rmdir()
    with pytest.raises(WorkspaceUnavailable):
        world.start(client, key="once")
    root.mkdir()
    world.start(client)
    with world.telling(client) as story, pytest.raises(WorkspaceUnavailable):
        world.start(client, key="once")
    assert story == []


def test_a_damaged_prompt_is_refused_at_start_and_at_attach(world: World) -> None:
    """14.4: "prompt revision missing or damaged → `prompt_unavailable`… attach and start answer that error", told once."""
    client = world.create()
    revision = world.session(client.session_id).prompt_revision
    type(revision).objects.filter(id=revision.id).update(manifest=b'{"root":"demo.chatmd","sources":{}}')
    pinned.forget()
    with world.telling(client) as story:
        with pytest.raises(PromptUnavailable):
            world.attach(client.session_id)
        with pytest.raises(PromptUnavailable):
            world.start(client)
    assert story == [["session.error"]]
    assert world.states(client) == ("stopped", "stopped")
