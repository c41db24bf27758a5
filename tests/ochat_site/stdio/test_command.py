"""`manage.py ochat_stdio` as a process, its standard streams pipes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ochat_site.stdio import command
from tests.support.processes import ROOT

SECONDS = 60
PING = b'{"jsonrpc":"2.0","id":1,"method":"protocol.ping","params":{}}\n'


async def start(*arguments: object, data_dir: Path) -> asyncio.subprocess.Process:
    """Start the command with pipes."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OCHAT_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "manage.py", "ochat_stdio", *map(str, arguments)),
        cwd=ROOT,
        env={**inherited, "OCHAT_DATA_DIR": str(data_dir)},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=2**24,
    )


async def finish(process: asyncio.subprocess.Process, said: bytes = b"") -> tuple[int, list[bytes], str]:
    """Say something, end the input; return exit code, lines of output, and errors."""
    async with asyncio.timeout(SECONDS):
        output, errors = await process.communicate(said)
    assert process.returncode is not None
    return process.returncode, output.splitlines(), errors.decode()


class Server:
    """Answers every line on a Unix socket until it is told to hang up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while line := await reader.readline():
            call = json.loads(line)
            writer.write(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": {}}).encode() + b"\n")
        writer.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(tmp_path / "agent.sock")
    listening = await asyncio.start_unix_server(made.serve, str(made.path))
    yield made
    listening.close()
    for writer in made.writers:
        writer.close()


async def test_a_gateway_passes_on_and_ends_with_its_input(server: Server, tmp_path: Path) -> None:
    process = await start("--connect", f"unix://{server.path}", data_dir=tmp_path / "data")
    code, output, errors = await finish(process, PING + b"garbage\n" + PING)

    assert (code, [json.loads(line)["id"] for line in output]) == (0, [1, 1])
    assert "gateway.unreadable" in errors
    assert not (tmp_path / "data").exists()


async def test_a_gateway_ends_when_nobody_reads_it_and_when_nobody_answers(
    server: Server, tmp_path: Path
) -> None:
    unread, unanswered = await asyncio.gather(
        *(start("--connect", f"unix://{server.path}", data_dir=tmp_path) for _ in range(2))
    )
    assert unread.stdout is not None
    assert unread.stdin is not None
    unread.stdin.write(PING)
    await unread.stdout.readline()
    unread.stdout._transport.close()  # type: ignore[attr-defined]  # there is no public way to close a pipe of a child
    unanswered_input = unanswered.stdin
    assert unanswered_input is not None
    assert unanswered.stdout is not None
    unanswered_input.write(PING)
    await unanswered.stdout.readline()
    for writer in server.writers:
        writer.close()

    async with asyncio.timeout(SECONDS):
        assert await unread.wait() in (0, 1)  # Whichever end it notices first.
        assert await unanswered.wait() == 1
    unanswered_input.close()
    unread.stdin.close()


async def test_a_server_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    process = await start("--connect", f"unix://{tmp_path}/agent.sock", data_dir=tmp_path)
    code, output, errors = await finish(process)

    assert (code, output) == (1, [])
    path = tmp_path / "agent.sock"
    assert errors == f"ochat: unix://{path}: cannot connect to {path}: No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--local"], "--local needs --prompt FILE"),
        (["--local", "--prompt", "p", "--bearer-token-file", "t"], "belongs to --connect"),
        (["--connect", "unix:///x", "--transient"], "belong to --local"),
        (["--connect", "unix:///x", "--local"], "not allowed with"),
        ([], "is required"),
    ],
)
def test_what_makes_no_sense_is_said(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments, lambda: None)

    assert ended.value.code == 2
    assert words in capsys.readouterr().err
