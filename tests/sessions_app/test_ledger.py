"""The write path: one lock, one revision, contiguous sequences, commit before wake (behaviour 0.1, 0.2, 1.1, 11.3)."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pytest
from channels.layers import InMemoryChannelLayer
from django.db import IntegrityError, connection, connections

from permissions_app.models import AuditRecord
from sessions_app import clock, ledger, limits, participants
from sessions_app.broadcast import Broadcast
from sessions_app.callers import Caller, system
from sessions_app.commands import messages
from sessions_app.db import in_db
from sessions_app.errors import (
    CommandQueueFull,
    Conflict,
    InvalidState,
    PermissionDenied,
    PersistenceError,
    ServerShuttingDown,
    SessionNotFound,
    StoreLocked,
)
from sessions_app.events import ModeratorNotificationPayload
from sessions_app.ledger import COUNTER_MAX, Txn
from sessions_app.limits import ServerSettings
from sessions_app.models import HistoryEntry, Receipt, Session, SessionEvent
from sessions_app.participants import CommandOutcome, Participant
from tests.support.waiting import eventually
from tests.support.world import Client, World, plain, together

if TYPE_CHECKING:
    from collections.abc import Callable

BY = system("test")


class Answer(msgspec.Struct, frozen=True):
    """What the commands of these tests return."""

    text: str


def notice(txn: Txn, text: str = "hello") -> int:
    return txn.emit("moderator.notification", ModeratorNotificationPayload(message=text))


# Revisions and sequences


def test_a_transaction_is_one_revision_however_many_events_it_has(world: World) -> None:
    """0.2: "revision goes up by exactly 1 per transaction… event sequence goes up by 1 per durable event… all events of one
    transaction carry the same revision and timestamp"."""
    client = world.create()
    revision, sequence = world.counters(client)
    with ledger.session_txn(client.session_id, BY) as txn:
        assert [notice(txn), notice(txn), notice(txn)] == [sequence + 1, sequence + 2, sequence + 3]

    events = world.events(client.session_id, sequence)
    assert {(event.revision, event.at) for event in events} == {(revision + 1, txn.now)}
    assert world.counters(client) == (revision + 1, sequence + 3)


def test_a_change_without_events_is_a_revision_too(world: World) -> None:
    """0.2: "even when it produces no event"."""
    client = world.create()
    revision, sequence = world.counters(client)
    with ledger.session_txn(client.session_id, BY) as txn:
        txn.touch()
        txn.touch()
    assert world.counters(client) == (revision + 1, sequence)


def test_a_transaction_that_touches_nothing_is_none(world: World) -> None:
    client = world.create()
    before = world.counters(client)
    with ledger.session_txn(client.session_id, BY) as txn:
        txn.session.next_history += 5
    assert world.counters(client) == before
    assert world.session(client.session_id).next_history == txn.session.next_history


def test_changes_in_a_row_are_revisions_of_their_own(world: World) -> None:
    """4.4: a start is "two transactions", durable together here: each has its revision and its time."""
    client = world.create()
    before = world.counters(client)[1]
    with ledger.session_txn(client.session_id, BY) as txn:
        notice(txn)
        txn.next_revision()
        notice(txn)
    first, second = world.events(client.session_id, before)
    assert second.revision == first.revision + 1
    assert second.at > first.at


def test_updated_at_follows_the_clock_but_never_precedes_the_creation(world: World) -> None:
    client = world.create()
    created = world.session(client.session_id).created_at
    world.clock.advance(hours=-1)
    with ledger.session_txn(client.session_id, BY) as txn:
        txn.touch()
    assert world.session(client.session_id).updated_at == created


@pytest.mark.parametrize("counters", [{"revision": COUNTER_MAX}, {"latest_sequence": COUNTER_MAX - 1}])
def test_counters_never_wrap(world: World, counters: dict[str, int]) -> None:
    """0.2: "counters are signed 64-bit; overflow is `invalid_state`, never wraparound"."""
    world.break_laws()
    client = world.create()
    Session.objects.filter(id=client.session_id).update(oldest_sequence=COUNTER_MAX, **counters)
    before = world.counters(client)
    with pytest.raises(InvalidState), ledger.session_txn(client.session_id, BY) as txn:
        notice(txn)
    assert world.counters(client) == before


def test_only_the_newest_events_are_retained_for_replay(world: World) -> None:
    """8.4: "The replay window is the last `max_events_per_session` events, contiguous"."""
    client = world.create()
    with limits.using(ServerSettings(max_events_per_session=3)):
        for _ in range(4):
            with ledger.session_txn(client.session_id, BY) as txn:
                notice(txn)
    row = world.session(client.session_id)
    assert (row.oldest_sequence, row.latest_sequence) == (3, 5)


