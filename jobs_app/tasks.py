"""The Celery tasks: each says "look at this row" and returns at once (design 5).

Owns: the tasks' names, and handing what they say to the loop of the worker process. Does not own: what runs there.
"""

from __future__ import annotations

from collections.abc import Callable

from celery import shared_task

_run_turn: list[Callable[[str], None]] = []


def on_turn(handler: Callable[[str], None] | None) -> None:
    """Give what a worker process does with the id of an operation; called from the consumer's thread, must return at once.

    None: nothing, as in a process that runs no turns.
    """
    _run_turn[:] = [] if handler is None else [handler]


@shared_task(name="ochat.turn", ignore_result=True)
def turn(operation_id: str) -> None:
    """Look at an operation that may be claimed."""
    for handler in _run_turn:
        handler(operation_id)
