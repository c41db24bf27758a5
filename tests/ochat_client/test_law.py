"""What the replay law calls the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from ochat_client import differences, equal_by_law
from sessions_app.records import Error, Snapshot
from tests.ochat_client.agent import Agent, entry, raw, window

FULL = 256
"""As many items as a list of a snapshot holds."""


def snapshot(**changes: Any) -> Snapshot:
    agent = Agent()
    agent.send("hello")
    agent.job("job_1")
    agent.job("job_2")
    return msgspec.structs.replace(agent.snapshot(), **changes)


def with_session(**changes: Any) -> Snapshot:
    same = snapshot()
    return msgspec.structs.replace(same, session=msgspec.structs.replace(same.session, **changes))


def at_sequence(sequence: int) -> Snapshot:
    session = msgspec.structs.replace(snapshot().session, latest_event_sequence=sequence)
    return snapshot(session=session, latest_event_sequence=sequence)


def cut(*numbers: int) -> Snapshot:
    entries = window(*(entry(number) for number in numbers))
    return snapshot(
        canonical_history=msgspec.structs.replace(entries, reached_start=False, structurally_complete=False)
    )


def jobs(*numbers: int, size: int = 0) -> Snapshot:
    job = snapshot().jobs[0]
    return snapshot(
        jobs=tuple(
            msgspec.structs.replace(job, id=f"job_{number}", payload=raw("x" * size)) for number in numbers
        )
    )


WHOLE = snapshot(canonical_history=window(*(entry(number) for number in range(5))))

SAME = {
    "what no event tells": (
        snapshot(),
        with_session(updated_at="2027-01-01T00:00:00.000000000Z", workspace_instance="wsi_1"),
    ),
    "archives and active calls": (
        snapshot(),
        snapshot(archived_revisions=(3,), active_tool_calls=(raw({}),)),
    ),
    "the order of a list": (snapshot(), snapshot(jobs=tuple(reversed(snapshot().jobs)))),
    "a cut history": (WHOLE, cut(2, 3, 4)),
    "two cut histories": (cut(1, 2, 3, 4), cut(3, 4)),
    "a list cut by number": (jobs(*range(FULL)), jobs(*range(1, FULL + 1))),
    "a list cut by size": (jobs(*range(20), size=200_000), jobs(*range(10), size=200_000)),
}

DIFFERENT = {
    "another sequence": (snapshot(), at_sequence(99)),
    "another state": (snapshot(), with_session(desired_state="stopped")),
    "another entry": (
        WHOLE,
        snapshot(canonical_history=window(*(entry(number) for number in (0, 1, 2, 3, 9)))),
    ),
    "another order of entries": (cut(1, 2), cut(2, 1)),
    "fewer entries in what claims to be whole": (
        WHOLE,
        snapshot(canonical_history=window(*(entry(number) for number in (2, 3, 4)))),
    ),
    "an overlay": (snapshot(), snapshot(effective_history=window())),
    "another order of what waits": (
        snapshot(deferred_entries=(entry(7), entry(8))),
        snapshot(deferred_entries=(entry(8), entry(7))),
    ),
    "one item less": (snapshot(), snapshot(jobs=snapshot().jobs[1:])),
    "another item in a list that was cut": (jobs(*range(FULL)), jobs(*range(FULL), size=1)),
    "a halt": (snapshot(), snapshot(halted=True)),
    "a reason": (snapshot(halt_reason=UNSET), snapshot(halt_reason="enough")),
    "a failure": (snapshot(), snapshot(failure=Error(code="conflict", message="m", retryable=False))),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME.keys())
def test_is_the_same(one: Snapshot, other: Snapshot) -> None:
    assert differences(one, other) == []
    assert equal_by_law(other, one)


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_is_not_the_same(one: Snapshot, other: Snapshot) -> None:
    assert len(differences(one, other)) >= 1
    assert not equal_by_law(other, one)


def test_revisions_are_not_compared() -> None:
    agent = Agent()
    before = agent.snapshot()
    agent.touch()
    assert before.revision != agent.snapshot().revision
    assert equal_by_law(before, agent.snapshot())


def test_a_difference_is_named_with_both_values() -> None:
    assert differences(snapshot(), snapshot(halted=True)) == ["halted: False != True"]