def test_a_failing_block_changes_nothing(world: World) -> None:
    client = world.create()
    before = world.counters(client)
    with pytest.raises(LookupError), ledger.session_txn(client.session_id, BY) as txn:
        notice(txn)
        txn.flush()
        raise LookupError
    assert world.counters(client) == before
    assert len(world.events(client.session_id)) == before[1]


@pytest.mark.parametrize("session_id", ["ses_unknown", "archived"])
def test_only_sessions_that_are_there_change(world: World, session_id: str) -> None:
    """14.4: "Archived sessions are skipped"."""
    client = world.create()
    Session.objects.update(archived_at=clock.now())
    with (
        pytest.raises(SessionNotFound),
        ledger.session_txn(client.session_id if session_id == "archived" else session_id, BY),
    ):
        raise AssertionError("the block was entered")


# Locks and wake-ups


def test_two_writers_take_turns(committed_world: World) -> None:
    """0.1: "Every durable change to a session is one database transaction under that session's lock"."""
    world = committed_world
    client = world.create()
    entered, order = threading.Event(), []

    def first() -> None:
        with ledger.session_txn(client.session_id, BY) as txn:
            entered.set()
            # The other one is let go here, and cannot have passed before this transaction ends.
            assert not second_entered.wait(0.2)
            order.append(notice(txn, "first"))

    second_entered = threading.Event()

    def second() -> None:
        assert entered.wait(30)
        with ledger.session_txn(client.session_id, BY) as txn:
            second_entered.set()
            order.append(notice(txn, "second"))

    before = world.counters(client)
    together(first, second)
    assert order == [before[1] + 1, before[1] + 2]
    assert world.counters(client) == (before[0] + 2, before[1] + 2)


def test_waiting_for_the_lock_ends(committed_world: World) -> None:
    """0.1: "Waiting for the lock longer than `session_lock_timeout_ms` yields `command_queue_full`"; the SQLite store's lock is
    `store_locked`; 11.3: neither is an outcome."""
    world = committed_world
    client = world.create()
    settings = ServerSettings(session_lock_timeout_ms=50, store_lock_timeout_ms=50)

    def held() -> None:
        with ledger.session_txn(client.session_id, BY), ThreadPoolExecutor(1) as other:
            other.submit(blocked).result(30)

    def blocked() -> None:
        expected = StoreLocked if connection.vendor == "sqlite" else CommandQueueFull
        try:
            with limits.using(settings), pytest.raises(expected) as refused:
                world.stop(client, key="waited")
            assert refused.value.retryable
        finally:
            connections.close_all()

    held()
    assert not Receipt.objects.filter(key="waited").exists()


def test_what_is_woken_can_read_what_it_is_woken_for(committed_world: World) -> None:
    """0.2: "Never publish before storing": at the wake-up, another connection sees the new head."""
    world = committed_world
    client = world.idle()
    readers = ThreadPoolExecutor(1)
    woken: list[tuple[int, int]] = []

    def committed() -> int:
        try:
            return ledger.read_heads([client.session_id])[client.session_id]
        finally:
            connections.close_all()

    async def listen() -> None:
        heard = Broadcast(InMemoryChannelLayer())
        heard.on_wake(lambda _session, head: woken.append((head, readers.submit(committed).result(30))))
        await heard.start()
        try:
            sent = await in_db(world.send, client)
            with pytest.raises(Conflict):
                await in_db(world.cancel, client, "op_another")
            stopped = await in_db(world.stop, client)
            await eventually(lambda: stopped.latest_event_sequence in dict(woken), "the wake-up")
            heads = {sent.latest_event_sequence, stopped.latest_event_sequence}
            assert set(dict(woken)) == heads, "what was refused woke nobody"
        finally:
            await heard.stop()

    asyncio.run(listen())
    assert all(seen >= head for head, seen in woken)
    readers.shutdown()


def test_actions_wait_for_the_commit_and_vanish_with_it(committed_world: World) -> None:
    """0.2: an accepted change "is stored, then published"; one that is not accepted is never published."""
    world = committed_world
    client = world.create()
    seen: list[int] = []

    def look() -> None:
        with ThreadPoolExecutor(1) as other:
            seen.append(other.submit(_in_own_connection, lambda: world.counters(client)[0]).result(30))

    with ledger.session_txn(client.session_id, BY) as txn:
        txn.touch()
        txn.after_commit(look)
        assert seen == []
    assert seen == [txn.session.revision]

    with pytest.raises(LookupError), ledger.session_txn(client.session_id, BY) as txn:
        txn.after_commit(look)
        raise LookupError
    assert len(seen) == 1


def _in_own_connection(read: Callable[[], int]) -> int:
    try:
        return read()
    finally:
        connections.close_all()


