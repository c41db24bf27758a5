"""The ports of the layers above: who takes part, in which order, inside which transaction (design 2)."""

from __future__ import annotations

import pytest

from ochat_site import wiring
from sessions_app import participants
from sessions_app.callers import Caller
from sessions_app.ledger import Txn
from sessions_app.models import Operation, Receipt, Session
from sessions_app.participants import CommandOutcome, OperationOutcome, Participant, SnapshotPart
from sessions_app.records import StopMode
from sessions_app.views import FULL, View
from tests.support.world import World


class Witness(Participant):
    """Takes note of what it is told, and of the state in which it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_command(self, txn: Txn, caller: Caller, outcome: CommandOutcome) -> None:
        """Note the command."""
        self.told.append(f"{outcome.command} {outcome.code} {bool(outcome.session_id)} {caller.principal_id}")

    def on_operation_end(self, txn: Txn, operation: Operation, outcome: OperationOutcome) -> None:
        """Note the end, and that the session has no operation any more."""
        self.told.append(
            f"{operation.id.partition('_')[0]} {outcome} {txn.operation is None} {txn.session.observed}"
        )

    def on_stop(self, txn: Txn, mode: StopMode) -> None:
        """Note the stop."""
        self.told.append(f"stop {mode} {txn.session.desired}")


@pytest.fixture
def witness(world: World) -> Witness:
    """A participant beside the real ones, until the world closes."""
    made = Witness()
    participants.install((*participants.installed(), made), world.dispatched)
    return made


def test_the_order_of_the_participants() -> None:
    """Design 2: "one fixed tuple (permissions, jobs, schedules, grants: the order of their events)"; 6.5, steps 5 and 6."""
    names = [type(participant).__name__ for participant in wiring.PARTICIPANTS]
    assert names == ["PermissionParticipant", "JobParticipant", "ScheduleParticipant", "GrantParticipant"]


def test_what_is_installed_is_what_takes_part(world: World) -> None:
    assert participants.installed() == wiring.PARTICIPANTS
    assert participants.dispatcher() is world.dispatched


def test_commands_are_told_with_their_outcome(world: World, witness: Witness) -> None:
    """15: "every command that passed scope + init"; create has no session; a replay is told too."""
    client = world.create()
    with pytest.raises(Exception, match="not running"):
        world.send(client)
    world.start(client, key="k")
    world.start(client, key="k")
    assert witness.told == [
        "session.create success False pri_ann",
        "session.send_message invalid_state True pri_ann",
        "session.start success True pri_ann",
        "session.start success True pri_ann",
    ]


def test_ends_and_stops_are_told_once_they_are_so(world: World, witness: Witness) -> None:
    client = world.idle()
    claim = world.turn(client)
    witness.told.clear()
    world.stop(client, "cancel")
    world.finish(claim)
    assert witness.told == [
        "stop cancel stopped",
        "session.stop success True pri_ann",
        "op cancelled True stopped",
    ]


def test_a_stop_that_changes_nothing_is_not_told(world: World, witness: Witness) -> None:
    client = world.create()
    witness.told.clear()
    world.stop(client)
    assert witness.told == ["session.stop success True pri_ann"]


class Faulty(Participant):
    """Fails when an operation ends."""

    def on_operation_end(self, txn: Txn, operation: Operation, outcome: OperationOutcome) -> None:
        """Fail."""
        raise LookupError


def test_a_participant_that_fails_takes_everything_back(world: World) -> None:
    """Design 2: one transaction ends an operation with its requests and jobs, or none of it."""
    client = world.idle()
    world.send(client)
    before = world.counters(client), world.states(client)
    participants.install((*participants.installed(), Faulty()), world.dispatched)
    with pytest.raises(LookupError):
        world.cancel(client, key="k")
    assert (world.counters(client), world.states(client)) == before
    assert not Receipt.objects.filter(key="k").exists()


class Empty(Participant):
    """Overrides nothing."""


def test_hooks_that_are_not_overridden_do_nothing(world: World) -> None:
    session = Session.objects.get(id=world.create().session_id)
    assert Empty().snapshot_part(session, View(False, False, False)) == SnapshotPart()
    participants.install((Empty(),), world.dispatched)
    client = world.idle()
    world.finish(world.turn(client), "done")
    world.stop(client, "cancel")
    assert Empty().snapshot_part(session, FULL).jobs == ()
