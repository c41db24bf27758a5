"""Exactly one outcome per idempotency key (behaviour 11)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from permissions_app.models import AuditRecord
from sessions_app import ledger, processes, receipts
from sessions_app.commands import attachments, messages, sessions
from sessions_app.commands.sessions import Created
from sessions_app.errors import (
    Conflict,
    IdempotencyConflict,
    Interrupted,
    InvalidState,
    OperationNotFound,
    Refusal,
)
from sessions_app.models import Receipt, Session, WorkspaceInstance
from sessions_app.receipts import Call, Pending
from tests.support.waiting import until
from tests.support.world import Client, World, plain, together


def test_a_success_is_replayed(world: World) -> None:
    """11.3: "same digest: replay the outcome" — executed once, the very same answer."""
    client = world.idle()
    sent = world.send(client, key="once")
    counters = world.counters(client)
    assert world.send(client, key="once") == sent
    assert world.counters(client) == counters


def test_a_refusal_is_replayed(world: World) -> None:
    """11.3: "success **or error**"; 11.4: "Errors are stored too… To try again use a new key"."""
    client = world.create()
    with pytest.raises(InvalidState) as first:
        world.send(client, key="once")
    world.start(client)
    with pytest.raises(InvalidState) as again:
        world.send(client, key="once")
    assert (again.value.message, again.value.retryable, again.value.data) == (
        first.value.message,
        True,
        first.value.data,
    )
    assert world.send(client, key="another").disposition == "started"


def test_a_key_with_other_params_conflicts(world: World) -> None:
    """11.3: "other digest → `idempotency_conflict`", which is itself no outcome of anything."""
    client = world.idle()
    world.send(client, key="once", digest=b"a" * 32)
    for _ in range(2):
        with pytest.raises(IdempotencyConflict) as refused:
            world.send(client, key="once", digest=b"b" * 32)
        assert not refused.value.recorded, "step 6 is audited outside (1.1)"
    assert world.send(client, key="once", digest=b"a" * 32).disposition == "started"


def test_a_key_counts_per_principal_session_and_method(world: World) -> None:
    """11.2: "Scope = (principal ID, session ID or none for create, method, key)"."""
    ann, other = world.idle(), world.idle()
    bob = world.attach(ann.session_id, by=world.client("bob", scopes=frozenset({"configuration.admin"})))
    dispositions = [
        world.send(ann, key="k").disposition,
        world.send(bob, key="k").disposition,
        world.send(other, key="k").disposition,
    ]
    assert dispositions == ["started", "deferred", "started"]
    world.stop(ann, key="k")
    assert Receipt.objects.filter(key="k").count() == 4


def test_tokens_of_one_principal_share_receipts(world: World) -> None:
    """11.2: "Tokens of one principal share receipts", on whatever connection."""
    client = world.idle()
    sent = world.send(client, key="k")
    assert world.send(world.attach(client.session_id), key="k") == sent


def test_calls_without_a_key_leave_no_receipt(world: World) -> None:
    client = world.idle()
    for _ in range(2):
        call = Call(client.caller, "session.send_message")
        messages.send_message(call, client.session_id, plain("hello"))
    assert world.deferred(client) == ["user: hello"]
    assert not Receipt.objects.filter(method="session.send_message").exists()


def test_replays_are_audited(world: World) -> None:
    """15: "Replayed receipts are audited too"; a refusal by its code."""
    client = world.create()
    for _ in range(2):
        with pytest.raises(OperationNotFound):
            world.cancel(client, key="c")
        world.start(client, key="s")
    payloads = list(
        AuditRecord.objects.filter(session_id=client.session_id)
        .order_by("id")
        .values_list("payload", flat=True)
    )
    assert [bytes(payload) for payload in payloads] == 2 * [
        b'{"method":"session.cancel_operation","outcome":"operation_not_found"}',
        b'{"method":"session.start","outcome":"success"}',
    ]


def test_a_replay_needs_no_attachment(world: World) -> None:
    """1.1: the receipt, step 6, comes before the writer check, step 8: also after the attachment is gone (9.5)."""
    client = world.idle()
    sent = world.send(client, key="k")
    left = attachments.detach(world.call(client.reader, "session.detach", "d"), client.session_id)
    assert world.send(client, key="k") == sent
    again = attachments.detach(world.call(client.reader, "session.detach", "d"), client.session_id)
    assert again == left


def test_a_receipt_outlives_its_session(world: World) -> None:
    """11.3: "receipts outlive `remove`"."""
    client = world.idle()
    sent = world.send(client, key="k")
    world.cancel(client)
    Session.objects.all().delete()
    assert world.send(client, key="k") == sent


# Pending receipts


def leave_pending(world: World, client: Client, process_id: str, **options: Any) -> None:
    """Leave a pending receipt of a process, as one leaves it that is still at work, or was when it died."""
    call = world.call(client.caller, "session.start", "k", **options)
    receipts.open_pending(call, client.session_id)
    Receipt.objects.filter(key="k").update(process_id=process_id)


def test_a_duplicate_waits_while_the_process_lives(world: World) -> None:
    """11.3: "A duplicate waits while that process lives"."""
    client = world.create()
    leave_pending(world, client, processes.current_id())
    with pytest.raises(Pending):
        world.start(client, key="k")
    other = processes.current_id()
    world.new_process()
    assert processes.is_alive(other)
    with pytest.raises(Pending):
        world.start(client, key="k")


@pytest.mark.parametrize("buried", [False, True])
def test_a_pending_receipt_of_a_dead_process_answers_interrupted(world: World, buried: bool) -> None:
    """11.3: "once it is gone the receipt answers `interrupted`, **not retryable**, and never re-runs"; K7."""
    client = world.create()
    dead = processes.current_id()
    world.new_process()
    world.let_die(dead)
    leave_pending(world, client, "prc_forgotten" if buried else dead)
    for _ in range(2):
        with pytest.raises(Interrupted) as refused:
            world.start(client, key="k")
        assert not refused.value.retryable
    assert world.states(client) == ("stopped", "stopped")
    with pytest.raises(IdempotencyConflict):
        world.start(client, key="k", digest=b"x")


def test_a_pending_receipt_that_nobody_works_on_is_interrupted(world: World) -> None:
    """11.3: its outcome is unknown: a store that failed while it should have been settled must not make its key wait for ever."""
    client = world.create()
    leave_pending(world, client, processes.current_id())
    receipts.put_down(world.call(client.caller, "session.start", "k"), client.session_id)
    with pytest.raises(Interrupted):
        world.start(client, key="k")


def test_a_receipt_taken_for_interrupted_is_not_settled(world: World) -> None:
    """11.3: it "never re-runs": what was told `interrupted` must not turn into a success behind the caller's back."""
    client = world.idle()

    def prepare() -> str:
        Receipt.objects.all().delete()
        return "prepared"

    def body(txn: ledger.Txn, _prepared: str) -> messages.Changed:
        txn.touch()
        return messages.changed(txn)

    before = world.counters(client)
    call = world.call(client.caller, "session.start", "k")
    with pytest.raises(Interrupted):
        ledger.spanning(
            call, client.session_id, messages.Changed, check=lambda _session: None, prepare=prepare, body=body
        )
    assert world.counters(client) == before


