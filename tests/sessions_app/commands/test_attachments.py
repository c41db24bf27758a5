"""Attaching and letting go (behaviour 5.1, 5.2, 5.4, 5.6): order of checks, limits, counters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from django.db import connection, connections

from permissions_app.scopes import OwnAndShared
from sessions_app import ledger, limits, pinned, processes
from sessions_app.callers import Caller, Connected, system
from sessions_app.commands import attachments
from sessions_app.errors import (
    CommandQueueFull,
    Conflict,
    InvalidRequest,
    PermissionDenied,
    PromptUnavailable,
    ResourceLimit,
    SessionNotFound,
    StoreLocked,
)
from sessions_app.limits import ServerSettings
from sessions_app.models import Attachment, PromptRevision, Session
from sessions_app.records import AttachmentMode, LivenessOwnerBound
from tests.support.world import World

OWNER_BOUND = LivenessOwnerBound(disconnect_grace_ms=60_000, stop_mode="graceful")


class ReadShare(OwnAndShared):
    """A share for reading."""

    def sees(self, session: Session) -> bool:
        return True

    def covers(self, session: Session, mode: AttachmentMode) -> bool:
        return mode == "read_only"


@pytest.mark.parametrize("mode", ["read_only", "read_write"])
def test_attach_and_detach_raise_the_revision_only(world: World, mode: AttachmentMode) -> None:
    """E4: "non-owner attach: +1, +0; detach the same"; 5.2: "Attach does not start a session"."""
    session = world.create()
    revision, sequence = world.counters(session)
    client = world.attach(session.session_id, mode)
    assert world.counters(session) == (revision + 1, sequence)
    left = world.detach(client)
    assert (left.revision, left.latest_event_sequence) == (revision + 2, sequence)
    assert world.states(session) == ("stopped", "stopped")


def test_an_attachment_names_who_holds_it_and_where(world: World) -> None:
    """5.1: "An attachment belongs to one connection"; 7.1: whose principal may answer requests is part of it."""
    session = world.create()
    client = world.attach(session.session_id, by=world.client(scopes=frozenset({"session.message.send"})))
    row = Attachment.objects.get(id=client.attachment_id)
    assert (row.connection_id, row.process_id) == (client.connection_id, processes.current_id())
    assert (row.principal_id, row.mode, row.answers, row.hidden) == ("pri_ann", "read_write", False, False)


def test_a_second_detach_is_denied(world: World) -> None:
    """5.4: "A second detach with a **new** key is `permission_denied`; with the same key it replays"."""
    client = world.create()
    world.detach(client)
    with pytest.raises(PermissionDenied):
        world.detach(client)


def test_only_attachments_detach(world: World) -> None:
    client = world.create()
    call = world.call(system("test"), "session.detach")
    with pytest.raises(InvalidRequest):
        attachments.detach(call, client.session_id)


# The order of 5.2: session exists → visible → share covers the mode → connection limit → session limit → prompt → owner


def test_the_checks_of_an_attach_in_their_order(world: World) -> None:
    """5.2, each check with all later ones failing too."""
    owner, other = world.create(mode="owner_read_write", liveness=OWNER_BOUND), world.create()
    PromptRevision.objects.update(manifest=b'{"root":"gone","sources":{}}')
    pinned.forget()
    crowded = world.client("bob", scopes=frozenset({"configuration.admin"}))
    Attachment.objects.bulk_create(
        Attachment(
            id=f"att_more{number}",
            session_id=owner.session_id if number else other.session_id,
            connection_id=crowded.connection_id,
            principal_id="pri_bob",
            mode="read_only",
            created_at=world.clock(),
        )
        for number in range(limits.MAX_ATTACHMENTS_PER_CONNECTION)
    )

    def attach(caller: Caller, session_id: str = owner.session_id) -> None:
        client = replace(crowded, caller=caller)
        world.attach(session_id, "owner_read_write", by=client)

    everything = crowded.caller
    with limits.using(ServerSettings(max_attachments_per_session=1)):
        with pytest.raises(SessionNotFound):
            attach(replace(everything, visible=OwnAndShared("pri_bob", None)), "ses_unknown")
        with pytest.raises(PermissionDenied, match="not yours"):
            attach(replace(everything, visible=OwnAndShared("pri_bob", None)))
        with pytest.raises(PermissionDenied, match="less than that"):
            attach(replace(everything, visible=ReadShare("pri_bob", None)))
        with pytest.raises(ResourceLimit, match="connection") as refused:
            attach(everything)
        assert refused.value.retryable
        Attachment.objects.filter(connection_id=crowded.connection_id).delete()
        with pytest.raises(ResourceLimit, match="session") as refused:
            attach(everything)
        assert not refused.value.retryable
    with pytest.raises(PromptUnavailable):
        attach(everything)


def test_a_share_covers_what_it_covers(world: World) -> None:
    """5.1: "A share must cover it (2.6)": a mode is granted as asked or refused, never downgraded."""
    session = world.create()
    bob = world.client("bob")
    bob = replace(bob, caller=replace(bob.caller, visible=ReadShare("pri_bob", None)))
    assert world.attach(session.session_id, "read_only", by=bob).attachment_id
    with pytest.raises(PermissionDenied):
        world.attach(session.session_id, "read_write", by=bob)


def test_the_limit_of_a_session_counts_everything_but_the_owner_who_is_replaced(world: World) -> None:
    """5.2: "session limit (every attachment counts, including HTTP session streams; reclaim replaces one)"."""
    owner = world.create(mode="owner_read_write", liveness=OWNER_BOUND)
    world.attach(owner.session_id, "read_only")
    Attachment.objects.filter(mode="read_only").update(hidden=True)
    with limits.using(ServerSettings(max_attachments_per_session=2)):
        with pytest.raises(ResourceLimit):
            world.attach(owner.session_id, "read_only")
        with pytest.raises(ResourceLimit):
            world.attach(owner.session_id, "owner_read_write")
        world.disconnect(owner)
        with pytest.raises(ResourceLimit):
            world.attach(owner.session_id, "read_only")
        assert world.attach(owner.session_id, "owner_read_write").attachment_id


def test_owners_in_grace_do_not_count_for_callers_without_a_connection(world: World) -> None:
    """The limit is "Attachments per connection": those that have none are not of one connection."""
    session = world.create()
    left = world.create(mode="owner_read_write", liveness=OWNER_BOUND)
    world.disconnect(left)
    Attachment.objects.bulk_create(
        Attachment(
            id=f"att_lost{number}",
            session_id=left.session_id,
            principal_id="pri_ann",
            mode="owner_read_write",
            created_at=world.clock(),
        )
        for number in range(limits.MAX_ATTACHMENTS_PER_CONNECTION)
    )
    call = world.call(system("host", "pri_ann"), "session.attach")
    made = attachments.attach(call, session.session_id, "read_write")
    assert Attachment.objects.get(id=made.attachment.id).connection_id is None


def test_a_refused_attach_leaves_nothing(world: World) -> None:
    """11.4: "attachment errors" are stored; the session is unchanged."""
    owner = world.create(mode="owner_read_write", liveness=OWNER_BOUND)
    before = world.counters(owner)
    with pytest.raises(Conflict):
        world.attach(owner.session_id, "owner_read_write")
    assert world.counters(owner) == before
    assert Attachment.objects.count() == 1


# Disconnecting


def test_a_disconnect_lets_go_of_everything(world: World) -> None:
    """5.6, 5.4: "Connection loss = detach of all attachments"; a detached session goes on (0.7)."""
    client = world.client()
    one, two = world.idle(by=client), world.create(by=client)
    world.turn(one)
    attachments.disconnect([(one.session_id, one.attachment_id), (two.session_id, two.attachment_id)])
    assert not Attachment.objects.exists()
    assert world.states(one) == ("running", "running_turn")
    again = world.counters(one), world.counters(two)
    attachments.disconnect([(one.session_id, one.attachment_id), (two.session_id, two.attachment_id)])
    assert (world.counters(one), world.counters(two)) == again, "a second time changes nothing"


def test_a_disconnect_forgets_attachments_of_sessions_that_are_gone(world: World) -> None:
    client = world.create()
    Session.objects.update(archived_at=world.clock())
    world.disconnect(client)
    assert not Attachment.objects.exists()


def test_a_busy_session_does_not_keep_the_others(committed_world: World) -> None:
    """5.4: "errors ignored": one that cannot be changed now is told at the end, and does not stop the rest."""
    world = committed_world
    busy, free = world.create(), world.create()
    held = [(client.session_id, client.attachment_id) for client in (busy, free)]

    def disconnect() -> None:
        settings = ServerSettings(session_lock_timeout_ms=50, store_lock_timeout_ms=50)
        try:
            with limits.using(settings), pytest.raises((CommandQueueFull, StoreLocked)):
                attachments.disconnect(held)
        finally:
            connections.close_all()

    with ledger.session_txn(busy.session_id, system("test")), ThreadPoolExecutor(1) as other:
        other.submit(disconnect).result(30)
    # SQLite has one lock for the whole store.
    left = (
        {busy.attachment_id}
        if connection.vendor == "postgresql"
        else {busy.attachment_id, free.attachment_id}
    )
    assert {row.id for row in Attachment.objects.all()} == left
    attachments.disconnect(held)
    assert not Attachment.objects.exists()


def test_connected_is_not_attached(world: World) -> None:
    """5.1: "other connections of the same principal cannot use its ID"."""
    client = world.create()
    other = replace(client, caller=client.by(Connected(client.connection_id)))
    with pytest.raises(InvalidRequest):
        attachments.detach(world.call(other.caller, "session.detach"), client.session_id)
