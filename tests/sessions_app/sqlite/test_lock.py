"""The store lock among threads, connections and processes."""

import multiprocessing
import threading
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from sessions_app import limits
from sessions_app.errors import StoreLocked
from sessions_app.sqlite.lock import Line, StoreLock
from tests.support.waiting import until

IMPATIENT = limits.ServerSettings(store_lock_timeout_ms=50)


def test_a_line_serves_in_the_order_of_arrival() -> None:
    line = Line()
    served: list[int] = []

    def stand_in_line(number: int) -> None:
        assert line.enter(10)
        served.append(number)
        line.leave()

    assert line.enter(1)
    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=stand_in_line, args=(number,)))
        threads[-1].start()
        until(lambda expected=number + 1: line.waiting == expected, "the thread stands in line")  # type: ignore[misc]  # a lambda with a default
    line.leave()
    for thread in threads:
        thread.join(10)
    assert served == [0, 1, 2, 3, 4]


def test_who_waits_too_long_leaves_the_line(tmp_path: Path) -> None:
    line = Line()
    assert line.enter(1)
    assert not line.enter(0.01)
    line.leave()
    assert line.enter(0.01)


def test_two_connections_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    first, second = StoreLock(str(tmp_path / "store")), StoreLock(str(tmp_path / "store"))
    first.acquire()
    with limits.using(IMPATIENT), pytest.raises(StoreLocked) as refused:
        second.acquire()
    assert refused.value.retryable
    first.release()
    second.acquire()
    assert second.held
    second.close()


def test_the_lock_excludes_another_process_until_that_one_ends(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, give_up = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(str(tmp_path / "store"), held, give_up))
    process.start()
    assert held.wait(30)
    lock = StoreLock(str(tmp_path / "store"))
    with limits.using(IMPATIENT), pytest.raises(StoreLocked):
        lock.acquire()
    process.kill()
    process.join(30)
    lock.acquire()
    assert lock.held
    lock.close()


def test_a_failed_wait_leaves_the_line_free(tmp_path: Path) -> None:
    lock = StoreLock(str(tmp_path / "no" / "such" / "folder"))
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            lock.acquire()


def _hold(database: str, held: Event, give_up: Event) -> None:
    StoreLock(database).acquire()
    held.set()
    give_up.wait(60)
