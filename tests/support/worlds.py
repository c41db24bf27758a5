"""The fixtures that open a world (`tests.support.world`): a plugin, so that every folder of tests may use them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

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


@pytest.fixture
def committed_world(database: str, tmp_path: Path) -> Iterator[World]:
    """A world in each database in turn, with committed transactions: for what depends on locks and isolation."""
    with opened(tmp_path) as made:
        yield made
