"""The writer check, in its order (behaviour 5.5), and the callers that meet only a part of it (design 2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from permissions_app.scopes import OwnAndShared
from sessions_app import clock, ledger
from sessions_app.callers import EVERYTHING, Attached, Caller, Connected, Dialect, Operator, System, Visible
from sessions_app.errors import InvalidRequest, LeaseStale, PermissionDenied, Refusal, SessionNotFound
from sessions_app.models import Attachment, Session
from sessions_app.records import AttachmentMode, LivenessOwnerBound
from tests.support.world import Client, World

OWNER_BOUND = LivenessOwnerBound(disconnect_grace_ms=5000, stop_mode="graceful")
NOBODYS: Visible = OwnAndShared("pri_nobody", None)


class Narrow(OwnAndShared):
    """A share for reading: the session is visible, and no mode that writes is covered."""

    def sees(self, session: Session) -> bool:
        return True

    def covers(self, session: Session, mode: AttachmentMode) -> bool:
        return mode == "read_only"


NARROW: Visible = Narrow("pri_nobody", None)

# Each fault, alone: what it does to the world, and what the caller becomes.


def foreign_connection(world: World, client: Client) -> Caller:
    return client.by(Attached(world.client().connection_id, client.attachment_id))


def foreign_session(world: World, client: Client) -> Caller:
    return client.by(Attached(client.connection_id, world.create(by=client).attachment_id))


def unknown_attachment(_world: World, client: Client) -> Caller:
    return client.by(Attached(client.connection_id, "att_unknown"))


def gone(_world: World, client: Client) -> Caller:
    Session.objects.filter(id=client.session_id).update(archived_at=clock.now())
    return client.caller


def invisible(_world: World, client: Client) -> Caller:
    return replace(client.caller, visible=NOBODYS)


def not_live(_world: World, client: Client) -> Caller:
    Attachment.objects.filter(id=client.attachment_id).update(hidden=True)
    return client.caller


def read_only(_world: World, client: Client) -> Caller:
    Attachment.objects.filter(id=client.attachment_id).update(mode="read_only")
    return client.caller


def narrowed(_world: World, client: Client) -> Caller:
    return replace(client.caller, visible=NARROW)


def expired(_world: World, client: Client) -> Caller:
    Session.objects.filter(id=client.session_id).update(lease_expires_at=clock.after(-1))
    return client.caller


def in_grace(_world: World, client: Client) -> Caller:
    Session.objects.filter(id=client.session_id).update(lease_grace_until=clock.after(60_000))
    return client.caller


def replaced(_world: World, client: Client) -> Caller:
    Session.objects.filter(id=client.session_id).update(owner_attachment="att_another")
    return client.caller


Fault = Callable[[World, Client], Caller]


class Row(NamedTuple):
    """A fault and what it is refused with."""

    fault: Fault
    refused: type[Refusal]
    step: int
    """Its place in the order."""


ROWS = [
    Row(foreign_connection, PermissionDenied, 1),
    Row(foreign_session, PermissionDenied, 1),
    Row(unknown_attachment, PermissionDenied, 1),
    Row(gone, SessionNotFound, 2),
    Row(invisible, PermissionDenied, 3),
    Row(not_live, InvalidRequest, 4),
    Row(read_only, PermissionDenied, 5),
    Row(narrowed, PermissionDenied, 5),
    Row(expired, LeaseStale, 6),
    Row(in_grace, LeaseStale, 6),
    Row(replaced, LeaseStale, 6),
]
MESSAGES = {
    1: "the attachment does not belong to this connection and session",
    2: "no such session",
    3: "this session is not yours",
    4: "the attachment is not active",
    5: "the attachment is read-only",
    6: "the owner lease ",
}
"""By which two steps with one code are told apart."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.fault.__name__)
def test_each_fault_is_refused(world: World, row: Row) -> None:
    """5.5, each step by itself; a refusal changes nothing."""
    owner = world.idle(mode="owner_read_write", liveness=OWNER_BOUND)
    caller = row.fault(world, owner)
    before = world.counters(owner)
    with pytest.raises(row.refused) as refused:
        world.stop(replace(owner, caller=caller))
    assert refused.value.message.startswith(MESSAGES[row.step])
    assert world.counters(owner) == before


