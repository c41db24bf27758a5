"""The turn loop: ask, stream, commit, call, wait, repeat (behaviour 6.4, design 4).

Owns: the order of a turn and its reaction to answers. Does not own: its reaction to cancellation, loss of the claim and failures
(`work`), how a step is committed (`commands`), how a reply is folded (`reply`), what is told of it meanwhile (`live`), or which
process runs what and finds what no signal told (`host`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from sessions_app import limits
from sessions_app.commands import calls, operations
from sessions_app.commands.calls import Finished, Progress
from sessions_app.commands.operations import Claim, Ending
from sessions_app.db import in_db
from sessions_app.errors import InternalError
from sessions_app.runtime.live import LiveEvents
from sessions_app.runtime.models.port import StreamEvent
from sessions_app.runtime.ports import ToolContext, ToolError
from sessions_app.runtime.reply import Reply
from sessions_app.runtime.work import Stopping, Work

if TYPE_CHECKING:
    from sessions_app.commands.operations import StreamedItem
    from sessions_app.models import ToolCall
    from sessions_app.records import ToolCallKind, ToolOutput
    from sessions_app.runtime.context import Histories
    from sessions_app.runtime.models.port import Model, ModelRequest
    from sessions_app.runtime.ports import Gate, Tier, Tool

log = structlog.get_logger(__name__)

FIRST_SAVE_SECONDS = 0.1
SAVE_SECONDS = 0.5
"""When the text of a reply is saved first, unless it is over by then, and how far apart the next times are at least."""

_FEWEST_PROMISED = 128
"""With fewer history sequences left, more are promised before the next request."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a turn needs beside its claim; read before it is claimed, so that a claimed turn asks at once."""

    model: Model
    request: ModelRequest
    """With the history of the first request; a turn that goes on reads it again."""
    tools: Mapping[str, Tool]
    workspace: str | None


