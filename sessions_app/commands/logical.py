"""Logical connections: those of HTTP, which no socket holds and any process serves (behaviour 1.4).

Owns: their rows from the first call to the last, whose they are, which process holds the one event stream of each and where it
goes on, and their end when nobody uses them. Does not own: attachments themselves (`commands.attachments`), requests and streams
(`ochat_site.transports`), or when idle ones are looked for (`jobs_app.sweep`).

A row ends in three steps: it is marked closed, from which moment no call and no attach finds it; its attachments are let go of;
it is removed. Whatever stops in between, the sweep goes on with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, cast

from django.db import transaction
from django.db.models import Q

from sessions_app import clock, limits, processes, store
from sessions_app.commands import connections
from sessions_app.encoding import encode
from sessions_app.errors import Conflict, InvalidRequest, PermissionDenied, ResourceLimit
from sessions_app.models import Attachment, Connection, Store
from sessions_app.rows import Select

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from sessions_app.records import AttachmentMode, Principal

TRANSPORT = "http"


@dataclass(frozen=True, slots=True)
class Logical:
    """What a call must know of its connection."""

    id: str
    initialized: bool
    max_event_bytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """An attachment that wants events, and the last durable sequence that its connection's streams were given."""

    attachment_id: str
    session_id: str
    mode: AttachmentMode
    handed: int


def open_connection(connection_id: str, principal: Principal) -> Logical:
    """Enter a connection on which nothing has succeeded yet.

    Raises ResourceLimit when the server has `max_connections` already, and what a failing store raises.
    """
    now = clock.now()
    with store.errors(), transaction.atomic(durable=True):
        Store.objects.select_for_update().first()  # so that two who come at once are counted one after the other
        if Connection.objects.filter(transport=TRANSPORT).count() >= limits.server().max_connections:
            raise ResourceLimit("the server has too many connections", retryable=False)
        Connection.objects.create(
            id=connection_id,
            transport=TRANSPORT,
            principal=encode(principal),
            created_at=now,
            last_active_at=now,
        )
    return Logical(connection_id, initialized=False, max_event_bytes=0)


def find(connection_id: str, principal: Principal) -> Logical:
    """Return an open connection, and note that it is used, at most every quarter of the time after which it would be idle.

    Raises InvalidRequest for an unknown or closed one, PermissionDenied for one that was opened with another authority: the
    whole principal counts, not the credential that proves it.
    """
    with store.errors():
        row = _OPEN.first(connection_id)
        if row is None:
            raise _unknown()
        if bytes(row.principal) != encode(principal):
            raise PermissionDenied("the connection belongs to another authority")
        now = clock.now()
        if now - row.last_active_at > _idle_after() / 4:
            Connection.objects.filter(id=connection_id).update(last_active_at=now)
    return Logical(row.id, row.initialized, row.max_inbound_event_bytes)


def initialize(connection_id: str, max_inbound_event_bytes: int) -> None:
    """Note that an initialize has succeeded on a connection. Raises InvalidRequest when it has been closed meanwhile."""
    with store.errors():
        found = Connection.objects.filter(id=connection_id, closed_at=None).update(
            initialized=True,
            max_inbound_event_bytes=max_inbound_event_bytes,
            last_active_at=clock.now(),
        )
    if not found:
        raise _unknown()


# The one event stream


def place(attachment_id: str, connection_id: str, sequence: int) -> None:
    """Note that an attachment wants the events behind `sequence`."""
    with store.errors():
        Attachment.objects.filter(id=attachment_id, connection_id=connection_id).update(
            handed_sequence=sequence
        )


def announce_stream(connection_id: str, stream_id: str) -> None:
    """Ask for the place of the connection's event stream; whoever has it sees that and ends.

    Raises InvalidRequest when the connection has been closed.
    """
    with store.errors():
        found = Connection.objects.filter(id=connection_id, closed_at=None).update(successor=stream_id)
    if not found:
        raise _unknown()


def take_stream(connection_id: str, stream_id: str) -> bool:
    """Let this process hold the event stream, and with it every attachment; False while another one still does.

    Raises Conflict when a newer stream was announced, InvalidRequest when the connection has been closed.
    """
    with store.errors(), transaction.atomic(durable=True):
        row = _LOCKED.first(connection_id)
        if row is None or row.closed_at is not None:
            raise _unknown()
        if row.successor != stream_id:
            raise Conflict("a newer event stream was opened on this connection")
        if row.process_id:
            return False
        process_id = processes.current_id()
        Connection.objects.filter(id=connection_id).update(process_id=process_id, successor="")
        Attachment.objects.filter(connection_id=connection_id).update(process_id=process_id)
    return True


def give_up_stream(connection_id: str, handed: Mapping[str, int]) -> None:
    """Note where each attachment (by id) stands now that the stream of this process has ended, and hold the connection no more.

    Does nothing when this process does not hold it: it was taken for dead, and what it held is gone.
    """
    with store.errors(), transaction.atomic(durable=True):
        row = _LOCKED.first(connection_id)
        if row is None or row.process_id != processes.current_id():
            return
        held = Attachment.objects.filter(connection_id=connection_id)
        for attachment_id, sequence in handed.items():
            held.filter(id=attachment_id).update(handed_sequence=sequence)
        held.update(process=None)
        Connection.objects.filter(id=connection_id).update(process=None, last_active_at=clock.now())


def look(connection_ids: Collection[str]) -> dict[str, list[Place]]:
    """Return the places of those connections whose stream this process holds and nobody else asks for, in two queries.

    The streams of all others have to end.
    """
    with store.errors():
        held = Connection.objects.filter(
            id__in=connection_ids, process_id=processes.current_id(), closed_at=None, successor=""
        )
        found: defaultdict[str, list[Place]] = defaultdict(list)
        for connection_id in held.values_list("id", flat=True):
            found[connection_id] = []
        wanting = Attachment.objects.filter(connection_id__in=list(found), handed_sequence__isnull=False)
        for row in wanting.values_list("connection_id", "id", "session_id", "mode", "handed_sequence"):
            connection_id, attachment_id, session_id, mode, handed = row
            found[str(connection_id)].append(
                Place(attachment_id, session_id, cast("AttachmentMode", mode), handed or 0)
            )
    return dict(found)


# The end


def close(connection_id: str) -> None:
    """End a connection and detach everything it holds (behaviour 5.6).

    From here on no call finds it. Raises what the store refused for an attachment: the sweep lets go of that one.
    """
    with store.errors():
        Connection.objects.filter(id=connection_id, closed_at=None).update(closed_at=clock.now())
        connections.leave(connection_id)


def idle(at_most: int) -> list[str]:
    """Return connections that no process holds and that are closed, or were not used for `idle_connection_timeout_ms`."""
    return list(_ended(clock.now()).values_list("id", flat=True)[:at_most])


def end_idle(connection_id: str) -> None:
    """Close a connection, unless somebody has used it since it was found to be idle."""
    now = clock.now()
    with store.errors():
        if _ended(now).filter(id=connection_id).update(closed_at=now):
            connections.leave(connection_id)


def _ended(now: datetime) -> QuerySet[Connection]:
    over = Q(closed_at__isnull=False) | Q(last_active_at__lt=now - _idle_after())
    return Connection.objects.filter(over, process=None)


def _idle_after() -> timedelta:
    return timedelta(milliseconds=limits.server().idle_connection_timeout_ms)


def _unknown() -> InvalidRequest:
    return InvalidRequest("no such connection")


_OPEN = Select(Connection, f"id = %s AND transport = '{TRANSPORT}' AND closed_at IS NULL")
_LOCKED = Select(Connection, "id = %s", lock=True)
