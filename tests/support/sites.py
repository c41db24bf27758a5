"""The sites of the suite, as fixtures of every folder of tests: `site` is each in turn, `socket_site` real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from django.conf import settings
from pytest_django.plugin import DjangoDbBlocker

from ochat_site import configuration, preparation
from sessions_app import catalog, limits
from tests.conformance import fixture
from tests.conformance.line_sites import GatewaySite, UnixSite
from tests.conformance.local import LocalSite
from tests.conformance.over_http import HttpSite
from tests.conformance.sites import Processes, Site, SocketSite
from tests.support import databases
from tests.support.model_servers import ModelServer
from tests.support.processes import Installation


@pytest.fixture(scope="session")
def model_server() -> Iterator[ModelServer]:
    """The model that every turn asks."""
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="session")
def site_processes(
    model_server: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Processes]:
    """The processes of the socket site, started when the first test asks for them."""
    data_dir = tmp_path_factory.mktemp("site")
    data_dir.chmod(0o700)
    fixture.write(data_dir)
    installation = Installation(data_dir, model_server.env())
    try:
        yield Processes(installation)
    finally:
        installation.close()


@pytest.fixture(scope="module")
def local_store(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """A store of its own for the site in this process, and the fixture's catalog as that of this process."""
    path = tmp_path_factory.mktemp("local-site") / "ochat.sqlite3"
    fixture.write(settings.ENV.data_dir)
    try:
        with (
            limits.using(limits.server()),
            django_db_blocker.unblock(),
            databases.using(databases.sqlite_url(path)),
        ):
            preparation.make_store()
            catalog.load(configuration.source(settings.ENV.catalog), at_start=True)
            yield
    finally:
        settings.ENV.catalog.unlink()


@pytest.fixture
def site_store(
    site_processes: Processes, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """Let this process look into the store of the socket site."""
    with django_db_blocker.unblock(), databases.using(site_processes.database_url):
        yield


@pytest.fixture
async def socket_site(
    site_processes: Processes, site_store: None, model_server: ModelServer
) -> AsyncIterator[SocketSite]:
    """Real processes behind a WebSocket."""
    model_server.reset()
    site = SocketSite(site_processes, model_server)
    try:
        yield site
        await site.check_laws()
    finally:
        await site.close()


@asynccontextmanager
async def _running(
    site: LocalSite, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[None]:
    for name, value in model_server.env().items():
        monkeypatch.setenv(name, value)
    model_server.reset()
    try:
        await site.start()
        yield
        await site.check_laws()
    finally:
        await site.close()


@pytest.fixture
async def local_site(
    local_store: None, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LocalSite]:
    """The same services in this process."""
    site = LocalSite(settings.ENV.data_dir, model_server)
    async with _running(site, model_server, monkeypatch):
        yield site


@pytest.fixture
async def unix_site(
    local_store: None, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[UnixSite]:
    """They again, behind a real Unix socket."""
    site = UnixSite(settings.ENV.data_dir, model_server)
    async with _running(site, model_server, monkeypatch):
        yield site


@pytest.fixture
async def http_site(
    local_store: None, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HttpSite]:
    """They again, asked over HTTP."""
    site = HttpSite(settings.ENV.data_dir, model_server)
    async with _running(site, model_server, monkeypatch):
        yield site


@pytest.fixture
async def gateway_site(
    local_store: None, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GatewaySite]:
    """They again, behind that socket and a gateway from standard streams."""
    site = GatewaySite(settings.ENV.data_dir, model_server)
    async with _running(site, model_server, monkeypatch):
        yield site


@pytest.fixture(
    params=["socket_site", "local_site", pytest.param("http_site", marks=pytest.mark.long)],
    ids=["websocket", "in-process", "http"],
)
def site(request: pytest.FixtureRequest) -> Site:
    """Each site in turn."""
    made: Site = request.getfixturevalue(request.param)
    return made


@pytest.fixture(params=["socket_site", "local_site"], ids=["websocket", "in-process"])
def framed_site(request: pytest.FixtureRequest) -> Site:
    """Each site whose clients hold a socket: one frame is one message, and the socket's end is the connection's."""
    made: Site = request.getfixturevalue(request.param)
    return made
