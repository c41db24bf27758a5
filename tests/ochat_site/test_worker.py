"""`manage.py worker` as a process: its start, its refusals, its weight, its end. What it does in between is tested in `crash`."""

from __future__ import annotations

import psutil
import pytest

from sessions_app.limits import MIB
from tests.support.processes import Installations

pytestmark = pytest.mark.timeout(300)

MOST_MIB_AT_START = 100
"""It was 85; all processes of an installation together have 250."""


def test_it_starts_and_ends_in_order_without_a_broker(install: Installations) -> None:
    """A broker that is away is waited for, however long; that keeps nobody from stopping."""
    installation = install()
    worker = installation.start("worker")
    worker.until(lambda: "worker.ready" in worker.output, "the worker is ready")
    weight = psutil.Process(worker.pid).memory_info().rss / MIB
    assert worker.stop() == 0
    assert "Traceback" not in worker.output
    assert weight < MOST_MIB_AT_START


def test_it_starts_and_ends_in_order_with_a_broker(install: Installations) -> None:
    installation = install()
    installation.start_valkey()
    worker = installation.start("worker")
    worker.until(lambda: "worker.ready" in worker.output, "the worker is ready")
    assert worker.stop() == 0
    assert "Traceback" not in worker.output


def test_a_store_that_is_not_migrated_is_one_line(install: Installations) -> None:
    installation = install()
    for file in installation.data_dir.glob("ochat.sqlite3*"):
        file.unlink()
    done = installation.run("worker")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "ochat: the store must be migrated first: run manage.py migrate (migration_required)."
    ]
