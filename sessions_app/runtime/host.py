"""The turns of one process: what is claimed, how many run, what happens when the process ends (design 4, behaviour 14.3).

A compaction is run like a turn, and counts as one.

Owns: loading what a turn needs, the bound on turns, waking and stopping them, saving what they stream. Does not own: the turn
itself (`turn`, `compaction`) or how the word that there is work reaches the process (`jobs_app.tasks`, the in-process dispatcher).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from sessions_app import pinned, rows, store, workspaces
from sessions_app.chatmd.elements import BuiltinTool
from sessions_app.chatmd.elements import Tool as DeclaredTool
from sessions_app.commands import operations
from sessions_app.db import in_db
from sessions_app.errors import ConfigurationInvalid, InternalError, PromptUnavailable, Refusal
from sessions_app.models import Operation, Session, WorkspaceInstance
from sessions_app.models.operations import ENDED
from sessions_app.runtime.compaction import Compaction
from sessions_app.runtime.context import Histories
from sessions_app.runtime.models.port import Model, ModelRequest
from sessions_app.runtime.turn import Plan, Turn

if TYPE_CHECKING:
    from sessions_app.runtime.ports import Gate, Tool, Tools
    from sessions_app.runtime.work import Work

log = structlog.get_logger(__name__)

MAX_TURNS = 256
"""Turns of one process at once; a row beyond them stays unclaimed for another process, or until one ends here."""

STOP_MARGIN_SECONDS = 3.0
"""What is kept of the shutdown grace for committing the ends of turns that did not finish in it; a quarter of a short one."""

_TICK_SECONDS = 0.1
"""How often what running turns have streamed is looked at; it is saved by the turns' own pace, all of it in one commit."""

_LOOK_SECONDS = 0.5
"""How often their rows are looked at, all of them in one query: a signal may have been lost."""

_HOST = socket.gethostname()

_OPERATION = rows.Select(Operation, "id = %s")
_SESSION = rows.Select(Session, "id = %s")
_WORKSPACE = rows.Select(WorkspaceInstance, "id = %s")


