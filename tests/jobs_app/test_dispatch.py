"""Telling workers to look: nobody waits for a broker, and one that is away costs time alone."""

from __future__ import annotations

import threading

from jobs_app.dispatch import CeleryDispatcher, LocalDispatcher
from tests.support.waiting import until


class Broker:
    """Takes what is published, when the test lets it; refuses while it is away."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.threads: set[int] = set()
        self.asked = threading.Semaphore(0)
        self.open = threading.Event()
        self.away = False

    def __call__(self, operation_id: str) -> None:
        self.threads.add(threading.get_ident())
        self.asked.release()
        assert self.open.wait(30)
        if self.away:
            raise ConnectionError("away")
        self.taken.append(operation_id)


def test_the_caller_waits_for_nothing() -> None:
    broker = Broker()
    dispatcher = CeleryDispatcher(broker)
    for number in range(3):
        dispatcher.operation(f"op_{number}")
    assert broker.taken == []
    broker.open.set()
    until(lambda: broker.taken == ["op_0", "op_1", "op_2"], "published in order")
    assert threading.get_ident() not in broker.threads
    assert len(broker.threads) == 1


def test_what_waits_waits_once() -> None:
    """A sweep asks again each second for what nobody has claimed."""
    broker = Broker()
    dispatcher = CeleryDispatcher(broker)
    dispatcher.operation("op_first")
    assert broker.asked.acquire(timeout=30)
    for _ in range(100):
        dispatcher.operation("op_again")
        dispatcher.operation("op_other")
    broker.open.set()
    until(lambda: len(broker.taken) == 3, "published")
    assert broker.taken == ["op_first", "op_again", "op_other"]


def test_an_outage_is_survived() -> None:
    broker = Broker()
    broker.away = True
    dispatcher = CeleryDispatcher(broker)
    dispatcher.operation("op_first")
    assert broker.asked.acquire(timeout=30)
    for number in range(100):
        dispatcher.operation(f"op_{number}")
    broker.open.set()
    until(lambda: not dispatcher.waiting, "the others are left to the sweep")
    broker.away = False
    dispatcher.operation("op_after")
    until(lambda: broker.taken == ["op_after"], "published once the broker is back")


def test_inside_one_process_it_is_the_runner_that_is_told() -> None:
    told: list[str] = []
    LocalDispatcher(told.append).operation("op_1")
    assert told == ["op_1"]
