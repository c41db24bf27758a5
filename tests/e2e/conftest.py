"""A whole installation under `manage.py up`, with a model server that others wrote behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from llmock.pytest_plugin import LLMock
from llmock.testing import LLMockServer
from pytest_django.plugin import DjangoDbBlocker

from tests.conformance import fixture
from tests.e2e.installed import Installed, InstalledDoor
from tests.support import databases
from tests.support.serving import Host, serving
from tests.support.up import Up
from tests.support.world import World, opened


@pytest.fixture(scope="session")
def installed(llmock_server: LLMockServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """What `up` keeps running, started when the first test asks for it."""
    data_dir = tmp_path_factory.mktemp("up")
    data_dir.chmod(0o700)
    fixture.write(data_dir)
    running = Up(data_dir)
    try:
        running.start(**LLMock(llmock_server).env())
        running.ready()
        yield Installed(running)
    finally:
        running.close()


@pytest.fixture
def installed_store(
    installed: Installed, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """Let this process look into the store of the installation."""
    with django_db_blocker.unblock(), databases.using(installed.database_url):
        yield


@pytest.fixture
async def door(
    installed: Installed, installed_store: None, llmock_server: LLMockServer
) -> AsyncIterator[InstalledDoor]:
    """The installation, as clients find it; nothing is scripted and nothing recorded of its model."""
    made = InstalledDoor(installed, LLMock(llmock_server).reset())
    try:
        yield made
        await made.check_laws()
    finally:
        await made.close()


@pytest.fixture
def served_world(transactional_db: None, tmp_path: Path) -> Iterator[World]:
    """A world whose rows are committed, so that database threads see them."""
    with opened(tmp_path) as made:
        yield made


@pytest.fixture
async def host(served_world: World) -> AsyncIterator[Host]:
    """A process that serves this world: the real kernel and feeds, turns driven by the test."""
    async with serving() as made:
        yield made
