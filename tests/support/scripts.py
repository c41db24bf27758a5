"""A model and tools that do what a test says, when it says so: doubles at the ports of the turn loop.

Owns the script of a reply and the gates at which models and tools wait. What a model streams is written by the composer that the
real adapters use, so that a script is told in the provider's terms like any other reply.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from sessions_app.records import ToolOutput, decode_item
from sessions_app.runtime.models.compose import OpenItem, ReplyWriter
from sessions_app.runtime.models.port import ModelError, ModelEvent, ModelRequest, ToolSpec, Usage
from sessions_app.runtime.ports import Tier, Tool, ToolContext, ToolError
from tests.support.world import shown


class Gates:
    """Named places where a script waits until the test opens them."""

    def __init__(self) -> None:
        self._reached: dict[str, asyncio.Event] = {}
        self._opened: dict[str, asyncio.Event] = {}

    async def wait_at(self, name: str) -> None:
        """Say that the gate is reached, and wait until it is open."""
        self._reached.setdefault(name, asyncio.Event()).set()
        await self._opened.setdefault(name, asyncio.Event()).wait()

    async def reached(self, name: str) -> None:
        """Wait until something waits at the gate, or went through it."""
        async with asyncio.timeout(30):
            await self._reached.setdefault(name, asyncio.Event()).wait()

    def is_reached(self, name: str) -> bool:
        """Tell whether something waits at the gate or went through it."""
        return name in self._reached and self._reached[name].is_set()

    def is_open(self, name: str) -> bool:
        """Tell whether the gate is open."""
        return name in self._opened and self._opened[name].is_set()

    def shut(self) -> None:
        """Shut every gate, and forget who reached it; nothing may wait at one."""
        self._reached.clear()
        self._opened.clear()

    def open(self, *names: str) -> None:
        """Let everything through that waits at the gates or comes later."""
        for name in names:
            self._opened.setdefault(name, asyncio.Event()).set()


# What a model says


@dataclass(frozen=True)
class Gate:
    """Go on when the gate is open; the request fails there if there is an error."""

    name: str
    error: Exception | None = None


class Say:
    """An output message, in these pieces; a gate stands between two of them."""

    def __init__(self, *pieces: str | Gate) -> None:
        self.pieces = pieces


class Think:
    """A reasoning item, in these pieces."""

    def __init__(self, *pieces: str | Gate) -> None:
        self.pieces = pieces


class Use:
    """A call of a tool."""

    def __init__(self, tool: str, arguments: str = "{}", *, call_id: str = "") -> None:
        self.tool = tool
        self.arguments = arguments
        self.call_id = call_id


@dataclass(frozen=True)
class Break:
    """The request fails here."""

    error: Exception


Step = Say | Think | Use | Gate | Break
Script = Sequence[Step]

UNAVAILABLE = ModelError("provider_unavailable", "the provider is away", retryable=True)


class ScriptedModel:
    """A model (`port.Model`) that answers each request by the next script, then by `default`."""

    name = "test:scripted"

    def __init__(self, gates: Gates) -> None:
        self.default: Callable[[Sequence[bytes]], Script] = lambda _items: (Say("ok"),)
        self.requests: list[list[bytes]] = []
        self.closed = 0
        """How many requests are over, whichever way."""
        self._gates = gates
        self._scripts: deque[Script] = deque()
        self._calls = itertools.count()

    def will(self, *steps: Step) -> None:
        """Answer one more request by these steps."""
        self._scripts.append(steps)

    def forget(self) -> None:
        """Answer no further request by a script."""
        self._scripts.clear()

    def heard(self, request: int = -1) -> list[str]:
        """Return the items of a request, each in a few words."""
        return [shown(item) for item in self.requests[request]]

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer; see `port.Model.stream`."""
        self.requests.append(list(request.items))
        script = self._scripts.popleft() if self._scripts else self.default(request.items)
        reply = ReplyWriter(self.name, request)
        try:
            yield reply.begin()
            for step in script:
                async for event in self._step(reply, step):
                    yield event
            for event in reply.end(Usage(input=1, output=1)):
                yield event
        finally:
            self.closed += 1

    async def _step(self, reply: ReplyWriter, step: Step) -> AsyncGenerator[ModelEvent, None]:
        match step:
            case Gate():
                await self._pass(step)
            case Break(error):
                raise error
            case Say(pieces=pieces) | Think(pieces=pieces):
                item = reply.message() if isinstance(step, Say) else reply.reasoning()
                async for event in self._written(item, pieces):
                    yield event
            case Use():
                call_id = step.call_id or f"call_{next(self._calls)}"
                async for event in self._written(reply.call(step.tool, call_id), (step.arguments,)):
                    yield event

    async def _pass(self, gate: Gate) -> None:
        await self._gates.wait_at(gate.name)
        if gate.error is not None:
            raise gate.error

    async def _written(
        self, item: OpenItem, pieces: Iterable[str | Gate]
    ) -> AsyncGenerator[ModelEvent, None]:
        for event in item.begin():
            yield event
        for piece in pieces:
            if isinstance(piece, Gate):
                await self._pass(piece)
                continue
            for event in item.add(piece):
                yield event
        for event in item.end():
            yield event


