"""The embedded host: sessions of one process, their client on its standard streams (behaviour 1.4, 4.1).

Owns: what the process is configured with, and its life: the store to itself, turns in the loop that serves the client, and the end
of both with the input. Does not own: any of its services, which are those of `web` and `worker`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from django.conf import settings

from jobs_app import recovery
from jobs_app.dispatch import LocalDispatcher
from ochat_site import configuration, preparation, wiring
from ochat_site.env import ConfigError
from ochat_site.stdio.streams import Streams
from ochat_site.web import Web
from permissions_app.authentication import host_identity
from sessions_app import catalog, embedding, limits
from sessions_app.commands import lifecycle
from sessions_app.commands.operations import OPERATION_SIGNAL
from sessions_app.db import in_db
from sessions_app.embedding import Embedding
from sessions_app.encoding import encode
from sessions_app.runtime.models.registry import Models

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ochat_site.env import Env

log = structlog.get_logger(__name__)

WORKSPACE = "workspace"
CATALOG = """\
version = 1
default_prompt = {name}
default_workspace = "workspace"
[[workspaces]]
id = "workspace"
source = {{ physical = {workspace} }}
access = "shared_write"
[[permission_profiles]]
id = "local"
tool_default = "ask"
[[prompts]]
id = {name}
path = {prompt}
allowed_workspaces = ["workspace"]
permission_profile = "local"
"""
"""Written at each start: there is nothing in it to edit."""


def prepare(env: Env, prompt: Path, workspace: Path | None) -> Iterator[str]:
    """Make the store, put the prompt and the workspace in force, and yield a line for what a person should know of.

    Refuses with ConfigError, in one line, a prompt or a workspace that cannot be used.
    """
    yield from preparation.migrated(env)
    file, folder = prompt.resolve(), (workspace or Path.cwd()).resolve()
    name = re.sub(r"[^A-Za-z0-9_.-]|^[^A-Za-z0-9]", "-", file.stem).lstrip("-_.")[:64] or "prompt"
    try:
        text = CATALOG.format(name=_quoted(name), prompt=_quoted(str(file)), workspace=_quoted(str(folder)))
    except UnicodeError:
        raise ConfigError("the paths of prompt and workspace must be text in UTF-8.") from None
    env.catalog.write_text(text, encoding="utf-8")
    loaded = catalog.load(configuration.source(env.catalog), at_start=True)
    for problem in loaded.problems:
        raise ConfigError(f"{problem}.")
    embedding.install(
        Embedding(catalog.prompt_id(name), file, catalog.workspace_id(WORKSPACE), folder),
    )


def _quoted(text: str) -> str:
    return encode(text).decode()


async def run(source: int, sink: int) -> None:
    """Serve the client on two descriptors until it ends, then end what it left behind within the grace (behaviour 14.3)."""
    host = _Host(Streams(source, sink))
    await host.start()
    try:
        await host.serve()
    finally:
        await host.stop()


class _Host:
    """The services of one process."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._web = Web("local")
        self._models = Models(settings.ENV.model_provider)
        self._turns = wiring.turn_host(self._models)
        self._web.broadcast.on_signal(OPERATION_SIGNAL, self._turns.look)
        self._hurrying: asyncio.Task[None] | None = None
        self._told_to_end = False

    async def start(self) -> None:
        loop = asyncio.get_running_loop()

        def submit(operation_id: str) -> None:
            loop.call_soon_threadsafe(self._turns.submit, operation_id)

        wiring.install(LocalDispatcher(submit))
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._end)
        await self._web.start()
        await in_db(self._clear)

    @staticmethod
    def _clear() -> None:
        """End what an earlier host was killed over: its sessions were bound to it."""
        recovery.take_over()
        lifecycle.stop_everything("host_lost")

    async def serve(self) -> None:
        connection = self._web.connect(host_identity(os.geteuid()), self._streams, "stdio")
        self._streams.listen(connection)
        if self._told_to_end:
            self._streams.end()
        await connection.wait_closed()

    async def stop(self) -> None:
        await self._web.drain()
        await self._turns.stop(limits.server().shutdown_grace_ms / 1000)
        await in_db(lifecycle.stop_everything, "host_ended")
        await self._web.stop()
        await self._models.aclose()
        await self._streams.closed.wait()

    def _end(self) -> None:
        """End at the first signal as with the input, and let nothing run on at the second."""
        if self._told_to_end and self._hurrying is None:
            self._hurrying = asyncio.get_running_loop().create_task(self._turns.stop(0.1))
        self._told_to_end = True
        self._streams.end()
