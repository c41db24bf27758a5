"""The store as a whole: which one it is, whether this code fits it, and what its failures are called.

Owns: the server id, the check at start, the translation of database errors into refusals. Does not own: connections and
threads (`sessions_app.db`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError, InterfaceError, OperationalError, connection
from django.db.migrations.loader import MigrationLoader

from sessions_app import clock, ids
from sessions_app.errors import (
    CommandQueueFull,
    MigrationRequired,
    PersistenceError,
    StoreLocked,
    StoreSchemaTooNew,
)
from sessions_app.models import Store

log = structlog.get_logger(__name__)

_LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's state for a lock that was not got within `lock_timeout`."""

_known_server_id: list[str] = []


@contextmanager
def errors() -> Iterator[None]:
    """Turn failures of the database into the refusals of the contract; nothing of their text reaches a client.

    Raises CommandQueueFull when a session's lock was not got in time, PersistenceError for everything else. StoreLocked comes
    from the SQLite backend itself.
    """
    try:
        yield
    except (DatabaseError, InterfaceError) as error:
        if getattr(error.__cause__, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
            raise CommandQueueFull("the session is busy", retryable=True) from error
        log.exception("store.failed")
        raise PersistenceError("the store failed", retryable=True) from error


def is_away(error: Exception) -> bool:
    """Tell whether a change failed because the store is busy or gone, so that the same change may work later.

    One that the store refused for what it holds, as no store would take it, is not of these.
    """
    if isinstance(error, PersistenceError):
        return isinstance(error.__cause__, OperationalError | InterfaceError)
    return isinstance(error, StoreLocked | CommandQueueFull)


def check() -> None:
    """Compare the migrations of this code with those of the store, before anything is served (design 5).

    Raises StoreSchemaTooNew when the store was migrated by a newer version, MigrationRequired when it needs migrating first.
    """
    with errors():
        loader = MigrationLoader(connection)
        ours = {app for app, _ in loader.disk_migrations}
        applied = {name for name in loader.applied_migrations if name[0] in ours}
        if applied - loader.disk_migrations.keys():
            raise StoreSchemaTooNew("the store was written by a newer version of this server")
        if loader.disk_migrations.keys() - applied:
            raise MigrationRequired("the store must be migrated first: run manage.py migrate")


def server_id() -> str:
    """Return the id of this data store, the same for its whole life (behaviour 1.2); made at first use."""
    if not _known_server_id:
        try:
            found = Store.objects.get().server_id
        except ObjectDoesNotExist:
            row, _ = Store.objects.get_or_create(
                id=1, defaults={"server_id": ids.new_id("srv"), "created_at": clock.now()}
            )
            found = row.server_id
        _known_server_id.append(found)
    return _known_server_id[0]


def forget() -> None:
    """Forget what is known of the store; for a process that turns to another one (tests, the embedded host)."""
    _known_server_id.clear()