class TurnHost:
    """Runs turns in one event loop. Implements `runtime.ports.TurnRunner`."""

    def __init__(
        self,
        *,
        resolve_model: Callable[[str], Model],
        default_model: Callable[[], str | None],
        tools: Tools,
        gate: Gate,
        max_turns: int = MAX_TURNS,
    ) -> None:
        """`default_model` names the model of prompts that name none; `tools` are all that this server has, by name."""
        self._resolve = resolve_model
        self._default_model = default_model
        self._tools = tools
        self._gate = gate
        self._max_turns = max_turns
        self._histories = Histories()
        self._turns: dict[str, Work] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, None] = {}
        """Operations to look at when a turn ends, each once, first come first."""
        self._ticking: asyncio.TimerHandle | None = None
        self._attending: asyncio.Task[None] | None = None
        self._look_at = 0.0
        self._draining = False
        self._stop_reason = ""

    @property
    def turns(self) -> int:
        """How many turns run here, those included that are only being looked at."""
        return len(self._tasks)

    def submit(self, operation_id: str) -> None:
        """Run an operation soon: at once, or when a turn ends here; meanwhile its unclaimed row is anybody's."""
        if self._draining:
            return
        if len(self._tasks) < self._max_turns:
            task = asyncio.get_running_loop().create_task(self.run(operation_id))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
        elif len(self._waiting) < self._max_turns:
            self._waiting[operation_id] = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting:
            operation_id = next(iter(self._waiting))
            del self._waiting[operation_id]
            self.submit(operation_id)

    def look(self, operation_id: str) -> None:
        """Wake the turn of an operation, if it runs here: it was cancelled or one of its calls was answered."""
        turn = self._turns.get(operation_id)
        if turn is not None:
            turn.look()

    async def run(self, operation_id: str) -> None:
        """Claim an operation if it is to be had, and run it until it ends or parks."""
        try:
            work = await in_db(self._take, operation_id)
            if work is not None:
                await self._run(work)
        except Refusal as refusal:
            log.warning("turn.not_claimed", operation=operation_id, code=refusal.code)
        except (
            Exception
        ):  # the boundary of a turn: its row stays for the sweep, or for whoever stops the process
            log.exception("turn.lost", operation=operation_id)

    async def _run(self, turn: Work) -> None:
        operation_id = turn.claim.operation_id
        self._turns[operation_id] = turn
        if self._stop_reason:
            turn.stop(self._stop_reason)
        if self._ticking is None:
            loop = asyncio.get_running_loop()
            self._look_at = loop.time() + _LOOK_SECONDS
            self._ticking = loop.call_later(_TICK_SECONDS, self._tick)
        try:
            await turn.run()
        finally:
            # A turn that parked may have been answered, claimed and begun again here before this one got to its end.
            if self._turns.get(operation_id) is turn:
                del self._turns[operation_id]
            if not self._turns and self._ticking is not None:
                self._ticking.cancel()
                self._ticking = None

    async def stop(self, grace_seconds: float) -> None:
        """Claim nothing more; let turns finish or park within the grace, then end what still runs as interrupted."""
        self._draining = True
        margin = min(STOP_MARGIN_SECONDS, grace_seconds / 4)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_seconds - margin)
        self._stop_reason = operations.SERVER_SHUTDOWN
        for turn in self._turns.values():
            turn.stop(self._stop_reason)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=margin)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # What all turns of the process share

    def _tick(self) -> None:
        """While turns run: wake those whose rows have changed though no signal came, and save what they stream.

        A timer, not a task: most turns are over before the first tick.
        """
        loop = asyncio.get_running_loop()
        self._ticking = loop.call_later(_TICK_SECONDS, self._tick)
        if self._attending is None or self._attending.done():
            self._attending = loop.create_task(self._attend(loop.time()))

    async def _attend(self, now: float) -> None:
        try:
            if now >= self._look_at:
                self._look_at = now + _LOOK_SECONDS
                await self._look_at_rows()
            await self._save(now)
        except Exception:  # the boundary of what serves all turns: the next tick tries again
            log.exception("turns.not_attended", turns=len(self._turns))

    async def _save(self, now: float) -> None:
        due = [(turn, items) for turn in self._turns.values() if (items := turn.due(now))]
        if not due:
            return
        try:
            await in_db(operations.save_streamed, [(turn.claim, items) for turn, items in due])
        except Refusal as refusal:
            log.warning("turns.not_saved", turns=len(due), code=refusal.code)
            for turn, _ in due:
                turn.not_saved()

    async def _look_at_rows(self) -> None:
        claims = [turn.claim for turn in self._turns.values()]
        calling = [turn.claim.operation_id for turn in self._turns.values() if turn.calling]
        try:
            moved = await in_db(operations.moved, claims, calling)
        except Refusal as refusal:
            log.warning("turns.not_looked_at", turns=len(claims), code=refusal.code)
            return
        for operation_id in moved:
            self.look(operation_id)

    # Before a turn; in a database thread

    def _take(self, operation_id: str) -> Work | None:
        """Load what an operation needs and claim it; None when there is nothing to take.

        What cannot be loaded fails here: the operation ends with the reason, after `session.error` (behaviour 14.4). Raises
        what says that the store is busy or away.
        """
        with store.errors():
            operation = _OPERATION.first(operation_id)
            session = _SESSION.first(operation.session_id) if operation is not None else None
        if operation is None or session is None:
            return None
        if operation.process_id or operation.parked or operation.state in ENDED:
            return None
        try:
            with store.errors():
                plan = self._plan(operation, session)
        except Refusal as refusal:
            if store.is_away(refusal):
                raise
            operations.fail_unloadable(session.id, operation_id, refusal)
            return None
        except Exception:  # the boundary of a turn: one that cannot begin must end
            log.exception("turn.not_loaded", operation=operation_id)
            failure = InternalError("the turn could not be prepared", retryable=True)
            operations.fail_unloadable(session.id, operation_id, failure)
            return None
        claim = None if self._draining else operations.claim(session.id, operation_id)
        if claim is None:
            return None
        if operation.kind == "compaction":
            return Compaction(plan, claim)
        return Turn(plan, claim, self._gate, self._histories)

    def _plan(self, operation: Operation, session: Session) -> Plan:
        instance = _WORKSPACE.first(session.workspace_instance_id)
        session.workspace_instance = instance
        workspaces.check(session)
        pinned.check(session.prompt_revision_id)
        config, declared = pinned.setup(session.prompt_revision_id)
        name = config.model or self._default_model()
        if name is None:
            raise ConfigurationInvalid("the prompt names no model and the catalog has none")
        tools = {tool.spec.name: tool for tool in map(self._tool, declared)}
        return Plan(
            model=self._resolve(name),
            request=ModelRequest(
                items=() if operation.calls_made else self._histories.read(session.id),
                tools=tuple(tool.spec for tool in tools.values()),
                temperature=config.temperature,
                max_output_tokens=config.max_tokens,
                reasoning_effort=config.reasoning_effort,
                cache_key=session.id,
            ),
            tools=tools,
            workspace=instance.path if instance is not None and instance.host == _HOST else None,
        )

    def _tool(self, declared: DeclaredTool) -> Tool:
        if isinstance(declared, BuiltinTool) and declared.name in self._tools:
            return self._tools[declared.name]
        raise PromptUnavailable("the prompt declares a tool that this server does not have")
