"""An installation for each test, with nothing running yet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from pytest_django.plugin import DjangoDbBlocker

from tests.crash.site import CrashSite, database_url
from tests.support import databases
from tests.support.model_servers import ModelServer
from tests.support.processes import Installation, Installations


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """The model that the turns of a test ask."""
    with ModelServer() as server:
        yield server


@pytest.fixture
def installation(install: Installations, model: ModelServer) -> Installation:
    """A data folder, whose processes find the model."""
    return install(**model.env())


@pytest.fixture
def store(
    installation: Installation, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """Let this process look into the store of the installation."""
    with django_db_blocker.unblock(), databases.using(database_url(installation)):
        yield


@pytest.fixture
async def site(installation: Installation, model: ModelServer, store: None) -> AsyncIterator[CrashSite]:
    """The installation, as a test runs it and clients find it."""
    made = CrashSite(installation, model)
    yield made
    await made.close()
    assert made.problems == []
