"""The turns of one process: what is claimed, how many run, what happens when the process ends (design 4, behaviour 14.3).

Owns: loading what a turn needs, the bound on turns, waking and stopping them. Does not own: the turn itself (`turn`) or how the
word that there is work reaches the process (`jobs_app.tasks`, the in-process dispatcher).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from sessions_app import pinned, workspaces
from sessions_app.chatmd.elements import BuiltinTool
from sessions_app.commands import lifecycle, operations
from sessions_app.db import in_db
from sessions_app.errors import ConfigurationInvalid, PromptUnavailable, Refusal
from sessions_app.models import Operation, Session
from sessions_app.runtime.context import Histories
from sessions_app.runtime.models.port import Model, ModelRequest
from sessions_app.runtime.turn import Plan, Turn

if TYPE_CHECKING:
    from sessions_app.runtime.ports import Gate, Tool, Tools

log = structlog.get_logger(__name__)

MAX_TURNS = 256
"""Turns of one process at once; a row beyond them stays unclaimed for another process, or until one ends here."""

STOP_MARGIN_SECONDS = 3.0
"""What is kept of the shutdown grace for committing the ends of turns that did not finish in it."""


class TurnHost:
    """Runs turns in one event loop. Implements `runtime.ports.TurnRunner`."""

    def __init__(
        self,
        *,
        resolve_model: Callable[[str], Model],
        default_model: Callable[[], str | None],
        tools: Tools,
        gate: Gate,
    ) -> None:
        """`default_model` names the model of prompts that name none; `tools` are all that this server has, by name."""
        self._resolve = resolve_model
        self._default_model = default_model
        self._tools = tools
        self._gate = gate
        self._histories = Histories()
        self._turns: dict[str, Turn] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: deque[str] = deque(maxlen=MAX_TURNS)
        self._draining = False

    def submit(self, operation_id: str) -> None:
        """Run an operation soon: at once, or when a turn ends here; meanwhile its unclaimed row is anybody's."""
        if self._draining or operation_id in self._turns:
            return
        if len(self._tasks) >= MAX_TURNS:
            self._waiting.append(operation_id)
            return
        task = asyncio.get_running_loop().create_task(self.run(operation_id))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._waiting:
            self.submit(self._waiting.popleft())

    def look(self, operation_id: str) -> None:
        """Wake the turn of an operation, if it runs here: it was cancelled or one of its calls was answered."""
        turn = self._turns.get(operation_id)
        if turn is not None:
            turn.look()

    async def run(self, operation_id: str) -> None:
        """Claim an operation if it is to be had, and run it until it ends or parks."""
        try:
            plan = await in_db(self._plan, operation_id)
            claim = await in_db(operations.claim, plan.session_id, operation_id) if plan else None
        except Refusal as refusal:
            log.warning("turn.not_claimed", operation=operation_id, code=refusal.code)
            return
        except Exception:  # the boundary of a turn before its claim: its row stays for the sweep
            log.exception("turn.not_claimed", operation=operation_id)
            return
        if plan is None or claim is None:
            return
        turn = Turn(plan, claim, self._gate, self._histories)
        self._turns[operation_id] = turn
        try:
            await turn.run()
        finally:
            del self._turns[operation_id]

    async def stop(self, grace_seconds: float) -> None:
        """Claim nothing more; let turns finish or park within the grace, then end what still runs as interrupted."""
        self._draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, grace_seconds - STOP_MARGIN_SECONDS))
        for turn in self._turns.values():
            turn.stop(operations.SERVER_SHUTDOWN)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_MARGIN_SECONDS)

    def _plan(self, operation_id: str) -> Plan | None:
        """Load what the turn needs, or None when there is nothing to run.

        A session that cannot be loaded fails here: its operation ends with the reason, after `session.error` (behaviour 14.4).
        """
        operation = (
            Operation.objects.select_related("session__workspace_instance").filter(id=operation_id).first()
        )
        if operation is None or operation.process_id or operation.parked or operation.kind != "turn":
            return None
        try:
            return self._loaded(operation, operation.session)
        except lifecycle.LOAD_REFUSALS as refusal:
            operations.fail_unloadable(operation.session_id, operation_id, refusal)
            return None

    def _loaded(self, operation: Operation, session: Session) -> Plan:
        workspaces.check(session)
        pinned.check(session.prompt_revision_id)
        config, declared = pinned.setup(session.prompt_revision_id)
        name = config.model or self._default_model()
        if name is None:
            raise ConfigurationInvalid("the prompt names no model and the catalog has none")
        tools: dict[str, Tool] = {}
        for tool in declared:
            if not isinstance(tool, BuiltinTool) or tool.name not in self._tools:
                raise PromptUnavailable("the prompt declares a tool that this server does not have")
            tools[tool.name] = self._tools[tool.name]
        return Plan(
            session_id=session.id,
            operation_id=operation.id,
            model=self._resolve(name),
            request=ModelRequest(
                items=(),
                tools=tuple(tool.spec for tool in tools.values()),
                temperature=config.temperature,
                max_output_tokens=config.max_tokens,
                reasoning_effort=config.reasoning_effort,
                cache_key=session.id,
            ),
            tools=tools,
            workspace=session.workspace_instance.path if session.workspace_instance else None,
        )
