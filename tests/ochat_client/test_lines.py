"""Lines as the client reads and writes them."""

import asyncio
import shlex
import socket
import sys
from pathlib import Path

import pytest

from ochat_client import ConnectionLost, ConnectionRefused, ProtocolViolation
from ochat_client.transports import lines, open_transport, unix_path
from ochat_client.transports.lines import LineTransport

SECONDS = 30
ECHO = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("unix:///run/agent.sock", "/run/agent.sock"),
        ("unix://var/run/agent.sock", "var/run/agent.sock"),
        ("unix:/run/a%20b.sock", "/run/a b.sock"),
    ],
)
def test_a_uri_names_a_path(uri: str, path: str) -> None:
    assert unix_path(uri) == path


@pytest.mark.parametrize("uri", ["unix://", "stdio:", "ftp://127.0.0.1", "/run/agent.sock"])
async def test_a_uri_that_names_nothing(uri: str) -> None:
    with pytest.raises(ValueError, match=r"unix|stdio"):
        await open_transport(uri, token=None)


@pytest.mark.parametrize(("name", "final"), [("none.sock", False), ("x" * 200, True)])
async def test_nobody_is_there(tmp_path: Path, name: str, final: bool) -> None:
    with pytest.raises(ConnectionRefused) as refused:
        await open_transport(f"unix://{tmp_path / name}", token=None)
    assert refused.value.final is final


async def test_a_program_is_spoken_with_and_ends_with_its_input() -> None:
    command = f"stdio:{shlex.join([sys.executable, '-c', ECHO])}"
    transport = await open_transport(command, token=None)
    assert isinstance(transport, lines.ProgramTransport)

    sending = asyncio.gather(*(transport.send(b"x" * 100_000 + b"%d" % number) for number in range(20)))
    async with asyncio.timeout(SECONDS):
        received = {await transport.receive() for _ in range(20)}
        await sending
        await transport.close()

    assert received == {b"x" * 100_000 + b"%d" % number for number in range(20)}
    assert transport.program.returncode == 0
    with pytest.raises(ConnectionLost):
        await transport.send(b"late")


async def test_a_program_that_is_not_there() -> None:
    with pytest.raises(ConnectionRefused, match="cannot start"):
        await open_transport("stdio:/nowhere/at/all", token=None)


async def test_a_line_that_is_too_long() -> None:
    transport, theirs = _pair(limit=10)
    with theirs:
        theirs.sendall(b"0123456789\n01234567890")
        assert await transport.receive() == b"0123456789"
        with pytest.raises(ProtocolViolation):
            await transport.receive()
    await transport.close()


async def test_closing_wakes_whoever_waits() -> None:
    transport, theirs = _pair()
    with theirs:
        receiving = asyncio.create_task(transport.receive())
        sending = asyncio.create_task(transport.send(bytes(2**24)))
        await asyncio.sleep(0)
        async with asyncio.timeout(SECONDS):
            await transport.close()
            ended = await asyncio.gather(receiving, sending, return_exceptions=True)

    assert [type(error) for error in ended] == [ConnectionLost, ConnectionLost]


def _pair(limit: int = 2**24) -> tuple[LineTransport, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    return LineTransport(ours, limit), theirs
