"""The turn loop: ask, stream, commit, call, wait, repeat (behaviour 6.4, design 4).

Owns: the order of a turn and its reaction to cancellation, answers, loss of the claim and failures. Does not own: how a step is
committed (`commands`), how a reply is folded (`reply`), or which process runs what (`host`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec
import structlog

from sessions_app import ids, limits
from sessions_app.commands import calls, operations
from sessions_app.commands.calls import Finished, Progress
from sessions_app.commands.operations import Cancelling, Claim, ClaimLost, Ending
from sessions_app.db import in_db
from sessions_app.errors import (
    CommandQueueFull,
    InternalError,
    PersistenceError,
    Refusal,
    StoreLocked,
    to_error,
)
from sessions_app.runtime.live import LiveEvents
from sessions_app.runtime.models.port import ModelError, ModelRequest, StreamEvent
from sessions_app.runtime.ports import ToolContext, ToolError
from sessions_app.runtime.reply import Reply

if TYPE_CHECKING:
    from sessions_app.models import ToolCall
    from sessions_app.records import Error, ToolCallKind, ToolOutput, ToolProgressChannel
    from sessions_app.runtime.context import Histories
    from sessions_app.runtime.models.port import Model
    from sessions_app.runtime.ports import Gate, Tier, Tool

log = structlog.get_logger(__name__)

T = TypeVar("T")

_FEWEST_PROMISED = 128
"""With fewer history sequences left, more are promised before the next request."""

_END_AGAIN_SECONDS = 1.0

SAVE_SECONDS = 0.5
"""How often streamed text is saved at most, and how often a running turn looks at its row when no signal reaches it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a turn needs beside its claim; read before it is claimed, so that a claimed turn asks at once."""

    session_id: str
    operation_id: str
    model: Model
    request: ModelRequest
    """Without the history, which is read again before each request."""
    tools: Mapping[str, Tool]
    workspace: str | None


class _Stopping(Exception):
    """The process ends before the turn does."""


class Turn:
    """One claimed operation. `run` it once; `look` wakes it when its rows have changed."""

    def __init__(self, plan: Plan, claim: Claim, gate: Gate, histories: Histories) -> None:
        self._plan = plan
        self._claim = claim
        self._gate = gate
        self._histories = histories
        self._wake = asyncio.Event()
        self._stop_reason = ""
        self._live = LiveEvents(
            claim.session_id, claim.operation_id, sequence=claim.live_sequence, anchor=claim.anchor
        )
        self._promised = range(claim.first_number, claim.first_number + claim.numbers)
        self._reply: Reply | None = None
        self._running: dict[int, asyncio.Task[Finished]] = {}
        self._tiers: Mapping[str, Tier] = {name: tool.tier for name, tool in plan.tools.items()}

    def stop(self, reason: str) -> None:
        """End the operation as interrupted, with `reason`, at the next point where that can be done."""
        self._stop_reason = reason
        self._wake.set()

    def look(self) -> None:
        """Look at the rows again: the operation was cancelled, or a waiting call was answered."""
        self._wake.set()

    async def run(self) -> None:
        """Run until the operation ends, parks, or is no longer this claim's. Cancelling the task leaves the rows as they are:
        whoever stops the process ends them."""
        try:
            await self._loop()
        except ClaimLost:
            log.info("turn.claim_lost", operation=self._claim.operation_id)
        except Cancelling:
            await self._end(Ending("cancelled"))
        except _Stopping:
            await self._end(Ending("interrupted", interruption=self._stop_reason))
        except ModelError as error:
            log.warning("turn.model_failed", operation=self._claim.operation_id, reason=error.reason)
            await self._end(Ending("failed", error=_model_error(error)))
        except Refusal as refusal:
            await self._end(Ending("failed", error=to_error(refusal)))
        except Exception:  # the boundary of a turn: whatever it met, its operation must end
            log.exception("turn.failed", operation=self._claim.operation_id)
            failure = InternalError("the turn failed", retryable=True)
            await self._end(Ending("failed", error=to_error(failure)))
        finally:
            await self._stop_tools()

    async def _loop(self) -> None:
        progress = await self._advance(()) if self._claim.resumed else None
        while True:
            if progress is not None:
                progress = await self._call(progress)
                if progress.parked:
                    return
            reply = await self._ask()
            if not reply.calls:
                await self._end(Ending("completed"))
                return
            progress = await self._propose(reply)

    async def _ask(self) -> Reply:
        """Ask the model once and stream its reply to the live readers; nothing of it is committed before the next step, except
        when it takes long."""
        if len(self._promised) < _FEWEST_PROMISED:
            self._promised = await in_db(operations.reserve_numbers, self._claim)
        items = await in_db(self._histories.read, self._claim.session_id)
        self._reply = reply = Reply(self._next_number)
        saver = asyncio.create_task(self._save_while_streaming(reply))
        try:
            await self._unless_cancelled(self._stream(items, reply))
        finally:
            saver.cancel()
            with suppress(asyncio.CancelledError):
                await saver
        return reply

    async def _stream(self, items: Sequence[bytes], reply: Reply) -> None:
        request = _with_items(self._plan.request, items)
        async with aclosing(self._plan.model.stream(request)) as events:
            async for event in events:
                number = reply.take(event)
                if number is not None and isinstance(event, StreamEvent):
                    self._live.stream(ids.history_id(self._claim.session_id, number), event.payload)

    async def _save_while_streaming(self, reply: Reply) -> None:
        """Twice a second at most: commit what is finished, keep what is half said, notice a lost signal."""
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            try:
                await self._save(reply)
            except Refusal as refusal:
                log.warning("turn.not_saved", operation=self._claim.operation_id, code=refusal.code)
            except (ClaimLost, Cancelling):
                log.info("turn.not_held", operation=self._claim.operation_id)
            self._wake.set()  # whoever waits looks at the row: the signal may have been lost

    async def _save(self, reply: Reply) -> None:
        ready = reply.sayable()
        if ready:
            self._live.anchor = await in_db(operations.commit_said, self._claim, ready)
            reply.committed(len(ready))
        elif reply.changed:
            await in_db(operations.save_streamed, self._claim, reply.unsaved())

    async def _propose(self, reply: Reply) -> Progress:
        progress = await in_db(
            calls.propose,
            self._claim,
            reply.finished,
            reply.calls,
            self._gate,
            self._tiers,
            self._started,
            live_sequence=self._live.sequence,
        )
        reply.finished = []
        self._live.anchor = progress.anchor
        return progress

    async def _advance(self, finished: Sequence[Finished]) -> Progress:
        progress = await in_db(calls.advance, self._claim, finished, self._started, self._live.sequence)
        self._live.anchor = progress.anchor
        return progress

    async def _call(self, progress: Progress) -> Progress:
        """Run calls until every one is done and in history, or none is left that could run now."""
        while True:
            for row in progress.start:
                self._start(row)
            if not self._running:
                if progress.complete or progress.parked:
                    return progress
                raise InternalError("a call is in a state that nothing moves on", retryable=True)
            finished = await self._next_finished()
            progress = await self._advance(finished)

    async def _next_finished(self) -> list[Finished]:
        """Wait for a call to return, an answer to a waiting one, or cancellation."""
        woken = asyncio.create_task(self._wake.wait())
        try:
            await asyncio.wait([*self._running.values(), woken], return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
        if self._wake.is_set():
            await self._checked()
        done = [position for position, task in self._running.items() if task.done()]
        return [self._running.pop(position).result() for position in done]

    def _start(self, row: ToolCall) -> None:
        if row.started is not None:
            self._live.tell(row.started)
        self._running[row.position] = asyncio.create_task(self._run_tool(row))

    async def _run_tool(self, row: ToolCall) -> Finished:
        tool = self._plan.tools[row.name]
        context = ToolContext(
            session_id=self._claim.session_id,
            operation_id=self._claim.operation_id,
            call_id=row.call_id,
            workspace=self._plan.workspace,
            progress=lambda channel, text: self._progress(row.call_id, channel, text),
        )
        output: ToolOutput
        try:
            output = await tool.run(row.arguments, context)
        except ToolError as error:
            output = str(error)
            self._live.finished(row.call_id, "raised", output)
        except Exception:  # the boundary of a tool: the model reads that it failed, the log says how
            log.exception("tool.failed", operation=self._claim.operation_id, tool=row.name)
            output = "The tool failed."
            self._live.finished(row.call_id, "raised", output)
        else:
            self._live.finished(row.call_id, "returned", output)
        return Finished(row.position, output)

    def _progress(self, call_id: str, channel: ToolProgressChannel, text: str) -> None:
        self._live.progress(call_id, channel, text)

    def _started(self, row: ToolCall, anchor: int) -> bytes:
        tool = self._plan.tools[row.name]
        kind: ToolCallKind = "custom" if row.kind == "custom" else "function"
        return self._live.started(row.call_id, row.name, kind, _bounded(tool.display(row.arguments)), anchor)

    async def _unless_cancelled(self, work: Awaitable[T]) -> T:
        """Return what `work` returns, unless the operation is cancelled or lost meanwhile: then stop it and say so."""
        task = asyncio.ensure_future(work)
        try:
            while True:
                woken = asyncio.create_task(self._wake.wait())
                await asyncio.wait([task, woken], return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                if task.done():
                    return task.result()
                await self._checked()
        finally:
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError, ModelError):
                    await task

    async def _checked(self) -> None:
        """Go on only if the operation does: raises ClaimLost, Cancelling, or _Stopping when this process ends."""
        self._wake.clear()
        if self._stop_reason:
            raise _Stopping
        await in_db(operations.check_held, self._claim)

    async def _end(self, ending: Ending) -> None:
        """Commit the terminal transaction with whatever the last reply left: finished items, and text that was half said."""
        reply = self._reply
        ending = replace(
            ending,
            entries=reply.finished if reply else (),
            streamed=reply.unsaved() if reply else (),
            promised=self._promised,
        )
        await self._stop_tools()
        with suppress(ClaimLost):
            await self._finish(ending)

    async def _finish(self, ending: Ending) -> None:
        """Commit the end, however long the store is away: a claimed operation whose worker lives is ended by nobody else."""
        while True:
            try:
                return await in_db(operations.finish, self._claim, ending)
            except (StoreLocked, PersistenceError, CommandQueueFull) as refusal:
                log.warning("turn.end_delayed", operation=self._claim.operation_id, code=refusal.code)
                await asyncio.sleep(_END_AGAIN_SECONDS)

    async def _stop_tools(self) -> None:
        for position, task in self._running.items():
            task.cancel()
            log.info("tool.cancelled", operation=self._claim.operation_id, position=position)
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()

    def _next_number(self) -> int:
        if not self._promised:
            raise InternalError("a reply has more items than one turn can hold", retryable=False)
        number, self._promised = self._promised[0], self._promised[1:]
        return number


def _with_items(request: ModelRequest, items: Sequence[bytes]) -> ModelRequest:
    return msgspec.structs.replace(request, items=items)


def _model_error(error: ModelError) -> Error:
    """Return what a failed operation says of its model: a core error, with the reason for dialects that tell it."""
    return to_error(InternalError(error.message, retryable=error.retryable, data={"reason": error.reason}))


def _bounded(text: str) -> str:
    """Return arguments as `tool.started` shows them: a short note instead of more than 4 KiB (wire 11)."""
    if len(text.encode()) <= limits.MAX_ACTIVE_CALL_BYTES:
        return text
    return f"[{len(text.encode())} bytes of arguments]"
