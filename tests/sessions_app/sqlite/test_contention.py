"""Four processes of eight writers on one SQLite file: nobody meets a lock error, nobody starves."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROCESSES = 4
THREADS = 8


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.long)])
def test_writers_wait_fairly_and_without_errors(
    tmp_path: Path, seconds: int, record_property: Callable[[str, object], None]
) -> None:
    store = tmp_path / "store.sqlite3"
    with sqlite3.connect(store) as connection:
        connection.execute("CREATE TABLE tally (value integer NOT NULL, single integer NOT NULL)")
        connection.execute("INSERT INTO tally VALUES (0, 0)")
    connection.close()

    reports = _run(store, seconds)

    assert [report["errors"] for report in reports] == [[]] * PROCESSES
    commits = [count for report in reports for count in report["commits"]]
    with sqlite3.connect(store) as connection:
        assert connection.execute("SELECT value, single FROM tally").fetchone() == (
            sum(commits),
            sum(commits),
        )
    connection.close()
    # Fair enough: no writer gets less than a fifth of an equal share.
    assert min(commits) * 5 >= sum(commits) / len(commits), commits
    waits = sorted(wait for report in reports for wait in report["waits"])
    record_property("commits_per_second", sum(commits) / seconds)
    record_property("wait_p50_ms", waits[len(waits) // 2])
    record_property("wait_p99_ms", waits[len(waits) * 99 // 100])
    print(
        f"\n{sum(commits) / seconds:.0f} rounds/s of two commits; wait p50 {waits[len(waits) // 2]:.1f} ms, "
        f"p99 {waits[len(waits) * 99 // 100]:.1f} ms, longest {waits[-1]:.1f} ms; commits by writer {commits}"
    )


def _run(store: Path, seconds: int) -> list[dict[str, list[float]]]:
    environment = {**os.environ, "OCHAT_DATABASE_URL": f"sqlite://{store}"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.store_writers", str(THREADS), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        return [json.loads(process.communicate(timeout=seconds + 60)[0]) for process in _go(processes)]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _go(processes: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes
