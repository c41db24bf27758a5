"""The client against the real thing: web process, worker, broker, store."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from ochat_client import Backoff, Client, Durable, Live, Lost, ReconnectingSession, Update, differences
from ochat_site.dialects.ochat1.types import AttachReplayEvents, AttachReplaySnapshot
from ochat_site.terminal import catalog
from sessions_app.events import DurableEvent
from sessions_app.records import InputMessageItem, InputText, ObservedIdle, decode_item
from tests.support.processes import ROOT, Installation, Installations, Process

pytestmark = pytest.mark.timeout(300)

EVENTS_OF_A_TURN = 9
"""With one call: message, start, state, ready; words and call, output, words; end, state."""


class Running(NamedTuple):
    """An installation whose processes run."""

    installation: Installation
    serve: Process

    async def dial(self) -> Client:
        """Connect as the operator."""
        uri = self.installation.url.replace("http", "ws", 1)
        return await Client.connect(uri, token=self.installation.token)

    async def new_session(self) -> str:
        """Create a session of the demo prompt."""
        async with await self.dial() as client:
            prompt = catalog.find_prompt(await catalog.available_prompts(client), "demo")
            return await catalog.create_session(client, prompt)

    async def log(self, session_id: str) -> list[DurableEvent]:
        """Return every event of a session."""
        async with await self.dial() as client:
            replay = (await client.attach(session_id, "read_only", after_sequence=0)).result.replay
            assert isinstance(replay, AttachReplayEvents)
            return list(replay.events)


class Line:
    """A way to the server that a test can cut."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._client: Client

    async def open(self, session_id: str) -> ReconnectingSession:
        """Open a session on it."""
        return await ReconnectingSession.open(self._dial, session_id, backoff=Backoff(first=0.1))

    async def cut(self) -> None:
        """End the present connection."""
        await self._client.close()

    async def _dial(self) -> Client:
        self._client = await self._running.dial()
        return self._client


@pytest.fixture
def running(install: Installations) -> Running:
    installation = install()
    installation.start_valkey()
    serve = installation.start_serve()
    worker = installation.start("worker")
    worker.until(lambda: "worker.ready" in worker.output, "the worker is ready")
    return Running(installation, serve)


def is_idle(session: ReconnectingSession) -> bool:
    """Whether the projection shows a session that does nothing."""
    return isinstance(session.projection.session.observed_state, ObservedIdle)


def events(updates: Sequence[Update]) -> list[DurableEvent]:
    """Return the durable events among updates."""
    return [update.event for update in updates if isinstance(update, Durable)]


def messages(session: ReconnectingSession) -> list[str]:
    """Return what users said, as the projection shows it."""
    return [
        part.text
        for entry in session.projection.history.entries
        if entry.role == "user"
        for item in [decode_item(entry.payload)]
        if isinstance(item, InputMessageItem)
        for part in item.content
        if isinstance(part, InputText)
    ]


async def as_the_server_says(running: Running, session: ReconnectingSession) -> list[str]:
    """Return what differs between the projection and a fresh snapshot."""
    async with await running.dial() as client:
        replay = (await client.attach(session.session_id, "read_only")).result.replay
        assert isinstance(replay, AttachReplaySnapshot)
        return differences(session.projection.snapshot(), replay.snapshot)


async def test_no_event_is_missed_wherever_in_a_turn_the_connection_is_lost(running: Running) -> None:
    line = Line(running)
    async with await line.open(await running.new_session()) as session:
        await anext(session)
        first = session.projection.sequence
        updates: list[Update] = []
        for index in range(EVENTS_OF_A_TURN + 1):
            before = session.projection.sequence
            sent = await session.send_message("What time is it?")
            cut = False
            while not (
                cut and is_idle(session) and session.projection.sequence >= sent.latest_event_sequence
            ):
                if not cut and session.projection.sequence >= before + index:
                    cut = True
                    await line.cut()
                updates.append(await anext(session))
            assert session.projection.sequence == before + EVENTS_OF_A_TURN

        assert events(updates) == (await running.log(session.session_id))[first:]
        assert any(isinstance(update, Live) for update in updates)
        assert await as_the_server_says(running, session) == []


async def test_a_message_is_said_once_whenever_the_connection_is_lost_while_it_is_sent(
    running: Running,
) -> None:
    line = Line(running)
    said = [f"message {moment}" for moment in range(24)]
    async with await line.open(await running.new_session()) as session:
        for moment, text in enumerate(said):
            sending = asyncio.create_task(session.send_message(text))
            for _ in range(moment):
                await asyncio.sleep(0)
            await line.cut()
            await sending
        while not (is_idle(session) and len(messages(session)) >= len(said)):
            await anext(session)

        assert messages(session) == said


async def test_a_turn_goes_on_while_the_web_process_is_killed_and_comes_back(running: Running) -> None:
    async with await Line(running).open(await running.new_session()) as session:
        await anext(session)
        first = session.projection.sequence
        text = " ".join(["word"] * 100)
        await session.send_message(text)
        updates: list[Update] = []
        while not any(isinstance(update, Live) for update in updates):
            updates.append(await anext(session))
        running.serve.kill()
        again = asyncio.create_task(asyncio.to_thread(running.installation.start_serve))
        while not is_idle(session):
            updates.append(await anext(session))
        await again

        assert [type(update) for update in updates].count(Lost) >= 1
        assert events(updates) == (await running.log(session.session_id))[first:]
        assert await as_the_server_says(running, session) == []


async def test_a_newcomer_talks_in_a_pipe(running: Running) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "manage.py", "chat", "--prompt", "demo"),
        cwd=ROOT,
        env=running.installation.environment,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    output, errors = await process.communicate(b"hello\nbye\n")

    assert process.returncode == 0, errors
    assert output.decode().splitlines() == [
        f"[demo model, no intelligence] You said: {text}" for text in ("hello", "bye")
    ]
