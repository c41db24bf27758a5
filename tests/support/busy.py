"""A store that is busy: its lock held by somebody else, at the real boundary of each database."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.db import connection

from sessions_app.limits import ServerSettings

IMPATIENT = ServerSettings(store_lock_timeout_ms=50, session_lock_timeout_ms=50)
"""Settings under which a writer gives up soon. PostgreSQL takes them when it is connected to."""


@contextmanager
def busy(session_id: str) -> Iterator[None]:
    """Let no writer of a session through inside the block."""
    with _held_file() if connection.vendor == "sqlite" else _held_row(session_id):
        yield


@contextmanager
def _held_file() -> Iterator[None]:
    """Hold the lock of the SQLite file like another process."""
    path = Path(f"{Path(connection.settings_dict['NAME']).resolve()}.lock")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _held_row(session_id: str) -> Iterator[None]:
    """Hold the row of a PostgreSQL session by another connection."""
    found = connection.settings_dict
    with psycopg.connect(
        host=found["HOST"], user=found["USER"], password=found["PASSWORD"], dbname=found["NAME"]
    ) as other:
        other.execute("SELECT id FROM sessions_app_session WHERE id = %s FOR UPDATE", [session_id])
        yield