class Turn(Work):
    """One claimed turn."""

    NAME = "turn"

    def __init__(self, plan: Plan, claim: Claim, gate: Gate, histories: Histories) -> None:
        super().__init__(claim)
        self._plan = plan
        self._gate = gate
        self._histories = histories
        self._live = LiveEvents(
            claim.session_id, claim.operation_id, sequence=claim.live_sequence, anchor=claim.anchor
        )
        self._promised = range(claim.first_number, claim.first_number + claim.numbers)
        self._request: ModelRequest | None = None if claim.resumed else plan.request
        self._reply: Reply | None = None
        self._save_at = math.inf
        self._running: dict[int, asyncio.Task[ToolOutput]] = {}
        self._tiers: Mapping[str, Tier] = {name: tool.tier for name, tool in plan.tools.items()}

    @property
    def calling(self) -> bool:
        """Tools run, so that other calls of this turn may be waiting for an answer."""
        return bool(self._running)

    def due(self, now: float) -> Sequence[StreamedItem]:
        """Return the text to be saved at the loop time `now`; where items are finished, let them be committed instead."""
        reply = self._reply
        if reply is None or now < self._save_at:
            return ()
        if reply.sayable():
            self.look()
            return ()
        if not reply.changed:
            return ()
        reply.changed = False
        self._save_at = now + SAVE_SECONDS
        return reply.unsaved()

    def not_saved(self) -> None:
        """Take back what `due` returned last: it could not be saved."""
        if self._reply is not None:
            self._reply.changed = True

    async def _close(self) -> None:
        await self._stop_tools()
        self._live.close()

    async def _do(self) -> Ending | None:
        progress = await self._advance() if self.claim.resumed else None
        while True:
            if progress is not None:
                progress = await self._call(progress)
                if progress.parked:
                    return None
            reply = await self._ask()
            if not reply.calls:
                return Ending("completed")
            progress = await self._propose(reply)

    # Asking

    async def _ask(self) -> Reply:
        """Ask the model once and stream its reply to the live readers; nothing of it is committed before the next step, except
        when it takes long."""
        if self._stop_reason:
            raise Stopping
        if len(self._promised) < _FEWEST_PROMISED:
            self._promised = await self._commit(operations.reserve_numbers, self.claim)
        request, self._request = self._request, None
        if request is None:
            items = await in_db(self._histories.read, self.claim.session_id)
            request = msgspec.structs.replace(self._plan.request, items=items)
        self._reply = reply = Reply(self._next_number)
        self._save_at = asyncio.get_running_loop().time() + FIRST_SAVE_SECONDS
        await self._unless_stopped(self._stream(request, reply))
        self._save_at = math.inf
        return reply

    async def _stream(self, request: ModelRequest, reply: Reply) -> None:
        async with aclosing(self._plan.model.stream(request)) as events:
            async for event in events:
                number = reply.take(event)
                if number is not None and isinstance(event, StreamEvent):
                    self._live.stream(number, event.payload)

    async def _look_after(self) -> None:
        """Commit what is finished of the reply."""
        ready = self._reply.sayable() if self._reply is not None else []
        if self._reply is not None and ready:
            self._live.anchor = await self._once(operations.commit_said, self.claim, ready)
            self._reply.committed(len(ready))
        else:
            await super()._look_after()

    def _next_number(self) -> int:
        if not self._promised:
            raise InternalError("a reply has more items than one turn can hold", retryable=False)
        number, self._promised = self._promised[0], self._promised[1:]
        return number

    # Calls

    async def _propose(self, reply: Reply) -> Progress:
        said, wanted = list(reply.finished), reply.calls
        progress = await self._step(
            lambda: calls.propose(
                self.claim,
                said,
                wanted,
                self._gate,
                self._tiers,
                self._started,
                live_sequence=self._live.sequence,
            )
        )
        reply.committed(len(said))
        return progress

    async def _advance(self) -> Progress:
        """Commit what has returned, and find what was answered. What is not committed is still there when the turn ends."""
        done = [position for position, task in self._running.items() if task.done()]
        finished = [Finished(position, self._running[position].result()) for position in done]
        progress = await self._step(
            lambda: calls.advance(self.claim, finished, self._started, self._live.sequence)
        )
        for position in done:
            del self._running[position]
        return progress

    async def _step(self, step: Callable[[], Progress]) -> Progress:
        """Commit a step of the calls, and start those that it says may start."""
        with self._live.held():
            progress = await self._commit(step)
            self._live.anchor = progress.anchor
            for row in progress.start:
                self._start(row)
        return progress

    async def _call(self, progress: Progress) -> Progress:
        """Run calls until every one is done and in history, or none is left that could run now."""
        while not (progress.complete or progress.parked):
            if not self._running:
                raise InternalError("a call is in a state that nothing moves on", retryable=True)
            await self._wait(self._running.values())
            self._woken = False
            if self._stop_reason:
                raise Stopping
            # Also when nothing returned: it raises when the operation does not go on.
            progress = await self._advance()
        return progress

    def _start(self, row: ToolCall) -> None:
        if row.started is not None:
            self._live.tell(row.started)
        self._running[row.position] = asyncio.create_task(self._run_tool(row))

    async def _run_tool(self, row: ToolCall) -> ToolOutput:
        tool = self._plan.tools[row.name]
        context = ToolContext(
            session_id=self.claim.session_id,
            operation_id=self.claim.operation_id,
            call_id=row.call_id,
            workspace=self._plan.workspace,
            progress=partial(self._live.progress, row.call_id),
        )
        output: ToolOutput
        try:
            output = await tool.run(row.arguments, context)
        except ToolError as error:
            output = str(error)
            self._live.finished(row.call_id, "raised", output)
        except asyncio.CancelledError:
            self._live.finished(row.call_id, "cancelled", None)
            raise
        except Exception:  # the boundary of a tool: the model reads that it failed, the log says how
            log.exception("tool.failed", operation=self.claim.operation_id, tool=row.name)
            output = "The tool failed."
            self._live.finished(row.call_id, "raised", output)
        else:
            self._live.finished(row.call_id, "returned", output)
        return output

    def _started(self, row: ToolCall, anchor: int) -> bytes:
        kind: ToolCallKind = "custom" if row.kind == "custom" else "function"
        return self._live.started(row.call_id, row.name, kind, self._shown(row), anchor)

    def _shown(self, row: ToolCall) -> str:
        """Return arguments as `tool.started` shows them: a short note instead of more than 4 KiB (wire 11)."""
        try:
            text = self._plan.tools[row.name].display(row.arguments)
        except Exception:  # the boundary of a tool: a call that cannot be shown may still be run
            log.exception("tool.not_shown", operation=self.claim.operation_id, tool=row.name)
            return "[arguments]"
        size = len(text.encode())
        return text if size <= limits.MAX_ACTIVE_CALL_BYTES else f"[{size} bytes of arguments]"

    # Ending

    async def _settled(self, ending: Ending) -> Ending:
        """Add whatever the last reply left: finished items, text that was half said, outputs of the tools that still returned."""
        outputs = await self._stop_tools()
        self._live.flush()
        reply = self._reply
        return replace(
            ending,
            entries=reply.finished if reply is not None else (),
            streamed=reply.unsaved() if reply is not None else (),
            outputs=outputs,
            promised=self._promised,
            in_doubt=self._in_doubt,
        )

    async def _stop_tools(self) -> Mapping[int, ToolOutput]:
        """Cancel the tools that run; return what those came to that have returned, or do so all the same."""
        running, self._running = self._running, {}
        await self._let_go(running.values())
        return {
            position: task.result()
            for position, task in running.items()
            if task.done() and not task.cancelled()
        }
