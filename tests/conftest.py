"""What every test gets: a data folder of its own process, and Django set up on it.

The environment is set here, before Django reads it: the store is a real SQLite file unless
`OCHAT_DATABASE_URL` names a PostgreSQL server.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from django.conf import settings
from hypothesis import HealthCheck
from hypothesis import settings as examples
from pytest_django.plugin import DjangoDbBlocker

# How long a machine takes to make up an example says nothing of the product.
examples.register_profile(
    "ochat", parent=examples(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
examples.load_profile("ochat")

pytest_plugins = ["tests.support.not_run", "tests.support.worlds", "tests.support.sites"]

DATA_DIR = Path(tempfile.mkdtemp(prefix="ochat-"))

for name in [name for name in os.environ if name.startswith("OCHAT_") and name != "OCHAT_DATABASE_URL"]:
    del os.environ[name]
os.environ["OCHAT_DATA_DIR"] = str(DATA_DIR)
os.environ["DJANGO_SETTINGS_MODULE"] = "ochat_site.settings"
django.setup()

from django.db import connection  # noqa: E402 - needs Django set up

from sessions_app import db  # noqa: E402
from tests.support import databases  # noqa: E402
from tests.support.postgres import Postgres  # noqa: E402
from tests.support.postgres import running as running_postgres  # noqa: E402
from tests.support.processes import Installations  # noqa: E402


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Let each worker process read its settings here, with a data folder of its own.

    Those that find the name of the settings read them before this file, with the data folder of the process that started them.
    """
    del os.environ["DJANGO_SETTINGS_MODULE"]


@pytest.fixture(scope="session", autouse=True)
def _data_folder() -> Iterator[None]:
    yield
    shutil.rmtree(DATA_DIR, ignore_errors=True)


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """The test database is a file: threads and processes must meet in it as they do in production."""
    if settings.DATABASES["default"]["ENGINE"] == "sessions_app.sqlite":
        settings.DATABASES["default"]["TEST"]["NAME"] = str(DATA_DIR / "test.sqlite3")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """Close the connections of the database threads before the test database is dropped."""
    yield
    db.shutdown()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server, started when the first test asks for it."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_store(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> str:
    """The URL of a migrated SQLite file beside the run's own database."""
    file = DATA_DIR / "other.sqlite3"
    if connection.vendor == "sqlite":
        with django_db_blocker.unblock():
            return databases.copy_sqlite(file)
    return _migrated(databases.sqlite_url(file), django_db_blocker)


@pytest.fixture(scope="session")
def postgresql_store(postgres: Postgres, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> str:
    """The URL of a migrated PostgreSQL database beside the run's own."""
    return _migrated(postgres.new_database(), django_db_blocker)


def _migrated(url: str, blocker: DjangoDbBlocker) -> str:
    with blocker.unblock(), databases.using(url):
        databases.migrate()
    return url


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tell pytest-django, which looks at collected items, that `database` is the database too."""
    if "database" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.django_db(transaction=True))


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Each database in turn, with committed transactions; its name. For what depends on locks and isolation."""
    vendor: str = request.param
    if vendor == connection.vendor:
        yield vendor
        return
    url: str = request.getfixturevalue(f"{vendor}_store")
    with django_db_blocker.unblock(), databases.using(url):
        yield vendor
        databases.flush()


@pytest.fixture(scope="session")
def _installations(request: pytest.FixtureRequest) -> Installations:
    return Installations(DATA_DIR / "i", lambda: request.getfixturevalue("postgres"))


@pytest.fixture
def install(_installations: Installations) -> Iterator[Installations]:
    """Call it for an installation: real processes on a data folder of their own, killed with the test."""
    yield _installations
    _installations.close()
