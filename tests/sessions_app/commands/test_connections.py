"""Connections as rows: entered once, told again, gone with everything they held (behaviour 1.2, 5.6)."""

from __future__ import annotations

from sessions_app import processes
from sessions_app.commands import attachments, connections
from sessions_app.models import Attachment, Connection
from sessions_app.records import Principal
from tests.support.world import World

ANN = Principal(id="pri_ann", authentication_kind="http.static_bearer", scopes=("session.create",))


def test_a_connection_is_entered_with_its_principal(world: World) -> None:
    connections.enter("con_new", "websocket", ANN, 4096)
    row = Connection.objects.get(id="con_new")
    assert (row.process_id, row.transport, row.initialized) == (processes.current_id(), "websocket", True)
    assert row.max_inbound_event_bytes == 4096
    assert b'"pri_ann"' in row.principal


def test_a_repeated_initialize_changes_what_it_says(world: World) -> None:
    """1.2: "**Repeated initialize** is allowed and simply answers again; it does not reset attachments or state"."""
    connections.enter("con_new", "websocket", ANN, 4096)
    first = Connection.objects.get(id="con_new")
    connections.enter("con_new", "websocket", ANN, 8192)
    again = Connection.objects.get(id="con_new")
    assert (again.max_inbound_event_bytes, again.created_at) == (8192, first.created_at)
    assert again.last_active_at > first.last_active_at


def test_a_connection_that_ends_lets_go_of_everything(world: World) -> None:
    """5.6, 5.4: "Connection loss = detach of all attachments"; an owner's attachment stays, disconnected."""
    client = world.client()
    owner = world.create(by=client, mode="owner_read_write", liveness=world.owner_bound())
    writer, other = world.create(by=client), world.create()
    connections.leave(client.connection_id)
    assert attachments.gone([owner.attachment_id, writer.attachment_id, other.attachment_id]) == {
        writer.attachment_id
    }
    assert [row.id for row in Attachment.objects.filter(connection=None)] == [owner.attachment_id]
    assert not Connection.objects.filter(id=client.connection_id).exists()
    connections.leave(client.connection_id)
