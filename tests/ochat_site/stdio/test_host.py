"""`manage.py ochat_stdio --local` as a process: a host with a store of its own, that ends with its input."""

from __future__ import annotations

import asyncio
import os
import shlex
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from ochat_client import AttachedSession, Client, ProtocolError, methods, new_key
from ochat_client.transports.lines import ProgramTransport
from ochat_site.dialects.ochat1.types import SessionGetParams, SessionListParams
from sessions_app.events import DurableEvent
from sessions_app.records import (
    LivenessDetached,
    LivenessProcessBound,
    ObservedStopped,
    PromptRefLocalPath,
    SessionSpec,
    WorkspaceRequestCurrent,
)
from tests.conformance.peers import history
from tests.support.processes import ROOT

SECONDS = 90
PROMPT = '<config model="demo:demo"/>\n<developer>Be brief.</developer>\n'
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def prompt(tmp_path: Path) -> Path:
    file = tmp_path / "prompt.chatmd"
    file.write_text(PROMPT, encoding="utf-8")
    return file


def command(prompt: Path, *more: object) -> list[str]:
    return [
        *("env", "-u", "OCHAT_DATA_DIR", "-u", "DJANGO_SETTINGS_MODULE"),
        *(sys.executable, str(ROOT / "manage.py"), "ochat_stdio", "--local"),
        *map(str, ("--prompt", prompt, "--workspace", prompt.parent, *more)),
    ]


async def connect(prompt: Path, *more: object) -> tuple[Client, ProgramTransport]:
    client = await Client.connect(f"stdio:{shlex.join(command(prompt, *more))}")
    transport = client._transport
    assert isinstance(transport, ProgramTransport)
    return client, transport


async def refused(prompt: Path, *more: object) -> str:
    """Start a host that refuses to start; return what it says."""
    process = await asyncio.create_subprocess_exec(
        *command(prompt, *more),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    assert (process.returncode, output) == (1, b"")
    said = [line for line in errors.decode().splitlines() if line.startswith("ochat: ")]
    assert len(said) == 1, errors.decode()
    return said[0]


async def create(client: Client, prompt: Path, *, transient: bool = False) -> AttachedSession:
    spec = SessionSpec(
        execution_host="embedded",
        prompt=PromptRefLocalPath(path=str(prompt)),
        workspace=WorkspaceRequestCurrent(),
        liveness=LivenessProcessBound(),
        persistence="transient" if transient else "durable",
        start_immediately=True,
        labels={},
    )
    made = await client.create_session(spec)
    return await client.attach(made.session.id)


async def answered(session: AttachedSession) -> None:
    async with asyncio.timeout(SECONDS):
        async for event in session:
            if isinstance(event, DurableEvent) and event.kind == "operation.completed":
                return


async def test_a_transient_host_needs_nothing_and_leaves_nothing(prompt: Path) -> None:
    folder = prompt.parent
    client, transport = await connect(prompt, "--transient")
    assert client.server.principal.authentication_kind == "stdio.host_user"
    session = await create(client, prompt, transient=True)
    await session.send_message("hello")
    await answered(session)
    # What was sent before the end of the input is answered, and its turn may end.
    sent = await session.send_message("bye")
    assert sent.disposition == "started"
    await client.close()

    assert transport.program.returncode == 0
    assert list(folder.iterdir()) == [prompt]


@pytest.mark.parametrize("mark", ["store-id", "ochat.toml"])
async def test_a_servers_folder_is_no_hosts(prompt: Path, tmp_path: Path, mark: str) -> None:
    """A host would end every session there, and leave the server its own catalog."""
    root = tmp_path / "root"
    root.mkdir(mode=0o700)
    (root / mark).touch()
    assert "the data folder of a server" in await refused(prompt, "--data-root", root)
    assert [found.name for found in root.iterdir()] == [mark]


@pytest.mark.long
async def test_a_durable_host_keeps_its_sessions_stopped(prompt: Path, tmp_path: Path) -> None:
    """One that ends in order, and one that is killed: both times its sessions are there, stopped, and go on."""
    root = tmp_path / "root"
    client, transport = await connect(prompt, "--data-root", root)
    session = await create(client, prompt)
    await session.send_message("hello")
    await answered(session)
    assert "another host is running" in await refused(prompt, "--data-root", root)
    await client.close()
    assert transport.program.returncode == 0
    with closing(sqlite3.connect(root / "ochat.sqlite3")) as store:
        assert store.execute("SELECT desired, observed FROM sessions_app_session").fetchall() == [
            ("stopped", "stopped")
        ]

    client, transport = await connect(prompt, "--data-root", root)
    again = await client.attach(session.session_id)
    await again.mutate(methods.SESSION_START, queue_if_limited=False)
    await again.send_message("again")
    transport.program.kill()
    await client.close()

    client, _ = await connect(prompt, "--data-root", root)
    page = await client.call(methods.SESSION_LIST, SessionListParams(limit=10, labels={}))
    assert [type(found.observed_state) for found in page.items] == [ObservedStopped]
    kept = history(await client.call(methods.SESSION_GET, SessionGetParams(session_id=session.session_id)))
    assert kept[0] == "developer: Be brief."
    assert "user: hello" in kept
    assert "user: again" in kept
    await client.close()


@pytest.fixture
def broken(prompt: Path) -> Path:
    prompt.write_text("<developer>unclosed", encoding="utf-8")
    return prompt


async def test_what_cannot_be_used_is_one_line(broken: Path) -> None:
    assert "prompt.chatmd" in await refused(broken, "--transient")


@pytest.mark.long
async def test_a_signal_ends_it_like_the_end_of_its_input(prompt: Path) -> None:
    client, transport = await connect(prompt, "--transient")
    with pytest.raises(ProtocolError, match="embedded"):
        await client.create_session(
            SessionSpec(
                execution_host="daemon",
                prompt=PromptRefLocalPath(path=str(prompt)),
                workspace=WorkspaceRequestCurrent(),
                liveness=LivenessDetached(),
                persistence="durable",
                start_immediately=False,
                labels={},
            ),
            key=new_key(),
        )
    os.kill(transport.program.pid, 15)

    async with asyncio.timeout(SECONDS):
        assert await transport.program.wait() == 0
    await client.close()
