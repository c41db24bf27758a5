"""When the SQLite backend holds the store lock, and how its connections are set up."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import IntegrityError, connections, transaction
from django.db.transaction import TransactionManagementError

from sessions_app import limits
from sessions_app.errors import StoreLocked
from sessions_app.sqlite.base import DatabaseWrapper, writes
from sessions_app.sqlite.lock import StoreLock

IMPATIENT = limits.ServerSettings(store_lock_timeout_ms=20)
INSERT = "INSERT INTO scratch (value) VALUES (%s)"


@pytest.fixture
def store(transactional_db: None) -> Iterator[DatabaseWrapper]:
    """The connection to a store with a table of the test's own."""
    wrapper = connections["default"]
    if not isinstance(wrapper, DatabaseWrapper):
        pytest.skip("this run's database is PostgreSQL")
    with wrapper.cursor() as cursor:
        cursor.execute("CREATE TABLE scratch (id integer PRIMARY KEY, value integer NOT NULL UNIQUE)")
    yield wrapper
    with wrapper.cursor() as cursor:
        cursor.execute("DROP TABLE scratch")


@pytest.fixture
def rival(store: DatabaseWrapper) -> Iterator[StoreLock]:
    """Another writer's hold on the same store."""
    lock = StoreLock(str(store.settings_dict["NAME"]))
    yield lock
    lock.close()


def test_commits_are_synced_to_a_write_ahead_log(store: DatabaseWrapper) -> None:
    with store.cursor() as cursor:
        values = {
            name: cursor.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert values == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_the_file_is_its_owners_alone(store: DatabaseWrapper) -> None:
    assert Path(store.settings_dict["NAME"]).stat().st_mode & 0o777 == 0o600


def test_a_transaction_holds_the_lock_to_its_commit(store: DatabaseWrapper) -> None:
    with transaction.atomic():
        assert store.store_lock.held
        with transaction.atomic():
            assert store.store_lock.held
        assert store.store_lock.held
    assert not store.store_lock.held


def test_a_rollback_gives_the_lock_up(store: DatabaseWrapper) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        raise ZeroDivisionError
    assert not store.store_lock.held


def test_a_closed_connection_gives_the_lock_up(store: DatabaseWrapper, rival: StoreLock) -> None:
    with transaction.atomic():
        store.close()
        rival.acquire()
        rival.release()


def test_a_transaction_waits_for_the_lock_and_leaves_a_usable_connection(
    store: DatabaseWrapper, rival: StoreLock
) -> None:
    rival.acquire()
    with limits.using(IMPATIENT), pytest.raises(StoreLocked), transaction.atomic():
        raise AssertionError("the transaction began under another writer")
    rival.release()
    with transaction.atomic(), store.cursor() as cursor:
        cursor.execute(INSERT, [1])


def test_a_single_statement_that_writes_waits_for_the_lock(store: DatabaseWrapper, rival: StoreLock) -> None:
    with store.cursor() as cursor:
        rival.acquire()
        with limits.using(IMPATIENT):
            with pytest.raises(StoreLocked):
                cursor.execute(INSERT, [1])
            with pytest.raises(StoreLocked):
                cursor.executemany(INSERT, [[1], [2]])
        assert cursor.execute("SELECT count(*) FROM scratch").fetchone() == (0,)
        rival.release()
        cursor.executemany(INSERT, [[1], [2]])
        assert not store.store_lock.held


def test_returned_rows_are_committed_before_the_lock_is_given_up(
    store: DatabaseWrapper, rival: StoreLock
) -> None:
    with store.cursor() as cursor:
        cursor.execute("INSERT INTO scratch (value) VALUES (1), (2), (3), (4) RETURNING value")
        rival.acquire()
        other = sqlite3.connect(str(store.settings_dict["NAME"]), timeout=0)
        assert other.execute("SELECT count(*) FROM scratch").fetchone() == (4,)
        other.close()
        assert cursor.fetchone() == (1,)
        assert cursor.fetchmany(1) == [(2,)]
        assert next(iter(cursor)) == (3,)
        assert cursor.fetchall() == [(4,)]
        assert cursor.fetchone() is None


def test_a_refused_statement_gives_the_lock_up(store: DatabaseWrapper) -> None:
    with store.cursor() as cursor:
        cursor.execute(INSERT, [1])
        with pytest.raises(IntegrityError):
            cursor.execute(INSERT, [1])
    assert not store.store_lock.held


def test_a_writer_that_ignores_the_lock_makes_the_store_locked(store: DatabaseWrapper) -> None:
    stranger = sqlite3.connect(str(store.settings_dict["NAME"]), isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    with store.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 20")
    with pytest.raises(StoreLocked), transaction.atomic():
        raise AssertionError("the transaction began under another writer")
    stranger.execute("ROLLBACK")
    stranger.close()
    assert not store.store_lock.held


def test_reading_takes_no_lock_and_refuses_to_write(store: DatabaseWrapper, rival: StoreLock) -> None:
    rival.acquire()
    with store.reading(), transaction.atomic(), store.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM scratch").fetchone() == (0,)
        with pytest.raises(TransactionManagementError):
            cursor.execute(INSERT, [1])


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        " (select 1)",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "PRAGMA user_version",
        "EXPLAIN SELECT 1",
        "ROLLBACK TO SAVEPOINT a",
    ],
)
def test_what_reads(statement: str) -> None:
    assert not writes(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO a VALUES (1)",
        "\n update a SET b = 1",
        "DELETE FROM a",
        "REPLACE INTO a VALUES (1)",
        "WITH a AS (SELECT 1)\nINSERT INTO b SELECT * FROM a",
        "CREATE TABLE a (b)",
        "VACUUM",
        "ANALYZE",
    ],
)
def test_what_writes(statement: str) -> None:
    assert writes(statement)
