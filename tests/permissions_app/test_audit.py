"""The audit log: what it says, that it has no gaps, and that tampering shows (behaviour 15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import TYPE_CHECKING

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from permissions_app import audit
from permissions_app.audit import Filter
from permissions_app.audit_batch import AuditBatch
from permissions_app.models import AuditRecord
from permissions_app.scopes import command_line
from sessions_app import clock
from sessions_app.callers import EVERYTHING, Caller, Connected, Operator
from sessions_app.db import in_db
from sessions_app.participants import CommandOutcome
from tests.permissions_app import world
from tests.support.waiting import until

if TYPE_CHECKING:
    from sessions_app.records import AuditRecord as Shown
    from sessions_app.records import ErrorCode

ANY = Filter()
ADA = Caller("pri_ada", frozenset(), EVERYTHING, Connected("con_ada"))


def note(
    command: str = "session.get",
    *,
    code: ErrorCode | None = None,
    session_id: str | None = None,
    caller: Caller = ADA,
) -> None:
    """Insert the record of a command, as its transaction does."""
    outcome = CommandOutcome(command=command, session_id=session_id, code=code or "success")
    audit.command_record(caller, outcome, clock.now()).save()


def read(wanted: Filter = ANY, after: int = 0, limit: int = 100) -> list[Shown]:
    audit.chain_waiting()
    return audit.read_page(wanted, after, limit)


@pytest.mark.django_db
def test_a_record_says_who_did_what_with_which_outcome() -> None:
    note("session.stop", session_id="ses_one")
    note("prompt.get", code="prompt_not_found")
    note("operator.share", caller=command_line())
    stop, get, share = read()
    assert (stop.sequence, stop.level, stop.name) == (1, "info", "protocol.command.succeeded")
    assert (stop.session_id, stop.principal_id) == ("ses_one", "pri_ada")
    assert bytes(stop.payload) == b'{"method":"session.stop","outcome":"success"}'
    assert (get.level, get.name) == ("warning", "protocol.command.failed")
    assert bytes(get.payload) == b'{"method":"prompt.get","outcome":"prompt_not_found"}'
    assert share.name == "operator.share"
    by = command_line().access
    assert isinstance(by, Operator)
    said = {"command": "share", "outcome": "success", "operator": by.name}
    assert msgspec.json.decode(share.payload) == said
    assert all(record.redacted for record in (stop, get, share))


@pytest.mark.django_db
def test_filters_hold_together_and_pages_go_on_behind_a_sequence() -> None:
    for number in range(4):
        note("session.stop", session_id=f"ses_{number % 2}", code="conflict" if number > 1 else None)
    batch = AuditBatch()
    batch.denied("pri_bob", "session.create", "permission_denied")
    batch.flush()

    def sequences(wanted: Filter) -> list[int]:
        return [record.sequence for record in read(wanted)]

    assert sequences(Filter()) == [1, 2, 3, 4, 5]
    assert sequences(Filter(session_id="ses_1")) == [2, 4]
    assert sequences(Filter(session_id="ses_1", minimum_level="warning")) == [4]
    assert sequences(Filter(minimum_level="error")) == []
    assert sequences(Filter(principal_id="pri_bob")) == [5]
    assert sequences(Filter(name_prefix="protocol.command.f")) == [3, 4]
    assert sequences(Filter(name_prefix="PROTOCOL")) == []
    assert sequences(Filter(name_prefix="%")) == []
    assert sequences(Filter(name_prefix="protocol\0")) == []
    assert [record.sequence for record in read(after=2, limit=1)] == [3, 4]


@pytest.mark.django_db
def test_rare_records_are_read_part_by_part_and_in_order() -> None:
    """12.1: by sequence, whichever levels and names a page is put together from."""
    for number in range(12):
        kind = number % 4
        note("operator.share" if kind == 1 else "session.stop", code="conflict" if kind == 2 else None)
        if kind == 3:
            batch = AuditBatch()
            batch.denied("pri_bob", "session.create", "permission_denied")
            batch.flush()
    everything = read(limit=100)

    for wanted in (
        Filter(minimum_level="warning"),
        Filter(name_prefix="operator."),
        Filter(name_prefix="protocol.command.d"),
        Filter(name_prefix="o"),
        Filter(name_prefix="protocol.command."),
        Filter(minimum_level="warning", name_prefix="protocol.command.f"),
    ):
        expected = [
            record.sequence
            for record in everything
            if record.name.startswith(wanted.name_prefix)
            and (wanted.minimum_level == "info" or record.level != "info")
        ]
        assert expected
        assert [record.sequence for record in read(wanted, limit=100)] == expected
        assert [record.sequence for record in read(wanted, after=expected[0], limit=1)] == expected[1:3]


@pytest.mark.django_db
def test_records_are_chained_in_steps_without_gaps() -> None:
    for _ in range(5):
        note()
    assert audit.oldest_waiting() is not None
    assert [audit.chain(2) for _ in range(4)] == [2, 2, 1, 0]
    assert audit.oldest_waiting() is None
    assert audit.verify() == audit.Verdict(5)


@pytest.mark.django_db
def test_an_empty_log_is_whole() -> None:
    assert audit.verify() == audit.Verdict(0)


def alter(column: str, value: object) -> Callable[[], object]:
    return lambda: AuditRecord.objects.filter(sequence=3).update(**{column: value})


def remove(sequence: int) -> Callable[[], object]:
    return lambda: AuditRecord.objects.filter(sequence=sequence).delete()


def swap() -> None:
    second, third = AuditRecord.objects.filter(sequence__in=[2, 3]).order_by("sequence")
    AuditRecord.objects.filter(pk=third.pk).update(payload=second.payload, name=second.name, at=second.at)
    AuditRecord.objects.filter(pk=second.pk).update(payload=third.payload, name=third.name, at=third.at)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("tamper", "broken_at", "reason"),
    [
        (alter("payload", b"{}"), 3, "altered"),
        (alter("principal_id", "pri_bob"), 3, "altered"),
        (alter("session_id", ""), 3, "altered"),
        (alter("level", "error"), 3, "altered"),
        (alter("name", "protocol.command.succeeded"), 3, "altered"),
        (alter("digest", bytes(32)), 3, "altered"),
        (swap, 2, "altered"),
        (remove(1), 1, "missing"),
        (remove(3), 3, "missing"),
        (remove(5), 5, "cut off"),
    ],
)
def test_tampering_shows(tamper: Callable[[], object], broken_at: int, reason: str) -> None:
    for number in range(5):
        note(f"session.{number}", session_id=f"ses_{number}", code="conflict")
    audit.chain()
    tamper()
    verdict = audit.verify()
    assert (verdict.broken_at, verdict.reason) == (broken_at, reason)
    with pytest.raises(CommandError, match=f"broken at record {broken_at}"):
        call_command("audit", "verify")


@pytest.mark.django_db
def test_the_oldest_part_is_cut_and_the_rest_can_still_be_verified() -> None:
    """15: "Retention … cuts the oldest part and keeps its last hash as anchor of the chain"."""
    for number in range(5):
        note(f"session.{number}")
    audit.chain()
    AuditRecord.objects.filter(sequence=2).update(at=clock.now() + timedelta(days=1))
    third, fourth = AuditRecord.objects.filter(sequence__in=[3, 4]).order_by("sequence")
    assert audit.cut(command_line(), third.at) == 1, "up to the first that is not older"
    AuditRecord.objects.filter(sequence=2).update(at=third.at)
    said = StringIO()
    call_command("audit", "cut", "--before", fourth.at.isoformat(), stdout=said)
    assert said.getvalue() == "2 audit records removed.\n"
    assert audit.cut(command_line(), fourth.at) == 0
    audit.chain()
    assert audit.verify() == audit.Verdict(4)
    assert [record.sequence for record in audit.read_page(audit.Filter(), 0, 10)] == [4, 5, 6, 7]
    assert {record.name for record in audit.read_page(audit.Filter(name_prefix="operator."), 0, 10)} == {
        "operator.audit.cut"
    }

    assert audit.cut(command_line(), clock.now() + timedelta(days=1)) == 4
    audit.chain()
    assert audit.verify() == audit.Verdict(1)
    remove(8)()
    assert audit.verify().reason == "cut off"


@pytest.mark.django_db
def test_the_command_chains_what_waits_and_counts_it() -> None:
    note()
    said = StringIO()
    call_command("audit", "verify", stdout=said)
    assert said.getvalue() == "1 audit records, none missing, none altered.\n"


@pytest.mark.django_db
def test_a_batch_is_written_by_a_flush_and_a_full_one_counts_what_it_loses() -> None:
    batch = AuditBatch(capacity=2)
    for _ in range(3):
        batch.command(ADA, CommandOutcome(command="session.get", session_id=None, code="success"))
        batch.auth_failed("10.0.0.1")
    for source in ("10.0.0.2", "10.0.0.3"):
        batch.auth_failed(source)
    assert batch.lost == 2
    assert not AuditRecord.objects.exists()
    batch.flush()
    assert AuditRecord.objects.count() == 2
    with CaptureQueriesContext(connection) as asked:
        batch.flush()
    assert len(asked) == 0


@pytest.mark.django_db
def test_a_lost_batch_is_counted_and_raises_nothing() -> None:
    batch = AuditBatch()
    batch.denied("pri_ada", "x" * 50, "permission_denied")
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE permissions_app_auditrecord RENAME TO elsewhere")
        batch.flush()
        transaction.set_rollback(True)
    assert batch.lost == 1


@pytest.mark.django_db
def test_failed_authentications_are_one_record_per_source_and_minute() -> None:
    now = clock.now()
    batch = AuditBatch()

    def fail(source: str, count: int, seconds: int) -> None:
        with clock.using(lambda: now + timedelta(seconds=seconds)):
            for _ in range(count):
                batch.auth_failed(source)
            batch.flush()
            audit.settle_failures()

    def written() -> list[bytes]:
        rows = AuditRecord.objects.filter(name="auth.failed", level="warning").order_by("id")
        return [row.payload for row in rows]

    fail("a", 2, 0)
    fail("a", 3, 30)
    fail("b", 1, 30)
    assert written() == []
    fail("a", 1, 60)
    assert written() == [b'{"count":6,"source":"a"}']
    fail("b", 0, 90)
    assert written()[1:] == [b'{"count":1,"source":"b"}']
    fail("a", 5, 100)
    assert len(written()) == 2
    fail("a", 0, 120)
    assert written()[2:] == [b'{"count":5,"source":"a"}']
    fail("a", 0, 3600)
    assert len(written()) == 3


@pytest.mark.django_db
def test_a_reader_sees_failures_of_the_running_minute_once() -> None:
    batch = AuditBatch()
    for _ in range(3):
        batch.auth_failed("a")
    batch.flush()
    assert [bytes(record.payload) for record in read()] == [b'{"count":3,"source":"a"}']
    batch.auth_failed("a")
    batch.flush()
    assert len(read()) == 1
    later = clock.now() + audit.FAILURE_WINDOW
    with clock.using(lambda: later):
        assert [bytes(record.payload) for record in read()][1:] == [b'{"count":1,"source":"a"}']


async def test_a_running_batch_writes_by_itself_and_its_last_one_when_it_ends(database: str) -> None:
    batch = AuditBatch()
    writing = asyncio.create_task(batch.keep_writing())

    async def is_written(count: int) -> None:
        await in_db(until, lambda: AuditRecord.objects.count() == count, "the batch is written")

    for count in (1, 2):
        # From another thread, as calls do.
        await asyncio.to_thread(batch.denied, "pri_ada", "session.create", "permission_denied")
        await is_written(count)
    batch.denied("pri_ada", "session.create", "permission_denied")
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await is_written(3)


def test_what_another_thread_is_writing_is_there_after_a_flush(database: str) -> None:
    batch = AuditBatch()

    def flush() -> int:
        batch.flush()
        return AuditRecord.objects.count()

    for count in range(1, 11):
        batch.denied("pri_ada", "session.create", "permission_denied")
        assert world.together(flush, flush) == [count, count]


def test_writers_and_chainers_at_once_leave_one_chain_without_gaps(database: str) -> None:
    def write() -> None:
        for _ in range(20):
            with transaction.atomic():
                note()

    def chain() -> None:
        for _ in range(15):
            audit.chain(7)

    world.together(*[write] * 4, *[chain] * 3)
    audit.chain_waiting()
    assert audit.verify() == audit.Verdict(80)
    sequences = AuditRecord.objects.order_by("sequence").values_list("sequence", flat=True)
    assert list(sequences) == list(range(1, 81))


def test_counters_and_settlers_at_once_lose_no_failure(database: str) -> None:
    def count() -> None:
        for _ in range(10):
            audit.write((), [("a", 1), ("b", 2)])

    def settle() -> None:
        for _ in range(5):
            audit.settle_failures(early=True)

    world.together(*[count] * 3, *[settle] * 2)
    later = clock.now() + audit.FAILURE_WINDOW
    with clock.using(lambda: later):
        audit.settle_failures()
    payloads = [msgspec.json.decode(row.payload) for row in AuditRecord.objects.all()]
    assert sum(payload["count"] for payload in payloads) == 3 * 10 * 3
