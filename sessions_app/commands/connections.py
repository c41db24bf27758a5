"""Connections as rows, so that any process may serve any call (design 3).

Owns: entering a connection once it is initialized, and everything that goes with it when it ends. Does not own: sockets, or what
an attachment's end means (`commands.attachments`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessions_app import clock, processes, store
from sessions_app.commands import attachments
from sessions_app.encoding import encode
from sessions_app.models import Attachment, Connection

if TYPE_CHECKING:
    from sessions_app.records import Principal


def enter(connection_id: str, transport: str, principal: Principal, max_inbound_event_bytes: int) -> None:
    """Enter an initialized connection of this process; again, it notes what a repeated initialize changed.

    Raises StoreLocked and PersistenceError, with nothing entered.
    """
    now = clock.now()
    with store.errors():
        Connection.objects.update_or_create(
            id=connection_id,
            defaults={"max_inbound_event_bytes": max_inbound_event_bytes, "last_active_at": now},
            create_defaults={
                "process_id": processes.current_id(),
                "transport": transport,
                "principal": encode(principal),
                "initialized": True,
                "max_inbound_event_bytes": max_inbound_event_bytes,
                "created_at": now,
                "last_active_at": now,
            },
        )


def leave(connection_id: str) -> None:
    """Let go of every attachment of a connection that ended, and forget it (behaviour 5.6)."""
    held = Attachment.objects.filter(connection_id=connection_id).values_list("session_id", "id")
    attachments.disconnect(list(held))
    Connection.objects.filter(id=connection_id).delete()
