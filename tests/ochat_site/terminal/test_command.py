"""`manage.py chat` as a process: in a pipe, on a terminal, without a server, without a store."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
import termios
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pyte
import pytest

from tests.ochat_client.agent import SESSION, Agent, entry
from tests.ochat_client.server import serving
from tests.ochat_site.terminal.desk import Desk
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with serving(Agent()) as server:
        yield Desk(server)


def environment(data_dir: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OCHAT_")}
    return {**inherited, "OCHAT_DATA_DIR": str(data_dir), "TERM": "xterm"}


async def start(data_dir: Path, *arguments: str, terminal: int | None = None) -> Process:
    piped = PIPE if terminal is None else terminal
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "manage.py",
        "chat",
        *arguments,
        cwd=ROOT,
        env=environment(data_dir),
        stdin=piped,
        stdout=piped,
        stderr=piped,
        preexec_fn=None if terminal is None else lambda: os.login_tty(terminal),
    )


# Pipes


async def test_each_line_is_answered_plainly_and_no_store_is_needed(desk: Desk, tmp_path: Path) -> None:
    desk.answers()
    process = await start(tmp_path, "--connect", desk.uri, "--prompt", "demo")
    output, errors = await process.communicate(b"one\ntwo\n")
    assert output == b"answer to one\nanswer to two\n"
    assert process.returncode == 0, errors
    assert not (tmp_path / "ochat.sqlite3").exists()


async def test_the_token_of_the_data_folder_is_presented(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "client.token").write_text("ours\n", encoding="utf-8")
    process = await start(tmp_path, "--connect", desk.uri, "--session", SESSION)
    await process.communicate(b"")
    assert process.returncode == 0
    assert {headers["Authorization"] for headers in desk.server.headers} == {"Bearer ours"}


async def test_without_a_server_there_is_one_line(desk: Desk, tmp_path: Path) -> None:
    await desk.server.stop()
    process = await start(tmp_path, "--connect", desk.uri)
    output, errors = await process.communicate(b"")
    assert (process.returncode, output) == (1, b"")
    [line] = errors.decode().splitlines()
    assert line.startswith(f"✗ {desk.uri}: cannot connect")


async def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    process = await start(tmp_path, "--bearer-token-file", str(tmp_path / "none"))
    _, errors = await process.communicate(b"")
    assert process.returncode == 1
    assert len(errors.splitlines()) == 1


async def test_a_signal_cancels_and_a_second_one_ends_the_process(desk: Desk, tmp_path: Path) -> None:
    desk.server.handlers["session.cancel_operation"] = lambda *_: desk.changed()  # takes its time
    process = await start(tmp_path, "--connect", desk.uri, "--session", SESSION)
    assert process.stdin
    assert process.stderr
    process.stdin.write(b"one\n")
    await eventually(lambda: desk.agent.operation, "the turn runs")
    desk.agent.append(entry(desk.agent.number(), "call_1", "assistant", "tool_call"))
    await desk.server.publish()
    while not (await process.stderr.readline()).startswith("→ look".encode()):
        pass

    process.send_signal(signal.SIGINT)
    await eventually(lambda: desk.server.called("session.cancel_operation"), "it is cancelled")
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 130


# A terminal


class Window:
    """A terminal of 80 columns with the command in it."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._display = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self._display)

    def type(self, text: str) -> None:
        """Type on it."""
        os.write(self._master, text.encode())

    async def until(self, text: str) -> None:
        """Wait until something is to be seen."""
        await eventually(
            lambda: any(text in row for row in self._display.display), f"{text!r} is to be seen", seconds=20
        )

    def read(self) -> None:
        """Take what the command writes."""
        with suppress(OSError):
            self._stream.feed(os.read(self._master, 65536))


@asynccontextmanager
async def window(tmp_path: Path, *arguments: str) -> AsyncIterator[tuple[Window, Process]]:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    shown = Window(master)
    loop = asyncio.get_running_loop()
    loop.add_reader(master, shown.read)
    process = await start(tmp_path, *arguments, terminal=slave)
    try:
        yield shown, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        loop.remove_reader(master)
        os.close(master)
        os.close(slave)


async def test_talking_on_a_terminal(desk: Desk, tmp_path: Path) -> None:
    async with window(tmp_path, "--connect", desk.uri) as (shown, process):
        await shown.until("Enter for a new one")
        shown.type("1\r")
        await shown.until("/help lists commands.")
        shown.type("hello\r")
        await shown.until("working >")
        await desk.server.tell(desk.agent.delta("Good ", f"{len(SESSION)}:{SESSION}:2"))
        await shown.until("Good")
        await desk.answer("Good day.")
        await shown.until("Good day.")

        shown.type("and?\r")
        await shown.until("working >")
        shown.type("\x03")
        await shown.until("Cancelled.")
        shown.type("\x03")
        assert await process.wait() == 0
