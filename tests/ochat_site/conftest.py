"""A world that is served: what the tests of the protocol start from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.serving import Host, serving
from tests.support.world import World, opened


@pytest.fixture
def served_world(transactional_db: None, tmp_path: Path) -> Iterator[World]:
    """A world whose rows are committed, so that database threads see them."""
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
async def host(served_world: World) -> AsyncIterator[Host]:
    """A process that serves this world."""
    async with serving() as made:
        yield made
