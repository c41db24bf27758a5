"""Telling workers to look: by Celery, or inside one process (design 2, `Dispatcher`).

Owns: the two dispatchers. Neither blocks nor fails for want of a broker: the rows are the queue of record, and the sweep finds
what a lost message spoke of.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from jobs_app import tasks

log = structlog.get_logger(__name__)


class CeleryDispatcher:
    """Publishes from a thread of its own, so that a reply never waits for the broker."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dispatch")

    def operation(self, operation_id: str) -> None:
        """Say that an operation waits to be claimed."""
        self._thread.submit(_publish_turn, operation_id)

    def close(self) -> None:
        """Publish what was asked for and stop."""
        self._thread.shutdown(wait=True, cancel_futures=True)


class LocalDispatcher:
    """Hands work to a runner in this process: no broker, no worker process (the embedded host)."""

    def __init__(self, submit: Callable[[str], None]) -> None:
        """`submit` may be called from any thread."""
        self._submit = submit

    def operation(self, operation_id: str) -> None:
        """Run an operation here."""
        self._submit(operation_id)


def _publish_turn(operation_id: str) -> None:
    try:
        tasks.turn.apply_async((operation_id,), retry=False)
    except Exception as error:  # noqa: BLE001 - the boundary to a broker: any failure of it only delays
        log.warning("dispatch.failed", operation=operation_id, error=type(error).__name__)