FAULTS = [foreign_connection, gone, invisible, not_live, read_only, expired]
"""One of each step, in order."""


@pytest.mark.parametrize("first", range(len(FAULTS)), ids=lambda first: FAULTS[first].__name__)
def test_the_first_fault_decides(world: World, first: int) -> None:
    """5.5: "Order: …": with this fault and all that come after it, this one is told."""
    owner = world.idle(mode="owner_read_write", liveness=OWNER_BOUND)
    caller = owner.caller
    for fault in reversed(FAULTS[first:]):
        spoiled = fault(world, owner)
        # Faults of the caller add up: one spoils the access, another the view.
        caller = replace(
            caller,
            access=spoiled.access if spoiled.access != owner.caller.access else caller.access,
            visible=spoiled.visible if spoiled.visible != owner.caller.visible else caller.visible,
        )
    with pytest.raises(Refusal) as refused:
        world.stop(replace(owner, caller=caller))
    assert refused.value.message.startswith(MESSAGES[first + 1])


def test_a_sound_owner_passes(world: World) -> None:
    owner = world.idle(mode="owner_read_write", liveness=OWNER_BOUND)
    assert world.stop(owner).session.desired_state == "stopped"


def test_an_owner_of_a_detached_session_needs_no_lease(world: World) -> None:
    """5.2: "`owner_read_write` on a *detached* session is an ordinary attachment without lease; several may coexist"."""
    first = world.idle(mode="owner_read_write")
    second = world.attach(first.session_id, "owner_read_write")
    world.start(first)
    world.stop(second)
    assert world.session(first.session_id).lease_expires_at is None


def test_a_writer_beside_the_owner_needs_no_lease(world: World) -> None:
    owner = world.idle(mode="owner_read_write", liveness=OWNER_BOUND)
    writer = world.attach(owner.session_id)
    in_grace(world, owner)
    world.send(writer)


def test_a_reader_may_detach(world: World) -> None:
    """5.4: detach "requires the attachment to belong to this connection", and no right to write."""
    reader = world.create(mode="read_only")
    world.detach(reader)
    assert not Attachment.objects.exists()


@pytest.mark.parametrize("access", [Dialect("ocp"), Operator("root"), System("sweep"), Connected("con_none")])
@pytest.mark.parametrize(
    ("visible", "refused"), [(EVERYTHING, None), (NOBODYS, PermissionDenied)], ids=["seen", "unseen"]
)
def test_callers_without_attachment_meet_visibility_only(
    world: World, access: System, visible: Visible, refused: type[Refusal] | None
) -> None:
    """5.5: "OCP callers, operators and the server's own timers have no attachment and are checked by the rule of their kind"; 2.6:
    "unknown session → `session_not_found`; known but not visible → `permission_denied`"."""
    client = world.create()
    caller = Caller("pri_other", frozenset(), visible, access)
    other = replace(client, caller=caller)
    if refused is None:
        world.stop(other)
    else:
        with pytest.raises(refused):
            world.stop(other)
    with pytest.raises(SessionNotFound):
        world.stop(replace(other, session_id="ses_unknown"))


def test_the_check_reads_what_the_lock_protects(world: World) -> None:
    """5.5: "made under the session's lock, in the transaction it guards": an attachment that goes in it is gone for the next."""
    client = world.create()
    with ledger.session_txn(client.session_id, client.caller) as txn:
        Attachment.objects.all().delete()
        txn.touch()
    with pytest.raises(PermissionDenied):
        world.start(client)
