"""Kept statements do what the ORM does: the same values in and out of both databases, and whole rows only."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.test.utils import CaptureQueriesContext

from permissions_app.models import AuditRecord
from sessions_app import ledger, rows
from sessions_app.callers import system
from sessions_app.models import (
    Attachment,
    DeferredEntry,
    HistoryEntry,
    Operation,
    Receipt,
    Session,
    SessionEvent,
    SessionLabel,
    ToolCall,
)
from tests.support.world import World, opened

NOW = datetime(2030, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
HARD = "ünï\u2028'\"%s\\ ☃"
"""Text that breaks what is not passed as a parameter."""


def filled(world: World) -> list[models.Model]:
    """One row of every model that is written this way, with a hard value in each column."""
    client = world.idle()
    session = world.session(client.session_id)
    at = {"created_at": NOW, "updated_at": NOW, "started_at": NOW, "at": NOW, "expires_at": NOW}
    numbers = 2**63 - 2
    operation = Operation(
        id="op_filled",
        session=session,
        generation=numbers,
        kind="turn",
        state="running",
        error=b"\x00\xff",
        retryable=True,
        started_at=at["started_at"],
        updated_at=at["updated_at"],
        streamed=b"[]",
        live_sequence=numbers,
        attempt=2**31 - 1,
    )
    return [
        operation,
        SessionEvent(
            session=session,
            sequence=numbers,
            revision=numbers,
            at=NOW,
            kind=HARD[:40],
            payload=b"\x00\xff'",
            extra=b"{}",
        ),
        HistoryEntry(
            session=session,
            position=numbers,
            number=numbers,
            role="user",
            kind="message",
            payload=HARD.encode(),
            size=2**31 - 1,
            call_key=HARD,
            initial=True,
        ),
        DeferredEntry(session=session, number=numbers, role="user", kind="message", payload=b"%s", size=1),
        ToolCall(
            session=session,
            operation=operation,
            position=0,
            call_id=HARD,
            name=HARD,
            kind="function",
            arguments=HARD,
            state="done",
            approved=True,
            output=b"\x00",
            committed=False,
        ),
        Receipt(
            principal_id="pri_x",
            session_id="",
            method="m",
            key="k",
            digest=bytes(range(32)),
            state="success",
            outcome=b"{}",
            created_at=NOW,
            expires_at=None,
        ),
        SessionLabel(session=session, digest=bytes(range(32))),
        Attachment(
            id="att_filled",
            session=session,
            connection_id=None,
            principal_id="pri_x",
            mode="read_only",
            hidden=True,
            handed_sequence=numbers,
            created_at=NOW,
        ),
        AuditRecord(at=NOW, level="info", name=HARD[:20], session_id="", principal_id="", payload=b"{}"),
    ]


def columns(row: models.Model) -> dict[str, Any]:
    """Return what a row holds, by the names of its columns."""
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_rows_are_what_the_orm_reads_and_writes(committed_world: World) -> None:
    """Text, bytes, instants to the microsecond, 64-bit numbers, booleans, nulls and foreign keys, on both databases."""
    committed_world.break_laws()
    for row in filled(committed_world):
        rows.insert([row])
        assert not row._state.adding
        table = type(row)._default_manager
        by_orm = table.get(pk=row.pk) if row.pk else table.latest("pk")
        given = {name: value for name, value in columns(row).items() if name != "id" or row.pk}
        assert given.items() <= columns(by_orm).items(), type(row).__name__

        loaded = rows.Select(type(row), "id = %s").first(by_orm.pk)
        assert loaded is not None
        assert columns(loaded) == columns(by_orm)


def test_an_update_writes_the_named_columns_only(committed_world: World) -> None:
    client = committed_world.create()
    mine = committed_world.session(client.session_id)
    Session.objects.update(halt_reason="of somebody else", halted=True)
    mine.waiting_on, mine.halted, mine.lease_expires_at = HARD, False, NOW
    mine.observed, mine.reclaim_digest = "waiting_for_permission", b"\x00\xff"
    rows.update(mine, ["waiting_on", "observed", "halted", "lease_expires_at", "reclaim_digest"])
    row = Session.objects.get()
    assert (row.waiting_on, row.halted, row.halt_reason) == (HARD, False, "of somebody else")
    assert (row.lease_expires_at, bytes(row.reclaim_digest or b"")) == (NOW, b"\x00\xff")


def test_a_transaction_writes_what_changed(world: World) -> None:
    """`ledger` compares the columns as they were read: a concurrent writer of another column is not overwritten."""
    client = world.idle()
    claim = world.turn(client)
    with ledger.session_txn(client.session_id, system("test")) as txn:
        Operation.objects.filter(id=claim.operation_id).update(streamed=b"[]")
        assert txn.operation is not None
        txn.operation.updated_at += timedelta(seconds=1)
    assert Operation.objects.get().streamed == b"[]"


def test_constraints_hold(world: World) -> None:
    client = world.create()
    event = SessionEvent.objects.get(session_id=client.session_id)
    event.pk = None
    with pytest.raises(IntegrityError), transaction.atomic():
        rows.insert([event])


def test_inserting_nothing_asks_nothing(world: World) -> None:
    with CaptureQueriesContext(connection) as asked:
        rows.insert([])
    assert len(asked) == 0


def test_a_large_insert_is_split(world: World) -> None:
    """A SQLite built with its defaults takes 32,766 parameters in a statement; a prompt may have more messages."""
    world.break_laws()
    client = world.create()
    count = rows.MAX_PARAMETERS // (len(HistoryEntry._meta.concrete_fields) - 1) + 1
    many = [
        HistoryEntry(
            session_id=client.session_id,
            position=number,
            number=number,
            role="user",
            kind="message",
            payload=b"{}",
            size=1,
            initial=True,
        )
        for number in range(10, 10 + count)
    ]
    with CaptureQueriesContext(connection) as asked:
        rows.insert(many)
    assert len(asked) == 2
    assert HistoryEntry.objects.filter(position__gte=10).count() == count


def test_a_select_without_a_match_finds_nothing(world: World) -> None:
    select = rows.Select(Session, "id = %s")
    assert select.first("ses_unknown") is None
    assert select.all("ses_unknown") == []


# What is heavy

EVENTS = rows.Select(SessionEvent, "session_id = %s AND sequence > %s", order="sequence", heavy="payload")
LENGTHS = (2, rows.LIGHT_BYTES, rows.LIGHT_BYTES + 1, 3_000_000)


@pytest.mark.usefixtures("database")
def test_heavy_rows_are_weighed_before_they_are_read(tmp_path: Path) -> None:
    with opened(tmp_path) as world:
        world.break_laws()
        session = world.session(world.create().session_id)
        first = session.latest_sequence
        made = [
            SessionEvent(
                session=session, sequence=first + at, revision=1, at=NOW, kind="x", payload=b"x" * length
            )
            for at, length in enumerate(LENGTHS, 1)
        ]
        rows.insert(made)

        with CaptureQueriesContext(connection) as asked:
            found = list(EVENTS.weighed(session.id, first, at_most=10))
            assert [size for size, _ in found] == list(LENGTHS)
            assert len(asked) == 1
            read = [load() for _, load in found]
            assert [row and row.payload for row in read] == [event.payload for event in made]
            assert len(asked) == 3, "one more for each heavy row"
        assert [size for size, _ in EVENTS.weighed(session.id, first + 1, at_most=2)] == list(LENGTHS[1:3])
        assert list(EVENTS.weighed(session.id, first + 4, at_most=2)) == []

        for max_bytes, count in (
            (0, 1),
            (2, 2),
            (rows.LIGHT_BYTES, 2),
            (rows.LIGHT_BYTES + 2, 3),
            (10**7, 4),
        ):
            some = EVENTS.within(session.id, first, at_most=10, max_bytes=max_bytes)
            assert [len(row.payload) for row in some] == list(LENGTHS[:count])
        assert len(EVENTS.within(session.id, first, at_most=1, max_bytes=10**7)) == 1

        (_, light), (_, heavy) = EVENTS.weighed(session.id, first + 1, at_most=2)
        SessionEvent.objects.filter(session=session).delete()
        assert light() is not None
        assert heavy() is None, "it is gone by now"
