"""Who serves the store, and who is taken for dead (behaviour 0.8, 14.4)."""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import pytest

from sessions_app import limits, processes
from sessions_app.models import Process
from tests.support.world import World

EXPIRY = timedelta(milliseconds=limits.server().process_expiry_ms)


def test_a_process_enters_itself(world: World) -> None:
    made = world.new_process("worker")
    row = Process.objects.get(id=made)
    assert (row.kind, row.host, row.pid, row.draining) == ("worker", socket.gethostname(), os.getpid(), False)
    assert processes.current_id() == made
    assert processes.is_current(made)


def test_a_process_that_nobody_entered_enters_as_a_command(world: World) -> None:
    processes.leave()
    assert not processes.is_current("")
    made = processes.current_id()
    assert Process.objects.get(id=made).kind == "command"
    assert processes.current_id() == made


def test_a_beat_keeps_alive_and_tells_of_draining(timed_world: World) -> None:
    """0.8: "each process has one heartbeat"."""
    world = timed_world
    other = world.new_process()
    world.clock.advance(milliseconds=limits.server().process_expiry_ms - 100)
    assert processes.beat(draining=True)
    assert Process.objects.get(id=other).draining
    world.clock.advance(seconds=5)
    world.new_process()
    assert processes.is_alive(other)


def test_the_silent_are_dead(timed_world: World) -> None:
    """14.4: "`process_expiry_ms` without a beat"."""
    world = timed_world
    first, second = world.new_process(), world.new_process()
    world.clock.advance(milliseconds=limits.server().process_expiry_ms + 1000)
    third = world.new_process()
    assert processes.expired()[-2:] == [first, second], "oldest first"
    assert not processes.is_alive(first)
    assert processes.is_alive(third)
    assert not processes.is_alive("prc_unknown")


def test_a_process_knows_itself_alive_without_asking(world: World) -> None:
    world.let_die(processes.current_id())
    assert processes.is_alive(processes.current_id())


def test_a_process_that_was_buried_is_told(world: World) -> None:
    """A process that was only slow must stop what it holds: others have ended it."""
    here = processes.current_id()
    processes.bury(here)
    assert processes.beat(), "it has beaten: it is not buried"
    world.let_die(here)
    processes.bury(here)
    assert not processes.beat()


@pytest.mark.parametrize("limit", [1, 2])
def test_the_dead_are_found_in_bounded_numbers(world: World, limit: int) -> None:
    for _ in range(3):
        world.let_die(world.new_process())
    assert len(processes.expired(limit)) == limit
