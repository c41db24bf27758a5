"""Bounded waits on conditions, instead of sleeps."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECONDS = 0.01


def until(condition: Callable[[], T], what: str, seconds: float = 30.0) -> T:
    """Ask `condition` until its answer is true, and return that; fail with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(PAUSE_SECONDS)


async def eventually(condition: Callable[[], T], what: str, seconds: float = 30.0) -> T:
    """Do as `until`, leaving the loop to others between two questions."""
    deadline = time.monotonic() + seconds
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        await asyncio.sleep(PAUSE_SECONDS)