# Commands


def refusing(txn: Txn) -> Answer:
    """Do what a command may do, make sure that it is in the database, then refuse."""
    txn.session.next_history += 7
    txn.session.halted = True
    notice(txn)
    HistoryEntry.objects.create(
        session=txn.session, position=99, number=99, role="user", kind="message", payload=b"{}", size=1
    )
    txn.after_commit(lambda: pytest.fail("woken for nothing"))
    txn.flush()
    raise InvalidState("no")


def test_a_refused_body_leaves_nothing_but_its_receipt_and_audit_record(world: World) -> None:
    """11.3: "savepoint, command, settle with the success or, after rollback to the savepoint, with the refusal, commit"; 15: "A
    mutation, refused or not, inserts its record"."""
    client = world.create()
    row = Session.objects.values().get(id=client.session_id)
    events, entries = SessionEvent.objects.count(), HistoryEntry.objects.count()
    with pytest.raises(InvalidState) as refused:
        ledger.command(
            world.call(client.caller, "session.stop", "refused"), client.session_id, Answer, refusing
        )

    assert Session.objects.values().get(id=client.session_id) == row
    assert (SessionEvent.objects.count(), HistoryEntry.objects.count()) == (events, entries)
    receipt = Receipt.objects.get(key="refused")
    assert (receipt.state, receipt.session_id) == ("refusal", client.session_id)
    record = AuditRecord.objects.get(session_id=client.session_id)
    assert (record.name, record.payload) == (
        "protocol.command.failed",
        b'{"method":"session.stop","outcome":"invalid_state"}',
    )
    assert refused.value.recorded


def test_a_failing_body_leaves_nothing_at_all(world: World) -> None:
    """11.3: "`internal_error` with everything rolled back: the same key may be used again"."""
    client = world.create()
    audited = AuditRecord.objects.count()

    def broken(txn: Txn) -> Answer:
        notice(txn)
        raise LookupError

    call = world.call(client.caller, "session.stop", "broken")
    with pytest.raises(LookupError):
        ledger.command(call, client.session_id, Answer, broken)
    assert not Receipt.objects.filter(key="broken").exists()
    assert AuditRecord.objects.count() == audited
    assert ledger.command(call, client.session_id, Answer, lambda _txn: Answer("now")) == Answer("now")


class Unwritable(Participant):
    """A participant whose record cannot be written."""

    def on_command(self, txn: Txn, caller: Caller, outcome: CommandOutcome) -> None:
        raise IntegrityError("disk full")


def test_a_command_whose_audit_record_cannot_be_written_commits_nothing(world: World) -> None:
    """1.1, step 12: "a mutation whose record cannot be written commits nothing: `persistence_error`"."""
    client = world.idle()
    before = world.counters(client)
    installed = participants.installed()
    participants.install((Unwritable(),), world.dispatched)
    with pytest.raises(PersistenceError) as refused:
        world.stop(client, key="unwritten")
    participants.install(installed, world.dispatched)
    assert refused.value.retryable
    assert "disk" not in refused.value.message
    assert world.counters(client) == before
    assert not Receipt.objects.filter(key="unwritten").exists()


def test_a_draining_process_replays_but_begins_nothing(world: World) -> None:
    """1.1: step 6, the receipt, precedes step 7, "process draining → `server_shutting_down`"; failures of step 7 are not stored."""
    client = world.idle()
    sent = world.send(client, key="before")
    assert world.send(client, key="before", draining=True) == sent
    with pytest.raises(ServerShuttingDown) as refused:
        world.send(client, key="after", draining=True)
    assert refused.value.retryable
    assert world.send(client, key="after").disposition == "deferred"


def test_the_writer_check_precedes_the_body(world: World) -> None:
    """5.5: "Nothing (disk, model, tool) may be touched before this passes"."""
    client = world.create(mode="read_only")

    def untouched(_txn: Txn) -> Answer:
        raise AssertionError("the body ran")

    with pytest.raises(PermissionDenied):
        ledger.command(world.call(client.caller, "session.stop"), client.session_id, Answer, untouched)


# Work that leaves its transaction


class Outside:
    """What `prepare` of a spanning command does: it looks at the store as others see it while it works."""

    def __init__(self, world: World, client: Client, *, refuse: BaseException | None = None) -> None:
        self.world, self.client, self.refuse = world, client, refuse
        self.seen: list[str] = []

    def call(self, key: str = "span", **options: object) -> Answer:
        call = self.world.call(self.client.caller, "session.send_message", key, **options)
        return ledger.spanning(
            call, self.client.session_id, Answer, check=_loaded, prepare=self.prepare, body=_tell
        )

    def prepare(self) -> str:
        self.seen.append(Receipt.objects.get(key="span").state)
        with ledger.session_txn(self.client.session_id, BY) as txn:  # the lock is free
            notice(txn, "meanwhile")
        if self.refuse is not None:
            raise self.refuse
        return "prepared"