# Tools


@dataclass
class ScriptedTool:
    """A tool (`ports.Tool`) that notes its runs and then does what it is made of.

    Arguments `{"gate": "name"}` make a run wait at a gate first, which it reports as progress.
    """

    name: str
    gates: Gates
    tier: Tier = "read"
    yields: bool = True
    """When it is cancelled; otherwise it returns what it has."""
    first: Callable[[], Awaitable[object]] | None = None
    """What happens while it runs."""
    then: Callable[[str], ToolOutput] = lambda arguments: f"did {arguments}"
    runs: list[str] = field(default_factory=list)
    workspaces: list[str | None] = field(default_factory=list)
    cancelled: int = 0

    @property
    def spec(self) -> ToolSpec:
        """See `ports.Tool`."""
        return ToolSpec(self.name, f"The tool {self.name}.")

    def display(self, arguments: str) -> str:
        """Show arguments as they are, unless they are such that they cannot be shown."""
        if "unshowable" in arguments:
            raise ValueError("cannot be shown")
        return arguments

    async def run(self, arguments: str, context: ToolContext) -> ToolOutput:
        """See `ports.Tool`."""
        self.runs.append(context.call_id)
        self.workspaces.append(context.workspace)
        gate = msgspec.json.decode(arguments, type=dict[str, str]).get("gate")
        try:
            if gate:
                context.progress("stdout", f"waiting at {gate}")
                await self.gates.wait_at(gate)
        except asyncio.CancelledError:
            self.cancelled += 1
            if self.yields:
                raise
            return "what I have"
        if self.first is not None:
            await self.first()
        return self.then(arguments)


def _fails(_arguments: str) -> ToolOutput:
    raise ToolError("no such thing")


def _crashes(_arguments: str) -> ToolOutput:
    raise RuntimeError("a bug in a tool")


def tools(gates: Gates) -> dict[str, ScriptedTool]:
    """Return the tools of the tests.

    `read` and `edit` work, `fail` and `crash` do not, `danger` always asks first, `keep` returns what it has when cancelled.
    """
    made = [
        ScriptedTool("read", gates),
        ScriptedTool("edit", gates, "edit"),
        ScriptedTool("danger", gates, "hard_stop"),
        ScriptedTool("fail", gates, then=_fails),
        ScriptedTool("crash", gates, then=_crashes),
        ScriptedTool("keep", gates, yields=False),
    ]
    return {tool.name: tool for tool in made}


def as_tools(made: Mapping[str, ScriptedTool]) -> Mapping[str, Tool]:
    """Return scripted tools as the host takes them."""
    return dict(made)


# What every provider demands of a history


def check_well_formed(items: Sequence[bytes]) -> None:
    """Check what is asked of a model: each call has one output, behind it, and each output a call; reasoning led to something.

    The last item is nothing that the model said itself, for then it would have nothing to answer.
    """
    told = [shown(item) for item in items]
    open_calls: dict[str, int] = {}
    for position, item in enumerate(map(decode_item, items)):
        kind = type(item).__name__
        call_id = str(getattr(item, "call_id", ""))
        if kind in ("FunctionCallItem", "CustomToolCallItem"):
            open_calls[call_id] = open_calls.get(call_id, 0) + 1
        elif kind in ("FunctionCallOutputItem", "CustomToolCallOutputItem"):
            assert open_calls.get(call_id), f"an output without a call before it: {told}"
            open_calls[call_id] -= 1
        elif kind == "ReasoningItem":
            following = told[position + 1 : position + 2]
            assert _led_to_something(following), f"reasoning that led to nothing: {told}"
        elif kind == "InputMessageItem" and getattr(item, "role", "") == "user":
            assert not any(open_calls.values()), f"a call without its output: {told}"
    assert not any(open_calls.values()), f"a call without its output: {told}"
    assert not told[-1].startswith("assistant"), f"nothing to answer: {told}"


def _led_to_something(following: Sequence[str]) -> bool:
    return bool(following) and following[0].startswith(("assistant", "call", "ReasoningItem"))


def is_strictly_increasing(numbers: Sequence[int]) -> bool:
    """Tell whether each number is larger than the one before."""
    return all(one < other for one, other in itertools.pairwise(numbers))
