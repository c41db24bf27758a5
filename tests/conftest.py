"""What every test gets: a data folder of its own process and Django set up on it.

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

DATA_DIR = Path(tempfile.mkdtemp(prefix="ochat-tests-"))

for name in [name for name in os.environ if name.startswith("OCHAT_") and name != "OCHAT_DATABASE_URL"]:
    del os.environ[name]
os.environ["OCHAT_DATA_DIR"] = str(DATA_DIR)
os.environ["DJANGO_SETTINGS_MODULE"] = "ochat_site.settings"
django.setup()

from sessions_app import db  # noqa: E402 - needs Django set up


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
