"""Audit records that no transaction of a session writes: reads, denials, failed authentications (behaviour
15).

Owns: gathering them in memory and writing them within 100 ms, bounded. Does not own: what a record says and
the chain (`audit.py`). An answer never waits for its record: one that is lost degrades the health of this
process instead.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING

import structlog

from permissions_app import audit
from sessions_app import clock
from sessions_app.db import in_db
from sessions_app.errors import Refusal

if TYPE_CHECKING:
    from permissions_app.models import AuditRecord
    from sessions_app.callers import Caller
    from sessions_app.participants import CommandOutcome
    from sessions_app.records import ErrorCode

log = structlog.get_logger(__name__)

BATCH_SECONDS = 0.1
CAPACITY = 10_000
"""Records, and sources, held while the store is slow: some megabytes. What comes on top is lost and
counted.
"""
MAX_SOURCE_CHARS = 255


class AuditBatch:
    """What one process has yet to write. Every method but `keep_writing` may be called from any thread."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._rows: list[AuditRecord] = []
        self._failures: Counter[str] = Counter()
        self._wake: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.lost = 0
        """Records lost since the process began; any degrade the component `audit`."""

    def command(self, caller: Caller, outcome: CommandOutcome) -> None:
        """Note a command that wrote no record itself: a read, or one that failed before its transaction."""
        self._add(audit.command_record(caller, outcome, clock.now()))

    def denied(self, principal_id: str, method: str, code: ErrorCode) -> None:
        """Note a call refused for want of a scope or of initialization."""
        self._add(audit.denied_record(principal_id, method, code, clock.now()))

    def auth_failed(self, source: str) -> None:
        """Note bad credentials from `source`: the peer's address, or the name of the transport."""
        with self._lock:
            if len(self._failures) < self._capacity or source in self._failures:
                self._failures[source[:MAX_SOURCE_CHARS]] += 1
            else:
                self.lost += 1
        self._rouse()

    def flush(self) -> None:
        """Write what is held, now, in this thread. A failure is logged and counted, never raised.

        What another thread is just writing is in the store, too, when this returns.
        """
        with self._writing:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            rows, self._rows = self._rows, []
            failures, self._failures = self._failures, Counter()
        if not rows and not failures:
            return
        try:
            audit.write(rows, failures.items())
        except Refusal:
            log.exception("audit.lost", records=len(rows), sources=len(failures))
            with self._lock:
                self.lost += len(rows) + len(failures)

    async def keep_writing(self) -> None:
        """Write each batch at most 100 ms after its first record, until cancelled; then write the last
        one.
        """
        self._wake, self._loop = asyncio.Event(), asyncio.get_running_loop()
        try:
            while True:
                await in_db(self.flush)
                await self._wake.wait()
                self._wake.clear()
                await asyncio.sleep(BATCH_SECONDS / 2)
        finally:
            self._loop = None
            await asyncio.shield(in_db(self.flush))

    def _add(self, row: AuditRecord) -> None:
        with self._lock:
            if len(self._rows) < self._capacity:
                self._rows.append(row)
            else:
                self.lost += 1
        self._rouse()

    def _rouse(self) -> None:
        loop, wake = self._loop, self._wake
        if loop is not None and wake is not None and not wake.is_set():
            loop.call_soon_threadsafe(wake.set)


batch = AuditBatch()
"""The batch of this process."""