def _loaded(session: Session) -> None:
    messages.check_accepts(session, plain("hello"))


def _tell(txn: Txn, prepared: str) -> Answer:
    notice(txn, prepared)
    return Answer(prepared)


def test_spanning_work_leaves_a_pending_receipt_and_holds_nothing(world: World) -> None:
    """11.3: "A *pending* row of its own, tied to its process's heartbeat, exists only where work leaves the transaction"."""
    client = world.idle()
    outside = Outside(world, client)
    with world.telling(client) as story:
        assert outside.call() == Answer("prepared")
        assert outside.call() == Answer("prepared")
    assert outside.seen == ["pending"], "the second call was a replay"
    assert story == [["moderator.notification"], ["moderator.notification"]]
    assert AuditRecord.objects.filter(session_id=client.session_id).count() == 2


@pytest.mark.parametrize("accepts", [True, False])
def test_spanning_work_is_refused_before_it_begins(world: World, accepts: bool) -> None:
    """4.6, 5.5: what the state of the session refuses is refused before anything outside is touched, and stored."""
    client = world.create(start=accepts, mode="read_only" if accepts else "read_write")
    outside = Outside(world, client)
    for _ in range(2):
        with pytest.raises(PermissionDenied if accepts else InvalidState):
            outside.call()
    assert outside.seen == []
    assert Receipt.objects.get(key="span").state == "refusal"


def test_a_draining_process_begins_no_spanning_work(world: World) -> None:
    """1.1, step 7: a new message with attachments is new work like any other; what is settled is replayed."""
    client = world.idle()
    outside = Outside(world, client)
    with pytest.raises(ServerShuttingDown):
        outside.call(draining=True)
    assert outside.seen == []
    answer = outside.call()
    assert outside.call(draining=True) == answer


def test_a_refusal_of_spanning_work_is_settled(world: World) -> None:
    """11.3: success or refusal, an outcome is stored once."""
    client = world.idle()
    outside = Outside(world, client, refuse=InvalidState("not like this"))
    for _ in range(2):
        with pytest.raises(InvalidState) as refused:
            outside.call()
        assert refused.value.recorded
    assert outside.seen == ["pending"]
    assert AuditRecord.objects.filter(session_id=client.session_id, level="warning").count() == 2


@pytest.mark.parametrize("failure", [LookupError(), StoreLocked("busy")])
def test_a_failure_of_spanning_work_is_no_outcome(world: World, failure: BaseException) -> None:
    """11.3: "No outcome, and so not stored, is a failure for want of the process or the store… the same key may be used again"."""
    client = world.idle()
    outside = Outside(world, client, refuse=failure)
    with pytest.raises(type(failure)):
        outside.call()
    assert not Receipt.objects.filter(key="span").exists()
    outside.refuse = None
    assert outside.call() == Answer("prepared")


def test_spanning_work_meets_a_session_that_stopped_meanwhile(world: World) -> None:
    """5.5: the check is made "under the session's lock, in the transaction it guards", not only before the work."""
    client = world.idle()

    def prepare() -> str:
        world.disconnect(client)
        return "prepared"

    call = world.call(client.caller, "session.send_message", "span")
    with pytest.raises(PermissionDenied):
        ledger.spanning(call, client.session_id, Answer, check=_loaded, prepare=prepare, body=_tell)
    assert Receipt.objects.get(key="span").state == "refusal"


# Reading the log


def test_the_log_is_read_in_bounded_pieces(world: World) -> None:
    client = world.create()
    for _ in range(4):
        with ledger.session_txn(client.session_id, BY) as txn:
            notice(txn, "x" * 1000)

    def read(after: int, limit: int = 10, max_bytes: int = 10**6) -> list[int]:
        found = ledger.read_events(client.session_id, after, limit, max_bytes)
        return [event.sequence for event in found]

    assert read(0) == [1, 2, 3, 4, 5]
    assert read(2, limit=2) == [3, 4]
    assert read(1, max_bytes=3000) == [2, 3], "what encoding adds is counted"
    assert read(1, max_bytes=1) == [2], "at least one, however large"
    assert read(5) == []


def test_heads_are_read_for_many_sessions_at_once(world: World) -> None:
    one, two, gone = world.create(), world.idle(), world.create()
    Session.objects.filter(id=gone.session_id).update(archived_at=clock.now())
    world.stop(two)
    asked = [one.session_id, two.session_id, gone.session_id, "ses_unknown"]
    assert ledger.read_heads(asked) == {one.session_id: 1, two.session_id: 2}
