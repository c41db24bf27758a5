"""Database threads, read snapshots and the database's clock."""

import asyncio
import threading
from contextvars import ContextVar
from datetime import UTC, timedelta

import pytest
from django.contrib.auth.models import Group
from django.db import connection, transaction

from sessions_app import clock, db

asked_by: ContextVar[str] = ContextVar("asked_by", default="nobody")


async def test_in_db_runs_in_a_thread_of_its_own_and_returns(database: str) -> None:
    def work(name: str, *, greeting: str) -> tuple[str, bool]:
        return f"{greeting} {name}", threading.current_thread() is threading.main_thread()

    assert await db.in_db(work, "world", greeting="hello") == ("hello world", False)


async def test_in_db_hands_refusals_and_context_on(database: str) -> None:
    def refuse() -> None:
        raise LookupError(asked_by.get())

    token = asked_by.set("somebody")
    with pytest.raises(LookupError, match="somebody"):
        await db.in_db(refuse)
    asked_by.reset(token)


async def test_a_thread_keeps_its_connection_and_drops_a_broken_one(database: str) -> None:
    def identity() -> int:
        connection.ensure_connection()
        return id(connection.connection)

    def break_it() -> None:
        connection.ensure_connection()
        connection.set_autocommit(False)

    def autocommits() -> bool:
        connection.ensure_connection()
        return connection.get_autocommit()

    await db.in_db(identity)
    await db.in_db(break_it)
    assert all(await asyncio.gather(*(db.in_db(autocommits) for _ in range(20))))


async def test_what_keeps_a_process_alive_waits_for_no_client(database: str) -> None:
    """However many functions wait for the threads of all."""
    free = threading.Event()
    waiting = [asyncio.ensure_future(db.in_db(free.wait, 60)) for _ in range(200)]
    try:
        async with asyncio.timeout(30):
            assert await db.beside_db(Group.objects.count) == 0
        assert not any(one.done() for one in waiting)
    finally:
        free.set()
        await asyncio.gather(*waiting)


async def test_shutdown_finishes_work_and_the_next_call_starts_again(database: str) -> None:
    first = asyncio.ensure_future(db.in_db(Group.objects.create, name="first"))
    await asyncio.sleep(0)
    db.shutdown()
    await first
    assert await db.in_db(Group.objects.count) == 1


def test_a_read_snapshot_sees_one_state(database: str) -> None:
    Group.objects.create(name="before")
    with db.read_snapshot():
        assert Group.objects.count() == 1
        writer = threading.Thread(target=_create_group, args=("during",))
        writer.start()
        writer.join(30)
        assert Group.objects.count() == 1
    assert Group.objects.count() == 2


def test_a_read_snapshot_refuses_to_write(database: str) -> None:
    with pytest.raises(Exception, match=r"read snapshot|read-only"), db.read_snapshot():
        Group.objects.create(name="never")
    assert Group.objects.count() == 0


def test_a_read_snapshot_is_no_part_of_a_transaction(database: str) -> None:
    with pytest.raises(RuntimeError), transaction.atomic(), db.read_snapshot():
        raise AssertionError("the snapshot began inside a transaction")


def test_the_databases_clock_is_aware_and_utc(database: str) -> None:
    now = db.database_now()
    assert now.tzinfo is UTC
    assert abs(now - clock.now()) < timedelta(minutes=1)


def _create_group(name: str) -> None:
    Group.objects.create(name=name)
    connection.close()