# Expiry


@pytest.mark.parametrize("protected", [False, True])
def test_receipts_expire_unless_they_are_protected(world: World, protected: bool) -> None:
    """11.5: "Each receipt gets expiry = created + 24 h… protected ones are never pruned"; "a refused one included"."""
    client = world.create()
    with pytest.raises(OperationNotFound):
        world.cancel(client, key="k", protected=protected)
    receipt = Receipt.objects.get(key="k")
    expected = None if protected else receipt.created_at + timedelta(hours=24)
    assert receipt.expires_at == expected


def test_an_expired_receipt_replays_until_it_is_pruned(world: World) -> None:
    """11.5: "A standard receipt past expiry but not yet pruned still replays"."""
    client = world.create()
    answer = world.start(client, key="k")
    world.clock.advance(hours=25)
    assert world.start(client, key="k") == answer


# Concurrency


def keep_asking(ask: Any) -> Any:
    """Ask again while another call with the key is at work, as the dispatcher does."""
    answers: list[Any] = []

    def answered() -> bool:
        try:
            answers.append(ask())
        except Pending:
            return False
        except Refusal as refusal:
            answers.append(refusal)
        return True

    until(answered, "an outcome")
    return answers[0]


def test_concurrent_creates_with_one_key_make_one_session(committed_world: World) -> None:
    """11.3: "a concurrent duplicate waits for it, then replays": one session, one folder, equal answers."""
    world = committed_world
    client, spec = world.client(), world.spec(workspace=world.temporary())
    folders = world.folder_of("any").parent
    folders.mkdir(exist_ok=True)
    before = set(folders.iterdir())

    def create() -> Created:
        call = world.call(client.connected, "session.create", "k")
        return sessions.create_session(call, spec, "read_write")

    made = together(*[lambda: keep_asking(create)] * 4)
    assert all(answer == made[0] for answer in made), made
    assert Session.objects.count() == 1
    assert WorkspaceInstance.objects.count() == 1
    assert set(folders.iterdir()) - before == {world.folder_of(made[0].session.id)}, "the losers left nothing"


def test_concurrent_identical_sends_make_one_entry(committed_world: World) -> None:
    """K6: "two concurrent identical sends: one entry, equal answers"."""
    world = committed_world
    client = world.idle()
    sent = together(*[lambda: keep_asking(lambda: world.send(client, key="k"))] * 4)
    assert [answer == sent[0] for answer in sent] == [True] * 4
    assert world.history(client) == ["developer: Be brief.", "user: hello"]
    assert world.deferred(client) == []


def test_concurrent_refusals_are_one_outcome(committed_world: World) -> None:
    """11.3: the refusal is settled once, and replayed like a success."""
    world = committed_world
    client = world.idle()
    world.send(client)
    refused = together(*[lambda: keep_asking(lambda: world.cancel(client, "op_other", key="k"))] * 3)
    assert {type(refusal) for refusal in refused} == {Conflict}
    assert Receipt.objects.filter(key="k").count() == 1
