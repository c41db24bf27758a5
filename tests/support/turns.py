"""Turns in one process: the real host, gate, kernel and broadcast, with a scripted model and scripted tools at their ports.

What holds for every turn is checked when the block of `turning` ends: what models were asked with, and the numbers and anchors of
the live events.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from channels.layers import InMemoryChannelLayer

from jobs_app.dispatch import LocalDispatcher
from permissions_app import requests
from permissions_app.decisions import PermissionGate
from permissions_app.models import PermissionRequest
from sessions_app import ledger, participants
from sessions_app.broadcast import Broadcast
from sessions_app.commands import messages
from sessions_app.commands.operations import OPERATION_SIGNAL
from sessions_app.db import in_db
from sessions_app.events import LiveEvent
from sessions_app.models import Operation, PromptDefinition
from sessions_app.records import PermissionChoice, StopMode
from sessions_app.runtime.host import TurnHost
from tests.support.scripts import (
    Gates,
    ScriptedModel,
    ScriptedTool,
    as_tools,
    check_well_formed,
    is_strictly_increasing,
    tools,
)
from tests.support.waiting import PAUSE_SECONDS, eventually
from tests.support.world import Client, Story, World

T = TypeVar("T")

NAMES = ("read", "edit", "danger", "fail", "crash", "keep")
PROMPT = (
    '<config model="test:scripted"/>'
    + "".join(f'<tool name="{name}"/>' for name in NAMES)
    + "<developer>Be brief.</developer>"
)


class Layer(InMemoryChannelLayer):
    """The in-memory layer, noting every live event and how far its session's log reached by then."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[LiveEvent]] = []
        self.ahead: list[LiveEvent] = []
        """Events whose anchor was not committed when they left."""
        self.signals: list[str] = []

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        """Note and send."""
        if message["type"] == "live":
            batch = [msgspec.json.decode(event, type=LiveEvent) for event in message["batch"]]
            heads = await in_db(ledger.read_heads, [message["session"]])
            self.ahead += [event for event in batch if event.anchor_sequence > heads[message["session"]]]
            self.batches.append(batch)
        if message["type"] == "signal":
            self.signals.append(message["subject"])
        await super().group_send(group, message)


