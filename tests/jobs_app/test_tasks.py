"""The Celery tasks: each hands what it says to the worker's loop and returns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jobs_app import tasks


@pytest.fixture
def told() -> Iterator[list[str]]:
    """What a worker was told."""
    heard: list[str] = []
    tasks.on_turn(heard.append)
    yield heard
    tasks.on_turn(None)


def test_a_turn_is_handed_over(told: list[str]) -> None:
    tasks.turn("op_1")
    assert told == ["op_1"]


def test_the_last_handler_counts(told: list[str]) -> None:
    other: list[str] = []
    tasks.on_turn(other.append)
    tasks.turn("op_1")
    assert (told, other) == ([], ["op_1"])


def test_a_process_that_runs_no_turns_ignores_them(told: list[str]) -> None:
    tasks.on_turn(None)
    tasks.turn("op_1")
    assert told == []


def test_a_task_keeps_no_result_and_is_known_by_its_name() -> None:
    """Design 5: early acks, JSON ids, `ignore_result`."""
    assert tasks.turn.name == "ochat.turn"
    assert tasks.turn.ignore_result
    assert not tasks.turn.acks_late
