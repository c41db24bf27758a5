"""Django's SQLite backend for several processes that write one file.

Every transaction that writes, and every single statement that writes outside one, holds the store lock
(`lock.py`). Commits are durable: write-ahead log, synced in full. The database is a file on a local disk,
never memory.

Owns: pragmas, when the lock is taken and given up, what counts as writing. Does not own: read snapshots
and threads (`sessions_app/db.py`), the meaning of database errors (`sessions_app/store.py`).
"""

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from django.db import OperationalError
from django.db.backends.sqlite3 import base
from django.db.transaction import TransactionManagementError

from sessions_app.errors import StoreLocked
from sessions_app.sqlite.lock import StoreLock

T = TypeVar("T")

# Only writers that do not know the store lock, such as a shell's `sqlite3`, can make SQLite itself wait.
BUSY_TIMEOUT_SECONDS = 10.0

PRAGMAS = (
    # A commit is on the disk before it returns: nothing acknowledged is lost with the power.
    "PRAGMA synchronous = FULL",
    # Per connection, and a process has one for each of its database threads.
    "PRAGMA cache_size = -4096",
    # Pages are read through one mapping that all processes share.
    "PRAGMA mmap_size = 134217728",
    "PRAGMA temp_store = MEMORY",
    # What a burst of writes leaves behind is cut to this after the next checkpoint.
    "PRAGMA journal_size_limit = 67108864",
)

_READS = re.compile(
    r"[\s(]*(SELECT|EXPLAIN|PRAGMA|VALUES|BEGIN|SAVEPOINT|RELEASE|ROLLBACK|COMMIT)\b", re.IGNORECASE
)
_READS_WITH = re.compile(r"\s*WITH\b(?!.*\b(INSERT|UPDATE|DELETE|REPLACE)\b)", re.IGNORECASE | re.DOTALL)


LONGEST_KEPT = 4096
"""What is looked for in statements of at most so many characters is kept: most come again, and a large insert does not."""


def _kept(function: Callable[[str], T]) -> Callable[[str], T]:
    """Remember what a function of a statement returned."""
    remembered = lru_cache(maxsize=1024)(function)
    return lambda statement: (remembered if len(statement) <= LONGEST_KEPT else function)(statement)


@_kept
def writes(statement: str) -> bool:
    """Whether a statement may change the database; what is not known to read counts as writing."""
    return not (_READS.match(statement) or _READS_WITH.match(statement))


@_kept
def _with_question_marks(statement: str) -> str:
    """The statement as the driver takes it: Django writes its parameters as `%s`."""
    return base.FORMAT_QMARK_REGEX.sub("?", statement).replace("%%", "%")


class DatabaseWrapper(base.DatabaseWrapper):
    """One connection, with its own descriptor of the store lock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._store_lock: StoreLock | None = None
        self._reading = False

    @property
    def store_lock(self) -> StoreLock:
        """The lock of the file that this connection has open."""
        if self._store_lock is None:
            self._store_lock = StoreLock(str(self.settings_dict["NAME"]))
        return self._store_lock

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Transactions begun in this block take no lock, see one state of the store, and refuse to write."""
        self._reading = True
        try:
            yield
        finally:
            self._reading = False

    def get_connection_params(self) -> dict[str, Any]:
        """Django's parameters, with a time limit for writers from outside."""
        return {"timeout": BUSY_TIMEOUT_SECONDS, **super().get_connection_params()}

    def get_new_connection(self, conn_params: dict[str, Any]) -> sqlite3.Connection:
        """Open the file; the first connection ever makes it, for its owner alone, and turns the write-ahead log on."""
        Path(conn_params["database"]).touch(mode=0o600)
        connection: sqlite3.Connection = super().get_new_connection(conn_params)
        for pragma in PRAGMAS:
            connection.execute(pragma)
        if connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
            # The change needs the file alone, and SQLite does not wait for it.
            self.alone(partial(connection.execute, "PRAGMA journal_mode = WAL"))
        return connection

    def create_cursor(self, name: str | None = None) -> "Cursor":
        """Make a cursor that knows its connection's lock."""
        cursor: Cursor = self.connection.cursor(factory=Cursor)
        cursor.wrapper = self
        return cursor

    def alone(self, action: Callable[[], T]) -> T:
        """Run `action` under the store lock.

        Refuses with `StoreLocked` when the lock was not got in time.
        """
        self.store_lock.acquire()
        try:
            return action()
        finally:
            self.store_lock.release()

    def _start_transaction_under_autocommit(self) -> None:
        if self._reading:
            self.cursor().execute("BEGIN DEFERRED")
            return
        self.store_lock.acquire()
        try:
            self.cursor().execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self.store_lock.release()
            if isinstance(error, OperationalError) and _is_busy(error.__cause__):
                raise StoreLocked("the store is busy; try again") from error
            raise

    def _commit(self) -> None:
        try:
            super()._commit()  # type: ignore[misc]  # not in the stubs
        finally:
            self._release_after_transaction()

    def _rollback(self) -> None:
        try:
            super()._rollback()  # type: ignore[misc]  # not in the stubs
        finally:
            self._release_after_transaction()

    def _close(self) -> None:
        try:
            super()._close()  # type: ignore[misc]  # not in the stubs
        finally:
            if self._store_lock is not None:
                self._store_lock.close()
                self._store_lock = None

    def _release_after_transaction(self) -> None:
        # A commit that failed leaves its transaction open: the lock goes with the rollback that follows.
        if not self.connection.in_transaction:
            self.store_lock.release()


class Cursor(base.SQLiteCursorWrapper):
    """Takes the store lock around a statement that writes outside a transaction."""

    wrapper: DatabaseWrapper
    _returned: Iterator[Any] | None = None

    def execute(self, query: str, params: Any = None) -> Any:
        """Run one statement.

        Refuses with `StoreLocked` when it writes outside a transaction and the lock was not got in time.
        """
        return self._run(query, partial(super().execute, query, params))

    def executemany(self, query: str, param_list: Iterable[Any]) -> Any:
        """Run one statement once for each of `param_list`; refuses like `execute`."""
        return self._run(query, partial(super().executemany, query, param_list))

    def convert_query(self, query: str, *, param_names: list[str] | None = None) -> str:
        """Django's, remembered where parameters have no names."""
        if param_names is None:
            return _with_question_marks(query)
        return str(super().convert_query(query, param_names=param_names))

    def fetchone(self) -> Any:
        """The next row, or None."""
        return super().fetchone() if self._returned is None else next(self._returned, None)

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """The next `size` rows."""
        wanted = self.arraysize if size is None else size
        if self._returned is None:
            return super().fetchmany(wanted)
        return list(islice(self._returned, wanted))

    def fetchall(self) -> list[Any]:
        """The rows that are left."""
        return super().fetchall() if self._returned is None else list(self._returned)

    def __next__(self) -> Any:
        return super().__next__() if self._returned is None else next(self._returned)

    def _run(self, query: str, run: Callable[[], Any]) -> Any:
        self._returned = None
        if self.wrapper.store_lock.held or not writes(query):
            return run()
        if self.connection.in_transaction:
            raise TransactionManagementError("a read snapshot does not write")
        return self.wrapper.alone(partial(self._finish, run))

    def _finish(self, run: Callable[[], Any]) -> Any:
        result = run()
        if self.description is not None:
            # A statement with RETURNING commits with its last row: fetch them while the lock is held.
            self._returned = iter(super().fetchall())
        return result


def _is_busy(cause: BaseException | None) -> bool:
    code = getattr(cause, "sqlite_errorcode", None)
    return code is not None and code & 0xFF == sqlite3.SQLITE_BUSY
