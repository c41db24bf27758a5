"""Both databases in one run: the default connection pointed at another store for the length of a test."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connection, connections, transaction

from ochat_site import env, settings
from sessions_app import catalog, db, store

MADE_BY_MIGRATIONS = frozenset({"django_content_type", "auth_permission"})


def sqlite_url(path: Path) -> str:
    """What `OCHAT_DATABASE_URL` is for a file."""
    return f"sqlite://{path}"


def current_url() -> str:
    """What `OCHAT_DATABASE_URL` is for another process that shall use this test's database."""
    found = connection.settings_dict
    if connection.vendor == "sqlite":
        return sqlite_url(Path(found["NAME"]))
    return f"postgresql://{found['USER']}:{found['PASSWORD']}@/{found['NAME']}?host={found['HOST']}"


@contextmanager
def using(url: str) -> Iterator[None]:
    """Use the store at `url` as the default database of every thread of this process."""
    configured = settings.database(env.read({**os.environ, "OCHAT_DATABASE_URL": url}, Path.cwd()).database)
    previous = connections.settings["default"]
    _point(connections.configure_settings({"default": configured})["default"])
    try:
        yield
    finally:
        _point(previous)


def migrate() -> None:
    """Make the tables of the default database."""
    call_command("migrate", interactive=False, verbosity=0)


def copy_sqlite(target: Path) -> str:
    """Copy the default database, a SQLite file as migrated, and return the URL of the copy."""
    with (
        closing(sqlite3.connect(connection.settings_dict["NAME"])) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)
    return sqlite_url(target)


def flush() -> None:
    """Empty the tables of the default database, keeping what migrations put there.

    Not Django's `flush`, which takes half a second to make content types and permissions anew.
    """
    tables = connection.introspection.django_table_names(only_existing=False, include_views=False)
    with transaction.atomic(), connection.cursor() as cursor:
        for table in set(tables) - MADE_BY_MIGRATIONS:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(table)}")  # noqa: S608 - names of our own tables


def _point(database: Mapping[str, Any]) -> None:
    db.shutdown()
    connections["default"].close()
    del connections["default"]
    connections.settings["default"] = database
    ContentType.objects.clear_cache()
    store.forget()
    catalog.forget()
