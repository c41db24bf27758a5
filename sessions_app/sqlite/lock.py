"""The store lock: whoever writes a SQLite file holds it, from before its transaction until after the commit.

SQLite's own lock is a race of busy-waiters, in which a process can lose for seconds. Here the threads of
one process stand in line, and only the first of them competes with the other processes for an `flock` on
`<file>.lock`. The kernel drops that lock when its holder dies.

Owns: the order of writers and the time limit. Does not own: which statements write (`base.py`).
"""

import fcntl
import os
import threading
import time
from collections import deque
from pathlib import Path
from random import uniform

from sessions_app import limits
from sessions_app.errors import StoreLocked

# A commit takes about a millisecond: look often at first, then seldom enough to cost no CPU.
FIRST_PAUSE_SECONDS = 50e-6
LONGEST_PAUSE_SECONDS = 2e-3


class Line:
    """Threads of one process, served first come, first served."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._taken = False

    @property
    def waiting(self) -> int:
        """How many threads stand in line."""
        return len(self._waiting)

    def enter(self, timeout: float) -> bool:
        """Wait for this thread's turn, at most `timeout` seconds; whether it came."""
        with self._mutex:
            if not self._taken:
                self._taken = True
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        if turn.acquire(timeout=timeout):
            return True
        with self._mutex:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return False
        return True  # The turn came between the time limit and this line.

    def leave(self) -> None:
        """Give the turn to the next thread in line."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


_lines: dict[Path, Line] = {}
_lines_mutex = threading.Lock()


def _line(path: Path) -> Line:
    with _lines_mutex:
        return _lines.setdefault(path, Line())


class StoreLock:
    """One connection's hold on the store; used by the thread that uses the connection."""

    def __init__(self, database: str) -> None:
        self._path = Path(f"{Path(database).resolve()}.lock")
        self._line = _line(self._path)
        self._descriptor: int | None = None
        self.held = False

    def acquire(self) -> None:
        """Take the lock.

        Refuses with `StoreLocked` after the setting `store_lock_timeout_ms`.
        """
        timeout = limits.server().store_lock_timeout_ms / 1000
        deadline = time.monotonic() + timeout
        if not self._line.enter(timeout):
            raise StoreLocked("the store is busy; try again")
        try:
            self._compete(deadline)
        except BaseException:
            self._line.leave()
            raise
        self.held = True

    def release(self) -> None:
        """Give the lock up; nothing happens when it is not held."""
        if not self.held or self._descriptor is None:
            return
        self.held = False
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._line.leave()

    def close(self) -> None:
        """Give the lock up and close its descriptor; the next `acquire` opens one again."""
        self.release()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _compete(self, deadline: float) -> None:
        # A descriptor of its own for each connection: an flock excludes open files, not threads.
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StoreLocked("the store is busy; try again") from None
            else:
                return
            # Uneven pauses, so that no process always looks just before another one's release.
            time.sleep(pause * uniform(0.5, 1.0))  # noqa: S311 - spreads load, protects nothing
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
