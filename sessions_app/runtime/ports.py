"""What the turn loop is given from above: the gate, the tools, and who runs turns (design 2, 4).

Owns: the shapes that cross these ports. Does not own any implementation: the gate is `permissions_app.decisions`, tools are
the packs of `ochat_site.packs`; `ochat_site.wiring` puts them together. The model's port is `runtime.models.port`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from sessions_app.records import ToolOutput, ToolProgressChannel

if TYPE_CHECKING:
    from sessions_app.ledger import Txn
    from sessions_app.models import Operation, ToolCall
    from sessions_app.runtime.models.port import ToolSpec

Tier = Literal["read", "edit", "execute", "network", "hard_stop"]
"""How much a call can do; each tool has one, and single calls may be lifted to hard_stop."""


@dataclass(frozen=True, slots=True)
class Run:
    """Start the call now."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Do not run the call; the model gets `output` as its output (behaviour 6.7)."""

    output: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A request about the call has been opened in the same transaction; its answer comes through `commands.calls.answer`."""


Verdict = Run | Refuse | Wait


class Gate(Protocol):
    """Decides every tool call (behaviour 7.1)."""

    def decide(self, txn: Txn, operation: Operation, call: ToolCall, tier: Tier) -> Verdict:
        """Decide one call, under the session's lock and in its transaction; `Wait` only after opening the request there."""
        ...


class ToolError(Exception):
    """A tool failed in a way the model should read: the text becomes the call's output."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a running tool may know and do."""

    session_id: str
    operation_id: str
    call_id: str
    workspace: str | None
    """The canonical root of the session's workspace, if it has one on this host."""
    progress: Callable[[ToolProgressChannel, str], None] = field(repr=False)
    """Tell live readers more output of the call; dropped when they are slow. To be called in the loop."""


class Tool(Protocol):
    """One tool that a prompt may declare."""

    @property
    def spec(self) -> ToolSpec:
        """What the model is told of it."""
        ...

    @property
    def tier(self) -> Tier:
        """Its fixed tier."""
        ...

    def display(self, arguments: str) -> str:
        """Return the arguments as live readers and snapshots may see them."""
        ...

    async def run(self, arguments: str, context: ToolContext) -> ToolOutput:
        """Run one call and return its output. Raises ToolError for what the model should read as a failure."""
        ...


Tools = Mapping[str, Tool]
"""The tools of a process by name."""


class TurnRunner(Protocol):
    """Runs operations: model, tools and gate put together above the kernel (design 2)."""

    async def run(self, operation_id: str) -> None:
        """Claim an operation if it is to be had, and run it until it ends or parks. Never raises for what a turn meets."""
        ...
