"""Telling workers to look: by Celery, or inside one process (design 2, `Dispatcher`).

Owns: the two dispatchers. Neither blocks nor fails for want of a broker: the rows are the queue of record, and the sweep finds
what a lost message spoke of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from jobs_app import tasks

log = structlog.get_logger(__name__)


def publish_turn(operation_id: str) -> None:
    """Publish that an operation waits to be claimed. Raises whatever the broker's client raises."""
    tasks.turn.apply_async((operation_id,), retry=False)


class CeleryDispatcher:
    """Publishes from a thread of its own, so that a reply never waits for the broker.

    An operation that waits to be published waits once, however often it is asked for. A daemon thread: a broker that is away
    does not hold up the end of a process, and what was not published is found by the sweep of another.
    """

    def __init__(self, publish: Callable[[str], None] = publish_turn) -> None:
        """The thread starts with the first operation."""
        self._publish = publish
        self._waiting: dict[str, None] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """How many operations wait to be published."""
        return len(self._waiting)

    def operation(self, operation_id: str) -> None:
        """Say that an operation waits to be claimed."""
        with self._changed:
            self._waiting[operation_id] = None
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dispatch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            operation_id = self._next()
            try:
                self._publish(operation_id)
            except Exception as error:  # noqa: BLE001 - the boundary to a broker: any failure of it only delays
                log.warning("dispatch.failed", operation=operation_id, error=type(error).__name__)
                self._give_up()

    def _next(self) -> str:
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            operation_id = next(iter(self._waiting))
            del self._waiting[operation_id]
            return operation_id

    def _give_up(self) -> None:
        """Forget what waits: it would fail alike, each after its own time-out, while the sweep asks for all of it again."""
        with self._changed:
            self._waiting.clear()


class LocalDispatcher:
    """Hands work to a runner in this process: no broker, no worker process (the embedded host)."""

    def __init__(self, submit: Callable[[str], None]) -> None:
        """`submit` may be called from any thread."""
        self._submit = submit

    def operation(self, operation_id: str) -> None:
        """Run an operation here."""
        self._submit(operation_id)
