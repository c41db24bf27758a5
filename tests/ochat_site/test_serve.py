"""`manage.py serve` as a process: its ready line, its refusals, its weight, its end."""

import socket
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from ochat_site.peers import peer_of
from sessions_app.limits import MIB
from tests.support.ports import free_port
from tests.support.processes import Installations
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)

MOST_MIB_AT_START = 90
"""It was 79; all processes of an installation together have 250."""


def test_it_says_where_it_serves_and_ends_in_order_without_a_broker(install: Installations) -> None:
    installation = install()
    serve = installation.start_serve()
    serve.until(lambda: "Serving on" in serve.output, "the ready line")
    weight = psutil.Process(serve.pid).memory_info().rss / MIB

    assert installation.url in serve.output
    assert weight < MOST_MIB_AT_START
    assert serve.stop() == 0


def test_a_busy_address_is_one_line(install: Installations) -> None:
    installation = install()
    with closing(socket.create_server(("127.0.0.1", installation.port))):
        done = installation.run("serve")

    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"ochat: OCHAT_BIND: cannot listen on 127.0.0.1:{installation.port}: Address already in use."
    ]


def test_a_second_start_takes_the_address_at_once(install: Installations) -> None:
    installation = install()
    first = installation.start_serve()
    # A connection that the server closes keeps the address in TIME_WAIT for a minute.
    with closing(socket.create_connection(("127.0.0.1", installation.port))):
        assert first.stop() == 0

    second = installation.start_serve()

    until(lambda: "Serving on" in second.output, "the ready line")
    assert second.stop() == 0


def test_a_linked_socket_folder_is_one_line(install: Installations, tmp_path: Path) -> None:
    installation = install()
    run_dir = installation.data_dir / "run"
    run_dir.symlink_to(tmp_path)
    done = installation.run("serve")

    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("ochat:")] == [
        f"ochat: {run_dir}: the folder of the socket must be a folder itself, not a link."
    ]
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_a_second_process_takes_the_socket_over_when_the_first_ends(install: Installations) -> None:
    installation = install()
    path = installation.data_dir / "run" / "agent.sock"
    first = installation.start_serve()
    installation.port = free_port()
    installation.environment["OCHAT_BIND"] = f"127.0.0.1:{installation.port}"
    second = installation.start_serve()
    until(lambda: "unix.held_by_another" in second.output, "it leaves the socket to the first")

    assert _listener(path) == first.pid
    assert first.stop() == 0
    second.until(lambda: _listener(path) == second.pid, "it takes the socket over")
    assert second.stop() == 0
    assert not path.exists()


def _listener(path: Path) -> int:
    with socket.socket(socket.AF_UNIX) as client:
        return peer_of(client).pid if client.connect_ex(str(path)) == 0 else 0
