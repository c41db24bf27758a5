"""What is shown of a session, and that nothing is shown twice."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ochat_client import ConnectionLost, Lost, Projection, Replaced, Restored
from ochat_client.projection import Live
from ochat_site.terminal.transcript import TAIL, Transcript
from sessions_app.events import EventKind
from sessions_app.records import (
    Error,
    OperationCancelled,
    OperationCompleted,
    OperationFailed,
    OperationInterrupted,
    OperationState,
)
from tests.ochat_client.agent import Agent, entry, raw
from tests.ochat_site.terminal.script import Script


class Watched:
    """An agent whose session is shown on a screen."""

    def __init__(self, agent: Agent | None = None, *, streams: bool = True) -> None:
        self.agent = agent or Agent()
        self.projection = Projection(self.agent.snapshot())
        self.screen = Script(streams=streams)
        self.transcript = Transcript(self.screen, self.projection)

    def opened(self) -> list[str]:
        """Show the snapshot, as at the beginning."""
        self.projection.replace(self.agent.snapshot())
        self.transcript.show(Replaced(self.agent.snapshot()))
        return self.screen.shown

    def news(self) -> list[str]:
        """Show the events since, and return the lines that they added."""
        before = len(self.screen.shown)
        for event in self.agent.log[self.projection.sequence :]:
            applied = self.projection.apply(event)
            assert applied is not None
            self.transcript.show(applied)
        return self.screen.shown[before:]

    def live(self, event: Any) -> None:
        """Show a live event."""
        applied = self.projection.apply_live(event)
        assert isinstance(applied, Live)
        self.transcript.show(applied)


def coming(agent: Agent) -> str:
    return entry(agent.numbers).id


def test_what_was_typed_here_is_not_repeated_and_what_others_said_is_shown() -> None:
    watched = Watched()
    watched.opened()
    watched.transcript.expect("hello")
    watched.agent.send("hello")
    assert watched.news() == []
    watched.agent.send("me too")
    assert watched.news() == ["· Queued: me too"]
    watched.agent.adopt()
    assert watched.news() == ["· Taken up: me too"]
    watched.agent.append(entry(watched.agent.number(), "from elsewhere"))
    assert watched.news() == ["> from elsewhere"]


def test_a_message_that_was_not_taken_is_expected_no_more() -> None:
    watched = Watched()
    watched.transcript.expect("hello")
    watched.transcript.unexpect("hello")
    watched.agent.send("hello")
    assert watched.news() == ["> hello"]


def test_an_answer_is_shown_as_it_streams_and_once() -> None:
    watched = Watched()
    watched.agent.send("hello")
    watched.news()
    id = coming(watched.agent)
    for text in ("Good ", "day"):
        watched.live(watched.agent.delta(text, id))
    assert watched.screen.text.endswith("Good day")

    watched.agent.append(entry(watched.agent.number(), "Good day to you.", "assistant"))

    assert watched.news() == ["Good day to you."]


def test_behind_a_gap_nothing_is_streamed_until_the_answer_is_whole() -> None:
    watched = Watched()
    watched.agent.send("hello")
    watched.news()
    id = coming(watched.agent)
    watched.live(watched.agent.delta("Good ", id))
    watched.agent.delta("day ", id)
    watched.live(watched.agent.delta("to you.", id))
    assert watched.screen.text.endswith("\nGood ")
    watched.agent.append(entry(watched.agent.number(), "Good day to you.", "assistant"))
    assert watched.news() == ["Good day to you."]


def test_an_answer_that_is_not_what_was_streamed_is_shown_in_full() -> None:
    watched = Watched()
    watched.agent.send("hello")
    watched.news()
    watched.live(watched.agent.delta("Good evening", coming(watched.agent)))
    watched.agent.append(entry(watched.agent.number(), "Good day.", "assistant"))
    assert watched.news() == ["Good evening", "· In full:", "Good day."]


def test_two_answers_at_once_are_kept_apart() -> None:
    watched = Watched()
    watched.agent.send("hello")
    watched.news()
    first, second = entry(watched.agent.numbers), entry(watched.agent.numbers + 1)
    watched.live(watched.agent.delta("one", first.id))
    watched.live(watched.agent.delta("two", second.id))
    assert watched.screen.text.endswith("one\ntwo")


def test_what_is_said_inside_of_a_call_is_not_streamed() -> None:
    watched = Watched()
    watched.agent.send("hello")
    watched.news()
    watched.live(watched.agent.delta("inside", "1:x:0", parent_call_id="call_1"))
    assert "inside" not in watched.screen.text


def test_a_screen_that_does_not_stream_gets_whole_answers() -> None:
    watched = Watched(streams=False)
    watched.agent.send("hello")
    watched.news()
    watched.live(watched.agent.delta("Good", coming(watched.agent)))
    assert "Good" not in watched.screen.text
    watched.agent.append(entry(watched.agent.number(), "Good day.", "assistant"))
    assert watched.news() == ["Good day."]


ITEMS = {
    "a call": ({"type": "function_call", "name": "clock", "arguments": "{}", "call_id": "c"}, ["→ clock {}"]),
    "a custom call": (
        {"type": "custom_tool_call", "name": "sh", "input": "ls\n-l", "call_id": "c"},
        ["→ sh ls -l"],
    ),
    "an output": ({"type": "function_call_output", "output": "12:00", "call_id": "c"}, ["→ = 12:00"]),
    "an empty output": ({"type": "function_call_output", "output": "", "call_id": "c"}, ["→ ="]),
    "an output in parts": (
        {
            "type": "custom_tool_call_output",
            "output": [
                {"type": "input_text", "text": "see "},
                {"type": "input_image", "image_url": "blob:x"},
            ],
            "call_id": "c",
        },
        ["→ = see [image]"],
    ),
    "thoughts": (
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        ["· Thought: hm"],
    ),
    "hidden thoughts": ({"type": "reasoning", "id": "r", "summary": []}, []),
    "a search": ({"type": "web_search_call", "id": "w", "status": "completed"}, []),
    "instructions": ({"type": "message", "role": "developer", "content": "Be brief."}, []),
    "an answer of the prompt": ({"type": "message", "role": "assistant", "content": "Yes."}, ["Yes."]),
    "an image": (
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look: "},
                {"type": "input_image", "image_url": "blob:x", "detail": "auto"},
            ],
        },
        ["> look: [image]"],
    ),
    "half an answer": (
        {
            "type": "message",
            "role": "assistant",
            "id": "m",
            "status": "incomplete",
            "content": [{"type": "output_text", "annotations": [], "text": "Go"}],
        },
        ["Go", "! The answer was cut off here."],
    ),
    "something new": ({"type": "hologram"}, ["→ An entry of kind message that this program cannot read."]),
}


@pytest.mark.parametrize(("payload", "lines"), ITEMS.values(), ids=ITEMS.keys())
def test_items(payload: object, lines: list[str]) -> None:
    watched = Watched()
    watched.agent.append(msgspec.structs.replace(entry(watched.agent.number()), payload=raw(payload)))
    assert watched.news() == lines


def test_long_things_fit_a_row_of_80() -> None:
    watched = Watched()
    payload = raw({"type": "function_call", "name": "clock", "arguments": "many words " * 50, "call_id": "c"})
    watched.agent.append(msgspec.structs.replace(entry(watched.agent.number()), payload=payload))
    [line] = watched.news()
    assert line.endswith("…")
    assert len(line) <= 80


def test_what_rights_do_not_show_is_said_to_be_there() -> None:
    watched = Watched()
    hidden = msgspec.structs.replace(entry(7, "c", "tool", "tool_output"), payload=raw({}), redacted=True)
    watched.agent.append(hidden)
    assert watched.news() == ["→ Something that your rights do not show."]


ENDS: dict[EventKind, tuple[OperationState, list[str]]] = {
    "operation.completed": (OperationCompleted(), []),
    "operation.cancelled": (OperationCancelled(), ["· Cancelled."]),
    "operation.interrupted": (
        OperationInterrupted(reason="worker_lost", retryable=True),
        ["! Interrupted (worker_lost)."],
    ),
    "operation.failed": (
        OperationFailed(error=Error(code="internal_error", message="The model failed", retryable=True)),
        ["✗ Failed: The model failed (internal_error)"],
    ),
}


@pytest.mark.parametrize("kind", ENDS)
def test_how_a_turn_ends(kind: EventKind) -> None:
    watched = Watched()
    watched.agent.send("hello")
    watched.agent.ready()
    watched.news()
    state, lines = ENDS[kind]
    watched.agent.end(kind, state)
    assert watched.news() == lines


def test_an_answer_whose_entry_never_comes_ends_with_its_turn() -> None:
    watched = Watched()
    watched.agent.send("hello")
    watched.news()
    watched.live(watched.agent.delta("Go", coming(watched.agent)))
    watched.agent.end("operation.completed", OperationCompleted())
    assert watched.news() == ["Go"]


def test_requests_are_shown_with_what_can_be_answered() -> None:
    watched = Watched()
    watched.agent.send("hello")
    watched.news()
    watched.agent.ask("per_1")
    assert watched.news() == ["! May look(<redacted>) run?", "! /approve (approve_once) or /deny [reason]"]
    assert watched.screen.states[-1] == "waiting for permission"
    watched.agent.answer("per_1")
    assert watched.news() == ["· look(<redacted>): approved"]


def test_other_things_that_happen() -> None:
    watched = Watched()
    watched.opened()
    for step, lines in (
        (Agent.notify, ["· note"]),
        (Agent.compact, ["· The history was rewritten."]),
        (Agent.fail, ["✗ Failed: gone (workspace_unavailable)"]),
        (Agent.upgrade, []),
    ):
        step(watched.agent)
        assert watched.news() == lines


def test_the_end_of_a_session_is_announced() -> None:
    watched = Watched()
    watched.agent._emit("moderator.notification", {"end_session_reason": "enough"})
    assert watched.news() == ["! The session is ended: enough"]


def test_hidden_events_show_nothing() -> None:
    watched = Watched()
    watched.agent.notify()
    hidden = msgspec.structs.replace(watched.agent.log[-1], payload=raw({}), visibility="hidden")
    watched.agent.log[-1] = hidden
    assert watched.news() == []


def test_the_state_tells_what_runs() -> None:
    watched = Watched()
    watched.opened()
    assert watched.screen.states == ["idle"]
    watched.agent.send("hello")
    watched.agent.send("and then?")
    watched.news()
    payload = {"call_id": "c", "name": "clock", "kind": "function", "payload": "{}", "agent_page_kind": None}
    watched.live(watched.agent.live("tool.started", payload))
    assert watched.screen.states[-1] == "working · clock · 1 queued"


# Snapshots


def test_an_older_session_is_shown_from_its_end() -> None:
    agent = Agent()
    agent.append(*(entry(agent.number(), f"message {number}") for number in range(TAIL + 5)))
    shown = Watched(agent).opened()
    assert shown[0] == "· This session is older: its end is shown."
    assert shown[1:] == [f"> message {number}" for number in range(5, TAIL + 5)]


def test_what_waits_is_shown_with_a_snapshot_and_only_once() -> None:
    agent = Agent()
    agent.send("hello")
    agent.send("and then?")
    agent.ask("per_1")
    agent.overlay("enough")
    agent.fail()
    watched = Watched(agent)
    waiting = ["· Queued: and then?", "! May look(<redacted>) run?"]
    assert [line for line in watched.opened() if line in waiting] == waiting
    assert "! The session is halted: enough" in watched.screen.shown
    assert "✗ Failed: gone (workspace_unavailable)" in watched.screen.shown

    before = len(watched.screen.shown)
    watched.opened()
    assert [line for line in watched.screen.shown[before:] if line in waiting] == []


def test_a_later_snapshot_shows_what_is_new() -> None:
    watched = Watched()
    watched.agent.send("hello")
    watched.opened()
    watched.live(watched.agent.delta("Good ", coming(watched.agent)))
    before = len(watched.screen.shown)
    watched.agent.append(entry(watched.agent.number(), "Good day.", "assistant"))
    watched.opened()
    assert watched.screen.shown[before:] == ["Good day."]


def test_a_snapshot_of_a_rewritten_history_says_so() -> None:
    watched = Watched()
    watched.agent.send("hello")
    watched.opened()
    before = len(watched.screen.shown)
    watched.agent.compact()
    watched.opened()
    assert watched.screen.shown[before:] == [
        "· The history was rewritten meanwhile; this is its end:",
        "> In short: hello.",
    ]


def test_losing_and_regaining_the_connection_is_said() -> None:
    watched = Watched()
    for update, line in (
        (Lost(ConnectionLost("the connection broke")), "! the connection broke; connecting again …"),
        (Restored(0), "· Connected again; nothing was missed."),
        (Restored(1), "· Connected again; one event was missed and follows."),
        (Restored(2), "· Connected again; 2 events were missed and follow."),
    ):
        watched.transcript.show(update)
        assert watched.screen.shown[-1] == line
