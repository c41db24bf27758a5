"""The seven rules of the protocol's "Client synchronization", one by one and against a reference."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from ochat_client import Projection, ProtocolViolation, SequenceGap, differences
from sessions_app.events import DurableEvent, EventKind
from sessions_app.records import (
    Attachment,
    Error,
    JobStatusCancelled,
    OperationCancelled,
    OperationCompleted,
    OperationFailed,
    OperationInterrupted,
    OperationState,
)
from tests.ochat_client.agent import NOW, OTHER_SESSION, SESSION, Agent, entry, raw

Step = Callable[[Agent], object]

ENDS: dict[EventKind, OperationState] = {
    "operation.completed": OperationCompleted(),
    "operation.failed": OperationFailed(error=Error(code="internal_error", message="no", retryable=True)),
    "operation.cancelled": OperationCancelled(),
    "operation.interrupted": OperationInterrupted(reason="worker_lost", retryable=True),
}


def follow(agent: Agent, after: int) -> Projection:
    """Return the projection of the snapshot at a sequence and every event since."""
    projection = Projection(agent.snapshots[after])
    for event in agent.log[after:]:
        projection.apply(event)
    return projection


def event(projection: Projection, kind: EventKind, payload: object, **changes: Any) -> DurableEvent:
    """Return the event that comes next."""
    members = {
        "session_id": SESSION,
        "sequence": projection.sequence + 1,
        "revision": projection.revision + 1,
        "timestamp": NOW,
        "kind": kind,
        "payload": raw(payload),
    }
    return DurableEvent(**{**members, **changes})


EXAMPLES = Path(__file__).parent.parent / "golden" / "ochat-1.0" / "examples"


@pytest.mark.parametrize("kind", get_args(EventKind))
def test_every_kind_is_applied(kind: EventKind) -> None:
    example = msgspec.json.decode((EXAMPLES / f"event.{kind}.json").read_bytes())["params"]
    projection = Projection(Agent().snapshot())

    applied = projection.apply(event(projection, kind, example["payload"]))

    assert applied is not None
    assert projection.sequence == 2


# Durable events


def turn(agent: Agent) -> None:
    agent.send("hello")
    agent.ready()
    agent.append(entry(agent.number(), "hi", "assistant"))


def ending(kind: EventKind) -> Step:
    return lambda agent: agent.end(kind, ENDS[kind]) if agent.operation else None


STEPS: dict[str, tuple[Step, ...]] = {
    "a message starts a turn": (lambda agent: agent.send("hello"),),
    "a worker is ready": (turn,),
    "a message waits": (turn, lambda agent: agent.send("and then?")),
    "a waiting message is taken up": (turn, lambda agent: agent.send("and then?"), Agent.adopt),
    **{kind: (turn, ending(kind)) for kind in ENDS},
    "a request": (turn, lambda agent: agent.ask("per_1")),
    "an answer": (turn, lambda agent: agent.ask("per_1"), lambda agent: agent.answer("per_1")),
    "a grant ends": (lambda agent: agent.grant("grt_1"), lambda agent: agent.revoke("grt_1")),
    "a job": (lambda agent: agent.job("job_1"), lambda agent: agent.job("job_1", JobStatusCancelled())),
    "a schedule": (
        lambda agent: agent.schedule("sch_1"),
        lambda agent: agent.schedule("sch_1", delivery_count=1),
    ),
    "the history is replaced": (turn, Agent.compact),
    "a halt": (turn, lambda agent: agent.overlay("enough")),
    "a halt, and more": (
        turn,
        lambda agent: agent.overlay("enough"),
        lambda agent: agent.send("more"),
    ),
    "no halt any more": (lambda agent: agent.overlay("enough"), lambda agent: agent.overlay(UNSET)),
    "a notice": (Agent.notify,),
    "a failure": (Agent.fail,),
    "another prompt": (Agent.upgrade,),
    "a new beginning": (turn, lambda agent: agent.ask("per_1"), Agent.fail, Agent.reset),
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS.keys())
def test_events_make_of_a_snapshot_what_the_server_has(steps: tuple[Step, ...]) -> None:
    agent = Agent()
    for step in steps:
        step(agent)

    for after in agent.snapshots:
        assert differences(follow(agent, after).snapshot(), agent.snapshot()) == []


STEP = st.sampled_from(
    [
        lambda agent: agent.send("hello"),
        lambda agent: agent.ready() if agent.operation else None,
        lambda agent: agent.append(entry(agent.number(), "hi", "assistant")),
        lambda agent: agent.append(
            entry(agent.number(), "c", "assistant", "tool_call"),
            entry(agent.number(), "c", "tool", "tool_output"),
        ),
        Agent.adopt,
        lambda agent: agent.ask(f"per_{agent.sequence}") if agent.operation else None,
        lambda agent: (
            agent.answer(next(iter(agent.permissions))) if agent.permissions and agent.operation else None
        ),
        *(ending(kind) for kind in ENDS),
        lambda agent: agent.grant(f"grt_{agent.sequence}"),
        lambda agent: agent.revoke(next(iter(agent.grants))) if agent.grants else None,
        lambda agent: agent.job(f"job_{agent.sequence % 3}"),
        lambda agent: agent.schedule(f"sch_{agent.sequence % 3}", delivery_count=agent.sequence),
        Agent.compact,
        lambda agent: agent.overlay("enough"),
        lambda agent: agent.overlay(UNSET),
        Agent.notify,
        Agent.fail,
        Agent.upgrade,
        Agent.reset,
        Agent.touch,
    ]
)


@settings(deadline=None)
@given(steps=st.lists(STEP, max_size=30), data=st.data())
def test_the_replay_law_holds_from_everywhere_however_often_events_come(
    steps: list[Step], data: st.DataObject
) -> None:
    agent = Agent()
    for step in steps:
        step(agent)
    after = data.draw(st.sampled_from(sorted(agent.snapshots)), label="after")
    projection = Projection(agent.snapshots[after])

    for index in range(after, agent.sequence):
        projection.apply(agent.log[index])
        for again in data.draw(st.lists(st.integers(0, index), max_size=2), label="again"):
            assert projection.apply(agent.log[again]) is None

    assert projection.sequence == agent.sequence
    assert differences(projection.snapshot(), agent.snapshot()) == []


@settings(deadline=None)
@given(steps=st.lists(STEP, min_size=1, max_size=12), data=st.data())
def test_what_does_not_follow_is_refused_and_changes_nothing(steps: list[Step], data: st.DataObject) -> None:
    agent = Agent()
    for step in [*steps, Agent.notify, Agent.notify]:
        step(agent)
    at = data.draw(
        st.sampled_from([sequence for sequence in agent.snapshots if sequence < agent.sequence - 1])
    )
    projection = Projection(agent.snapshots[at])
    ahead = data.draw(st.integers(at + 1, agent.sequence - 1))

    with pytest.raises(SequenceGap) as gap:
        projection.apply(agent.log[ahead])

    assert (gap.value.expected, gap.value.got) == (at + 1, ahead + 1)
    assert projection.snapshot() == Projection(agent.snapshots[at]).snapshot()


def test_hidden_events_only_advance() -> None:
    agent = Agent()
    projection = Projection(agent.snapshot())

    applied = projection.apply(event(projection, "permission.requested", {}, visibility="hidden"))

    assert applied is not None
    assert applied.payload is None
    assert projection.sequence == agent.sequence + 1
    assert projection.permissions == {}


def test_redacted_events_are_applied_as_far_as_they_are_shown() -> None:
    agent = Agent()
    projection = Projection(agent.snapshot())
    call = msgspec.structs.replace(entry(7, "call_1", "tool", "tool_output"), payload=raw({}), redacted=True)

    projection.apply(event(projection, "history.appended", [call], visibility="redacted"))

    assert projection.history.entries[-1] == call


def test_an_event_of_another_session_is_refused() -> None:
    projection = Projection(Agent().snapshot())
    with pytest.raises(ProtocolViolation):
        projection.apply(event(projection, "history.appended", [], session_id=OTHER_SESSION))


@pytest.mark.parametrize(
    ("kind", "payload"), [("history.appended", {}), ("session.updated", {}), ("operation.started", [])]
)
def test_an_unreadable_event_is_refused_and_changes_nothing(kind: EventKind, payload: object) -> None:
    projection = Projection(Agent().snapshot())
    before = projection.snapshot()
    with pytest.raises(ProtocolViolation):
        projection.apply(event(projection, kind, payload))
    assert projection.snapshot() == before


def test_the_owner_is_known_once_an_event_says_so() -> None:
    projection = Projection(Agent().snapshot())
    owners = [projection.owner]
    attachment = {"id": "att_1", "session_id": SESSION, "mode": "owner_read_write"}

    for payload in (attachment, None):
        projection.apply(event(projection, "attachment.owner_changed", payload))
        owners.append(projection.owner)

    assert owners == [UNSET, msgspec.convert(attachment, Attachment), None]


def test_revisions_come_from_events_and_from_answers_and_never_fall() -> None:
    projection = Projection(Agent().snapshot())
    projection.note_revision(9)
    projection.apply(event(projection, "moderator.notification", {"message": "m"}, revision=5))
    assert projection.revision == projection.session.revision == 9
    projection.note_revision(3)
    assert projection.revision == 9


def test_a_workspace_that_is_replaced_is_only_told() -> None:
    agent = Agent()
    projection = Projection(agent.snapshot())
    workspace = {
        "id": "wsd_1",
        "name": "scratch",
        "kind": "physical",
        "access": "shared_write",
        "prompt_limits": [],
        "availability": "available",
    }

    projection.apply(event(projection, "workspace.state_changed", workspace))
    agent.notify()

    assert differences(projection.snapshot(), agent.snapshot()) == []


# Live events


def started(agent: Agent, call_id: str, **changes: Any) -> Any:
    payload = {
        "call_id": call_id,
        "name": "look",
        "kind": "function",
        "payload": "{}",
        "agent_page_kind": None,
        **changes,
    }
    return agent.live("tool.started", payload)


def running() -> tuple[Agent, Projection, str]:
    """Return an agent in a turn, its projection, and the id of the entry that comes next."""
    agent = Agent()
    agent.send("hello")
    return agent, Projection(agent.snapshot()), entry(agent.numbers).id


def test_text_is_streamed_until_its_entry_arrives() -> None:
    agent, projection, coming = running()
    for text in ("Hel", "lo"):
        projection.apply_live(agent.delta(text, coming))
    assert projection.streams[coming].text == "Hello"
    assert not projection.streams[coming].has_gap

    agent.append(entry(agent.number(), "Hello", "assistant"))
    projection.apply(agent.log[-1])

    assert projection.streams == {}
    assert projection.history.entries[-1].id == coming


def test_a_stream_without_a_known_entry_ends_with_the_next_one() -> None:
    agent, projection, _ = running()
    projection.apply_live(agent.delta("Hello", None))
    projection.apply_live(agent.delta("inside", None, invocation_id="inv", parent_call_id="call_1"))
    agent.append(entry(agent.number(), "Hello", "assistant"))
    projection.apply(agent.log[-1])
    assert [stream.parent_call_id for stream in projection.streams.values()] == ["call_1"]


def test_reasoning_and_text_are_told_apart_and_the_whole_text_replaces_its_parts() -> None:
    agent, projection, coming = running()

    def say(**members: Any) -> None:
        source = {"entry_id": coming, "invocation_id": None, "parent_call_id": None}
        projection.apply_live(agent.live("sourced.stream", {**source, "event": members}))

    say(type="response.reasoning_summary_text.delta", summary_index=1, delta="second")
    say(type="response.reasoning_summary_text.delta", summary_index=0, delta="first")
    say(type="response.refusal.delta", content_index=1, delta=" No.")
    say(type="response.output_text.delta", content_index=0, delta="Wel")
    say(type="response.output_text.done", content_index=0, text="Well.")
    say(type="response.in_progress", response={})
    say(type="response.some_future_event", delta={"any": "thing"})

    stream = projection.streams[coming]
    assert (stream.reasoning, stream.text) == ("first\n\nsecond", "Well. No.")


def test_calls_are_active_from_start_to_finish() -> None:
    agent, projection, _ = running()
    projection.apply_live(started(agent, "call_1"))
    projection.apply_live(started(agent, "call_2", agent_page_kind="subagent"))
    projection.apply_live(agent.delta("inside", None, invocation_id="inv", parent_call_id="call_2"))
    assert list(projection.active_calls) == ["call_1", "call_2"]
    snapshot = projection.snapshot()
    assert len(snapshot.active_tool_calls) == 2
    assert snapshot.active_agent_calls == snapshot.active_tool_calls[1:]
    assert list(Projection(snapshot).active_calls) == ["call_1", "call_2"]

    projection.apply_live(
        agent.live("tool.finished", {"call_id": "call_2", "outcome": "returned", "output": "x"})
    )
    assert list(projection.active_calls) == ["call_1"]
    assert projection.streams == {}


def test_a_call_whose_finish_was_lost_ends_with_its_output() -> None:
    agent, projection, _ = running()
    projection.apply_live(started(agent, "call_1"))
    projection.apply_live(started(agent, "call_2"))
    agent.append(entry(agent.number(), "call_1", "tool", "tool_output"))
    projection.apply(agent.log[-1])
    assert list(projection.active_calls) == ["call_2"]


@pytest.mark.parametrize("kind", ENDS)
def test_nothing_of_an_operation_stays_when_it_ends(kind: EventKind) -> None:
    agent, projection, coming = running()
    projection.apply_live(started(agent, "call_1"))
    projection.apply_live(agent.delta("Hel", coming))
    late = agent.delta("lo", coming)

    before = agent.sequence
    agent.end(kind, ENDS[kind])
    for told in agent.log[before:]:
        projection.apply(told)

    assert projection.apply_live(late) is None
    assert (projection.streams, projection.active_calls) == ({}, {})


def test_nothing_stale_survives_a_snapshot() -> None:
    agent, projection, coming = running()
    projection.apply_live(started(agent, "call_1"))
    projection.apply_live(agent.delta("Hel", coming))
    projection.replace(agent.snapshot())
    assert (projection.streams, projection.active_calls) == ({}, {})

    projection.apply_live(agent.delta("lo", coming))
    assert projection.streams[coming].has_gap


def test_a_live_event_never_moves_the_cursor_and_waits_for_its_anchor() -> None:
    agent, projection, coming = running()
    at = projection.sequence
    agent.append(entry(agent.number(), "x", "assistant"))
    assert projection.apply_live(agent.delta("early", coming)) is None
    assert (
        projection.apply_live(
            agent.delta(
                "now",
                coming,
            )
        )
        is None
    )
    projection.apply(agent.log[-1])
    assert projection.apply_live(agent.delta("now", entry(agent.numbers).id)) is not None
    assert projection.sequence == at + 1


def test_a_repeated_or_overtaken_live_event_is_dropped_and_a_missing_one_is_noticed() -> None:
    agent, projection, coming = running()
    first, second, third = (agent.delta(text, coming) for text in "abc")
    projection.apply_live(first)
    projection.apply_live(third)
    assert projection.apply_live(second) is None
    assert projection.apply_live(third) is None
    assert projection.streams[coming].text == "ac"
    assert projection.streams[coming].has_gap


def test_kinds_that_leave_nothing_behind_are_handed_on() -> None:
    agent, projection, _ = running()
    progress = {"call_id": "call_1", "progress": {"channel": "stdout", "update": "append", "text": "x"}}
    assert projection.apply_live(agent.live("tool.progress", progress)) is not None
    assert projection.apply_live(agent.live("activity", {"any": "thing"})) is not None
    assert (projection.streams, projection.active_calls) == ({}, {})


def test_an_unreadable_live_event_is_refused() -> None:
    agent, projection, _ = running()
    with pytest.raises(ProtocolViolation):
        projection.apply_live(agent.live("tool.finished", {}))


def test_pending_requests_are_at_hand() -> None:
    agent, projection, _ = running()
    for id in ("per_1", "per_2"):
        agent.ask(id)
    agent.answer("per_1")
    for told in agent.log[projection.sequence :]:
        projection.apply(told)
    assert [permission.id for permission in projection.pending_permissions] == ["per_2"]
