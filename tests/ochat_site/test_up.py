"""`manage.py up` with everything real: the newcomer's first and second start, and what stops it."""

import http.client
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.support.up import Up
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path / "data")
    yield running
    running.close()


def _status(up: Up) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=30)
    with closing(connection):
        connection.request("GET", "/")
        return connection.getresponse().status


def _answers_again(up: Up) -> bool:
    try:
        return _status(up) == 200
    except OSError:
        return False


def test_the_first_start_makes_everything_and_the_second_keeps_it(up: Up) -> None:
    first = up.start()
    said = up.ready()
    assert "password" in said
    assert _status(up) == 200
    token = (up.data_dir / "client.token").read_bytes()
    children = up.children()
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode == 0
    assert psutil.wait_procs(children, timeout=0)[1] == []

    up.start()
    said = up.ready()
    assert "password" not in said
    assert _status(up) == 200
    assert (up.data_dir / "client.token").read_bytes() == token

    for command in ("serve", "worker", "valkey-server"):
        killed = up.child(command)
        killed.kill()
        up.child(command, but=killed.pid)
    until(lambda: _answers_again(up), "the new web process answers")


def test_a_broken_catalog_is_one_line(up: Up) -> None:
    up.data_dir.mkdir(mode=0o700)
    (up.data_dir / "ochat.toml").write_text("version = 1\n[[prompts]]\nid = 7\n")
    process = up.start()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert [line for line in errors.splitlines() if "ochat.toml" in line] == errors.splitlines()
    assert len(errors.splitlines()) == 1


def test_the_store_of_a_newer_version_is_one_line(up: Up) -> None:
    process = up.start()
    up.ready()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    with closing(sqlite3.connect(up.data_dir / "ochat.sqlite3")) as store:
        store.execute(
            "INSERT INTO django_migrations (app, name, applied) VALUES ('sessions_app', '9999_later', '2100-01-01')"
        )
        store.commit()
    process = up.start()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert (
        errors == "ochat: the store was written by a newer version of this server (store_schema_too_new).\n"
    )
