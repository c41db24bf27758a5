"""Turns on the run's own database, and on each database in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sessions_app import limits
from tests.support.busy import IMPATIENT
from tests.support.turns import Turns, turning
from tests.support.world import World, opened


@pytest.fixture
def stored_world(transactional_db: None, tmp_path: Path) -> Iterator[World]:
    """A world whose rows are committed, so that database threads see them."""
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
async def turns(stored_world: World) -> AsyncIterator[Turns]:
    """A process that runs the turns of a world."""
    async with turning(stored_world) as made:
        yield made


@pytest.fixture
async def turns_on_each(committed_world: World) -> AsyncIterator[Turns]:
    """The same on each database in turn, for what depends on locks and isolation."""
    async with turning(committed_world) as made:
        yield made


@pytest.fixture
def impatient() -> Iterator[None]:
    """Whoever waits for a lock of the store gives up soon."""
    with limits.using(IMPATIENT):
        yield


@pytest.fixture
async def impatient_turns(impatient: None, turns_on_each: Turns) -> Turns:
    """A process that gives up soon, on each database in turn."""
    return turns_on_each