class Turns:
    """A process that runs the turns of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.gates = Gates()
        self.layer = Layer()
        self.model = ScriptedModel(self.gates)
        self.tools: dict[str, ScriptedTool] = tools(self.gates)
        self.host = self.new_host()
        """Gets the work that is dispatched."""
        self.broadcast = Broadcast(self.layer)
        self.broadcast.on_signal(OPERATION_SIGNAL, self._signalled)
        self.loses_work = False
        """The word of new work does not arrive."""
        self.loses_signals = False
        """Nor does that of cancellations and answers."""

    def new_host(self, **options: Any) -> TurnHost:
        """Return a host of the models and tools of this test."""
        return TurnHost(
            **{
                "resolve_model": lambda _name: self.model,
                "default_model": lambda: None,
                "tools": as_tools(self.tools),
                "gate": PermissionGate(),
                **options,
            }
        )

    def _signalled(self, operation_id: str) -> None:
        if not self.loses_signals:
            self.host.look(operation_id)

    def submitted(self, operation_id: str) -> None:
        """Take the word of new work, in the loop."""
        if not self.loses_work:
            self.host.submit(operation_id)

    # Clients. What touches the store runs in a database thread.

    async def session(self, tool_default: str = "allow", **profile: Any) -> Client:
        """Make an idle session, by default one in which tools run unasked unless they are dangerous."""

        def make() -> Client:
            content = {"tool_default": tool_default, "unattended": "wait", **profile}
            name = f"scripted {sorted(content.items())}"
            known = PromptDefinition.objects.filter(name=name).first()
            prompt = known or self.world.prompt(PROMPT, name=name, profile=self.world.profile(**content))
            return self.world.idle(prompt=prompt)

        return await in_db(make)

    async def send(self, client: Client, text: str = "hello") -> messages.Sent:
        """Send a message."""
        return await in_db(self.world.send, client, text)

    async def cancel(self, client: Client) -> messages.Changed:
        """Cancel the active operation."""
        return await in_db(self.world.cancel, client)

    async def stop(self, client: Client, mode: StopMode = "graceful") -> messages.Changed:
        """Stop the session."""
        return await in_db(self.world.stop, client, mode)

    async def pending(self, client: Client, count: int = 1) -> list[str]:
        """Wait until so many requests are open; return the ids, oldest first."""
        found = self._pending(client)
        return await self.until(lambda: ids if len(ids := found()) == count else [], f"{count} open requests")

    async def pending_now(self, client: Client) -> list[str]:
        """Return the ids of the requests that are open now, oldest first."""
        return await in_db(self._pending(client))

    def _pending(self, client: Client) -> Callable[[], list[str]]:
        rows = PermissionRequest.objects.filter(session_id=client.session_id, state="pending")
        ordered = rows.order_by("created_at", "tool_call_id").values_list("id", flat=True)
        return lambda: list(ordered.all())

    async def answer(
        self, client: Client, permission_id: str, choice: PermissionChoice = "approve_once"
    ) -> requests.Resolved:
        """Answer a permission request."""
        call = self.world.call(client.caller, "permission.respond", protected=True)
        return await in_db(
            lambda: requests.respond(call, client.session_id, permission_id, generation=0, choice=choice)
        )

    # Waiting

    async def until(self, condition: Callable[[], T], what: str) -> T:
        """Ask `condition` in a database thread until its answer is true, and return that."""
        async with asyncio.timeout(30):
            while True:
                if answer := await in_db(condition):
                    return answer
                await asyncio.sleep(PAUSE_SECONDS)
        raise AssertionError(what)

    async def over(self) -> None:
        """Wait until no turn runs in this process."""
        await eventually(lambda: not self.host.turns, "no turn runs")

    async def idle(self, client: Client) -> None:
        """Wait until the session is idle or stopped, and no turn runs in this process."""
        await self.until(lambda: self.world.states(client)[1] in ("idle", "stopped"), "the session is idle")
        await self.over()

    async def parked(self, client: Client) -> Operation:
        """Wait until the operation has parked, and no turn runs in this process."""
        await self.until(
            lambda: Operation.objects.filter(session_id=client.session_id, parked=True).exists(), "parked"
        )
        await self.over()
        return await self.operation(client)

    async def turn(self, client: Client, text: str = "hello") -> Story:
        """Send a message and wait until the session is idle again; return what its log tells of that."""
        before = await in_db(self.world.counters, client)
        await self.send(client, text)
        await self.idle(client)
        return await in_db(self.world.story, client, before[1])

    # Reading

    async def history(self, client: Client) -> list[str]:
        """Return the canonical history behind the prompt's own message, in a few words each."""
        return (await in_db(self.world.history, client))[1:]

    async def operation(self, client: Client) -> Operation:
        """Return the newest operation of the session."""
        return await in_db(Operation.objects.filter(session_id=client.session_id).latest, "started_at")

    def live(self, client: Client) -> list[LiveEvent]:
        """Return the live events of a session that have left so far."""
        return [
            event for batch in self.layer.batches for event in batch if event.session_id == client.session_id
        ]

    async def told(self, client: Client, kind: str, count: int = 1) -> list[LiveEvent]:
        """Wait until so many live events of a kind have left, and return them."""

        def of_kind() -> list[LiveEvent]:
            found = [event for event in self.live(client) if event.kind == kind]
            return found if len(found) >= count else []

        return await eventually(of_kind, f"{count} events {kind}")

    def check_laws(self) -> None:
        """Check what holds for every turn: how models are asked, and in which order readers are told."""
        for items in self.model.requests:
            check_well_formed(items)
        assert not self.layer.ahead, "an anchor was ahead of the log"
        numbers: dict[str, list[int]] = defaultdict(list)
        for batch in self.layer.batches:
            for event in batch:
                numbers[event.operation_id].append(event.operation_sequence)
        for told in numbers.values():
            assert is_strictly_increasing(told), f"live events out of order: {told}"


@asynccontextmanager
async def turning(world: World) -> AsyncIterator[Turns]:
    """Run the turns of a world inside the block."""
    turns = Turns(world)
    loop = asyncio.get_running_loop()

    def dispatch(operation_id: str) -> None:
        loop.call_soon_threadsafe(turns.submitted, operation_id)

    participants.install(participants.installed(), LocalDispatcher(dispatch))
    await turns.broadcast.start()
    try:
        yield turns
        turns.check_laws()
    finally:
        await turns.host.stop(0)
        await turns.broadcast.stop()
