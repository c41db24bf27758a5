"""The fixtures that open a world (`tests.support.world`): a plugin, so that every folder of tests may use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from tests.support import databases
from tests.support.world import World, opened


@pytest.fixture
def world(db: None, tmp_path: Path) -> Iterator[World]:
    """A world in the run's own database, taken back when the test ends."""
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
def timed_world(world: World) -> World:
    """A world whose clock also judges leases and heartbeats."""
    if connection.vendor != "sqlite":
        pytest.skip("PostgreSQL judges leases by its own clock")
    return world


@pytest.fixture(params=["sqlite", "postgresql"])
def committed_world(
    request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker, tmp_path: Path
) -> Iterator[World]:
    """A world in each database in turn, with committed transactions: for what depends on locks and isolation."""
    url: str = request.getfixturevalue(f"{request.param}_store")
    with django_db_blocker.unblock(), databases.using(url):
        try:
            with opened(tmp_path) as made:
                yield made
        finally:
            databases.flush()


@pytest.fixture
def stored_world(sqlite_store: str, django_db_blocker: DjangoDbBlocker, tmp_path: Path) -> Iterator[World]:
    """A world in one database with committed transactions: for what works in other threads."""
    with django_db_blocker.unblock(), databases.using(sqlite_store):
        try:
            with opened(tmp_path) as made:
                yield made
        finally:
            databases.flush()
