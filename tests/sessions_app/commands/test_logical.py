"""Logical connections as rows: counted, owned, streamed by one process, ended in steps (behaviour 1.4)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from jobs_app import recovery
from sessions_app import limits, processes, store
from sessions_app.callers import Connected
from sessions_app.commands import attachments, logical
from sessions_app.errors import Conflict, InvalidRequest, PermissionDenied, Refusal, ResourceLimit
from sessions_app.limits import ServerSettings
from sessions_app.models import Attachment, Connection
from sessions_app.records import Principal
from tests.support.world import Client, World, together

ANN = Principal(
    id="pri_ann", authentication_kind="http.static_bearer", scopes=("session.create",), attributes={}
)


def opened(world: World, connection_id: str = "con_http") -> Client:
    """Open a logical connection."""
    logical.open_connection(connection_id, ANN)
    caller = world.client().by(Connected(connection_id, logical=True))
    return Client(caller, connection_id)


def attach(world: World, client: Client, session_id: str) -> str:
    """Attach, without more rights than a reader's; the attachment's id."""
    call = world.call(client.caller, "session.attach")
    return attachments.attach(call, session_id, "read_only").attachment.id


def outcome(work: Callable[[], object]) -> str:
    """Do something and return how it ended."""
    try:
        work()
    except Refusal as refusal:
        return refusal.code
    return "done"


def test_it_belongs_to_one_authority(world: World) -> None:
    logical.open_connection("con_a", ANN)
    assert logical.find("con_a", ANN) == logical.Logical("con_a", initialized=False, max_event_bytes=0)
    logical.initialize("con_a", 4096)
    assert logical.find("con_a", ANN) == logical.Logical("con_a", initialized=True, max_event_bytes=4096)
    others = (
        Principal(
            id="pri_bob", authentication_kind=ANN.authentication_kind, scopes=ANN.scopes, attributes={}
        ),
        Principal(id=ANN.id, authentication_kind="http.reverse_proxy", scopes=ANN.scopes, attributes={}),
        Principal(id=ANN.id, authentication_kind=ANN.authentication_kind, scopes=(), attributes={}),
        Principal(
            id=ANN.id, authentication_kind=ANN.authentication_kind, scopes=ANN.scopes, attributes={"a": "b"}
        ),
    )
    for other in others:
        with pytest.raises(PermissionDenied):
            logical.find("con_a", other)
    for unknown in ("con_none", world.client().connection_id, ""):
        with pytest.raises(InvalidRequest):
            logical.find(unknown, ANN)


def test_use_is_noted_now_and_then(world: World) -> None:
    logical.open_connection("con_a", ANN)
    first = Connection.objects.get(id="con_a").last_active_at
    logical.find("con_a", ANN)
    assert Connection.objects.get(id="con_a").last_active_at == first
    world.clock.advance(milliseconds=limits.server().idle_connection_timeout_ms / 4)
    logical.find("con_a", ANN)
    assert Connection.objects.get(id="con_a").last_active_at > first
    assert logical.idle(10) == []
    world.clock.advance(milliseconds=limits.server().idle_connection_timeout_ms + 1)
    assert logical.idle(10) == ["con_a"]
    Connection.objects.filter(id="con_a").update(last_active_at=world.clock() + timedelta(seconds=1))
    logical.end_idle("con_a")  # somebody was faster
    assert logical.find("con_a", ANN).id == "con_a"


def test_many_at_once_are_counted(committed_world: World) -> None:
    store.forget()
    store.server_id()
    with limits.using(ServerSettings(max_connections=3)):
        found = together(
            *(partial(outcome, partial(logical.open_connection, f"con_{n}", ANN)) for n in range(6))
        )
    assert sorted(found) == ["done"] * 3 + ["resource_limit"] * 3
    with limits.using(ServerSettings(max_connections=3)), pytest.raises(ResourceLimit) as refused:
        logical.open_connection("con_late", ANN)
    assert refused.value.retryable is False


def test_nothing_is_attached_to_what_ends(committed_world: World) -> None:
    """Attaching and closing at once: either the attachment goes with the connection, or it never comes."""
    world = committed_world
    session_id = world.create().session_id
    for number in range(5):
        client = opened(world, f"con_{number}")
        done = together(
            partial(outcome, partial(attach, world, client, session_id)),
            partial(outcome, partial(logical.close, client.connection_id)),
        )
        assert done[0] in ("done", "invalid_request")
        assert not Connection.objects.filter(id=client.connection_id).exists()
    assert Attachment.objects.filter(session_id=session_id).count() == 1  # its creator's


def test_one_stream_at_a_time(world: World) -> None:
    client = opened(world)
    session_id = world.create().session_id
    before = attach(world, client, session_id)
    logical.place(before, client.connection_id, 3)
    me = processes.current_id()
    logical.announce_stream(client.connection_id, "str_one")
    assert logical.take_stream(client.connection_id, "str_one") is True
    quiet = attach(world, client, session_id)
    assert set(Attachment.objects.filter(id__in=[before, quiet]).values_list("process_id", flat=True)) == {me}
    assert logical.look([client.connection_id]) == {
        client.connection_id: [logical.Place(before, session_id, "read_only", 3)]
    }
    for name in ("str_two", "str_three"):
        logical.announce_stream(client.connection_id, name)
        assert logical.take_stream(client.connection_id, name) is False
    assert logical.look([client.connection_id]) == {}
    with pytest.raises(Conflict):
        logical.take_stream(client.connection_id, "str_two")
    logical.give_up_stream(client.connection_id, {before: 7})
    assert logical.take_stream(client.connection_id, "str_three") is True
    assert logical.look([client.connection_id])[client.connection_id][0].handed == 7


def test_a_dead_process_takes_along_what_it_streamed(world: World) -> None:
    client = opened(world)
    session_id = world.create().session_id
    streamed = attach(world, client, session_id)
    other, own = world.other_process("web"), processes.current_id()
    Connection.objects.filter(id=client.connection_id).update(process_id=other)
    Attachment.objects.filter(id=streamed).update(process_id=other)
    world.let_die(other)
    recovery.end_dead_processes()
    row = Connection.objects.get(id=client.connection_id)
    assert not row.process_id
    assert not Attachment.objects.filter(id=streamed).exists()
    logical.give_up_stream(client.connection_id, {streamed: 9})
    assert attach(world, client, session_id)
    assert own == processes.current_id()


def test_what_has_ended_takes_nothing_more(world: World) -> None:
    client = opened(world)
    logical.close(client.connection_id)
    logical.close(client.connection_id)
    for work in (
        partial(logical.initialize, client.connection_id, 1),
        partial(logical.announce_stream, client.connection_id, "str_a"),
        partial(logical.take_stream, client.connection_id, "str_a"),
        partial(logical.find, client.connection_id, ANN),
    ):
        with pytest.raises(InvalidRequest):
            work()
