"""`manage.py serve` as a process: its ready line, its refusals, its weight, its end."""

import socket
from contextlib import closing

import psutil
import pytest

from sessions_app.limits import MIB
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
