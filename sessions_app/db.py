"""Connections and threads: where ORM work runs, read snapshots, and the database's clock.

Owns: the bounded executor of this process and the connections of its threads. Does not own: the write
path (`ledger.py`), the store lock (`sqlite/`), the meaning of database errors (`store.py`).
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from typing import ParamSpec, TypeVar

from django.conf import settings
from django.db import connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from sessions_app import clock
from sessions_app.sqlite.base import DatabaseWrapper as SqliteWrapper

P = ParamSpec("P")
T = TypeVar("T")


class _Threads:
    """The database threads of this process, and the connection that each of them keeps."""

    def __init__(self) -> None:
        self._wrappers: list[BaseDatabaseWrapper] = []
        self.executor = self._make(settings.DATABASE_THREADS)
        self.own = self._make(1)

    def _make(self, threads: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(max_workers=threads, thread_name_prefix="database", initializer=self._join)

    def _join(self) -> None:
        self._wrappers.append(connections[connection.alias])

    def stop(self) -> None:
        for executor in (self.executor, self.own):
            executor.shutdown(wait=True)
        # Django closes no connection in a thread that runs an event loop, as the caller's may.
        closer = threading.Thread(target=self._close)
        closer.start()
        closer.join()

    def _close(self) -> None:
        for wrapper in self._wrappers:
            # Their threads are gone; nobody else uses them.
            wrapper.inc_thread_sharing()
            wrapper.close()


_threads: _Threads | None = None
_threads_mutex = threading.Lock()


async def in_db(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `function`, which uses the ORM, in a database thread, and return what it returns.

    The caller's context variables go along. Cancelling the caller does not stop a function that has
    begun: what it commits is committed.
    """
    return await _run(_started().executor, partial(function, *args, **kwargs))


async def beside_db(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Do as `in_db`, in a thread of its own: for what keeps this process alive, however many clients wait for the others.

    It must be short: there is one such thread.
    """
    return await _run(_started().own, partial(function, *args, **kwargs))


async def _run(executor: ThreadPoolExecutor, function: Callable[[], T]) -> T:
    call = partial(copy_context().run, function)
    return await asyncio.get_running_loop().run_in_executor(executor, _keeping_connection, call)


def shutdown() -> None:
    """Wait for the database threads to finish what was given to them, and close their connections."""
    global _threads
    with _threads_mutex:
        stopping, _threads = _threads, None
    if stopping is not None:
        stopping.stop()


@contextmanager
def read_snapshot() -> Iterator[None]:
    """One read-only transaction, in which every query sees the same state of the store.

    It takes no lock and waits for no writer. Not inside another transaction: refuses with `RuntimeError`.
    """
    if isinstance(connection_of_thread := connections[connection.alias], SqliteWrapper):
        with connection_of_thread.reading(), transaction.atomic(durable=True):
            yield
        return
    nested = connection.in_atomic_block
    with transaction.atomic(durable=True):
        if not nested:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def database_now() -> datetime:
    """The database's time, aware, in UTC: the one by which leases, claims and heartbeats are judged.

    A SQLite file is used on one machine, whose clock all its processes share.
    """
    if connection.vendor == "sqlite":
        return clock.now()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        row: tuple[datetime] = cursor.fetchone()
    return row[0].astimezone(UTC)


def _started() -> _Threads:
    global _threads
    with _threads_mutex:
        if _threads is None:
            _threads = _Threads()
        return _threads


def _keeping_connection(call: Callable[[], T]) -> T:
    try:
        return call()
    finally:
        # Only after an error does this ask the connection whether it still works.
        connections[connection.alias].close_if_unusable_or_obsolete()
