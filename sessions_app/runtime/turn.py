"""The turn loop: ask, stream, commit, call, wait, repeat (behaviour 6.4, design 4).

Owns: the order of a turn and its reaction to cancellation, answers, loss of the claim and failures. Does not own: how a step is
committed (`commands`), how a reply is folded (`reply`), what is told of it meanwhile (`live`), or which process runs what and
finds what no signal told (`host`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import msgspec
import structlog

from sessions_app import limits, store
from sessions_app.commands import calls, operations
from sessions_app.commands.calls import Finished, Progress
from sessions_app.commands.operations import Cancelling, Claim, ClaimLost, Ending
from sessions_app.db import in_db
from sessions_app.errors import InternalError, PersistenceError, Refusal, to_error
from sessions_app.runtime.live import LiveEvents
from sessions_app.runtime.models.port import ModelError, StreamEvent
from sessions_app.runtime.ports import ToolContext, ToolError
from sessions_app.runtime.reply import Reply

if TYPE_CHECKING:
    from sessions_app.commands.operations import StreamedItem
    from sessions_app.models import ToolCall
    from sessions_app.records import Error, ToolCallKind, ToolOutput
    from sessions_app.runtime.context import Histories
    from sessions_app.runtime.models.port import Model, ModelRequest
    from sessions_app.runtime.ports import Gate, Tier, Tool

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

FIRST_SAVE_SECONDS = 0.1
SAVE_SECONDS = 0.5
"""When the text of a reply is saved first, unless it is over by then, and how far apart the next times are at least."""

_FEWEST_PROMISED = 128
"""With fewer history sequences left, more are promised before the next request."""

_AGAIN_SECONDS = 0.25
"""Between two attempts to commit to a store that is busy or away; each has waited for its lock already."""

_STOP_SECONDS = 5.0
"""How long a request or a tool that was cancelled may take to let go; what it still does is then nobody's."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a turn needs beside its claim; read before it is claimed, so that a claimed turn asks at once."""

    model: Model
    request: ModelRequest
    """With the history of the first request; a turn that goes on reads it again."""
    tools: Mapping[str, Tool]
    workspace: str | None


class _Stopping(Exception):
    """The process ends before the turn does."""


class Turn:
    """One claimed operation. `run` it once; `look` wakes it when its rows have changed."""

    def __init__(self, plan: Plan, claim: Claim, gate: Gate, histories: Histories) -> None:
        self.claim = claim
        self._plan = plan
        self._gate = gate
        self._histories = histories
        self._woken = False
        self._sleeper: asyncio.Future[None] | None = None
        self._stop_reason = ""
        self._live = LiveEvents(
            claim.session_id, claim.operation_id, sequence=claim.live_sequence, anchor=claim.anchor
        )
        self._promised = range(claim.first_number, claim.first_number + claim.numbers)
        self._request: ModelRequest | None = None if claim.resumed else plan.request
        self._reply: Reply | None = None
        self._save_at = math.inf
        self._running: dict[int, asyncio.Task[ToolOutput]] = {}
        self._tiers: Mapping[str, Tier] = {name: tool.tier for name, tool in plan.tools.items()}
        self._in_doubt = False

    @property
    def calling(self) -> bool:
        """Tools run, so that other calls of this turn may be waiting for an answer."""
        return bool(self._running)

    def stop(self, reason: str) -> None:
        """End the operation as interrupted, with `reason`, at the next point where that can be done."""
        self._stop_reason = reason
        self.look()

    def look(self) -> None:
        """Look at the rows again: the operation was cancelled, or a waiting call was answered."""
        self._woken = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

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

    async def run(self) -> None:
        """Run until the operation ends, parks, or is no longer this claim's. Cancelling the task leaves the rows as they are:
        whoever stops the process ends them."""
        try:
            ending = await self._ending()
            if ending is not None:
                await self._end(ending)
        except ClaimLost:
            self._live.close()
            log.info("turn.claim_lost", operation=self.claim.operation_id)
        finally:
            await self._stop_tools()
            self._live.close()

    async def _ending(self) -> Ending | None:
        """Run the turn and say how it ends; None when it has parked. Raises ClaimLost."""
        try:
            return await self._loop()
        except ClaimLost:
            raise
        except Cancelling:
            return Ending("cancelled")
        except _Stopping:
            return Ending("interrupted", interruption=self._stop_reason)
        except ModelError as error:
            log.warning("turn.model_failed", operation=self.claim.operation_id, reason=error.reason)
            return Ending("failed", error=_model_error(error))
        except Refusal as refusal:
            log.warning("turn.refused", operation=self.claim.operation_id, code=refusal.code)
            return Ending("failed", error=to_error(refusal))
        except Exception:  # the boundary of a turn: whatever it met, its operation must end
            log.exception("turn.failed", operation=self.claim.operation_id)
            return _broken()

    async def _loop(self) -> Ending | None:
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
            raise _Stopping
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

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Let `work` go on to its end, unless the operation is cancelled or lost meanwhile: then stop it and say so."""
        task = asyncio.create_task(work)
        try:
            while True:
                await self._wait([task])
                if task.done():
                    return task.result()
                await self._tend()
        finally:
            await self._let_go([task])

    async def _tend(self) -> None:
        """Commit what is finished of the reply, and go on only if the operation does: raises ClaimLost and Cancelling."""
        self._woken = False
        if self._stop_reason:
            raise _Stopping
        ready = self._reply.sayable() if self._reply is not None else []
        try:
            if self._reply is not None and ready:
                self._live.anchor = await self._once(operations.commit_said, self.claim, ready)
                self._reply.committed(len(ready))
            else:
                await in_db(operations.check_held, self.claim)
        except Refusal as refusal:
            # A reply goes on without the store for as long as no commit is in doubt.
            if self._in_doubt or not store.is_away(refusal):
                raise
            log.warning("turn.not_tended", operation=self.claim.operation_id, code=refusal.code)

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
                raise _Stopping
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

    async def _end(self, ending: Ending) -> None:
        """Commit the terminal transaction with whatever the last reply left: finished items, and text that was half said."""
        outputs = await self._stop_tools()
        self._live.flush()
        reply = self._reply
        ending = replace(
            ending,
            entries=reply.finished if reply is not None else (),
            streamed=reply.unsaved() if reply is not None else (),
            outputs=outputs,
            promised=self._promised,
            in_doubt=self._in_doubt,
        )
        await self._finish(ending)

    async def _finish(self, ending: Ending) -> None:
        """Commit the end, however long the store is away: nobody else ends what a living worker holds."""
        while True:
            try:
                return await in_db(operations.finish, self.claim, ending)
            except ClaimLost:
                raise
            except Exception as error:  # the boundary of a turn: its operation must end
                ending = replace(ending, in_doubt=True)
                if store.is_away(error):
                    log.warning("turn.end_delayed", operation=self.claim.operation_id)
                else:
                    # The store does not take what this turn came to: it ends without that.
                    log.exception("turn.end_refused", operation=self.claim.operation_id)
                    ending = replace(_broken(), streamed=(), promised=self._promised)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _stop_tools(self) -> Mapping[int, ToolOutput]:
        """Cancel the tools that run; return what those came to that have returned, or do so all the same."""
        running, self._running = self._running, {}
        await self._let_go(running.values())
        return {
            position: task.result()
            for position, task in running.items()
            if task.done() and not task.cancelled()
        }

    # Waiting and committing

    async def _wait(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Wait until one of the tasks is done, or somebody wakes this turn."""
        self._sleeper = asyncio.get_running_loop().create_future()
        if not self._woken:
            await asyncio.wait([*tasks, self._sleeper], return_when=asyncio.FIRST_COMPLETED)

    async def _let_go(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Cancel the tasks that run and wait for them, but not for ever; what they raise is of no interest."""
        running = [task for task in tasks if not task.done()]
        if not running:
            return
        for task in running:
            task.cancel()
        done, late = await asyncio.wait(running, timeout=_STOP_SECONDS)
        for task in done:
            if not task.cancelled():
                task.exception()
        if late:
            log.error("turn.not_let_go", operation=self.claim.operation_id, tasks=len(late))

    async def _commit(self, change: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Commit a change in a database thread, and again while the store is only busy: nothing was committed then."""
        while True:
            try:
                return await self._once(change, *args, **kwargs)
            except Refusal as refusal:
                if self._in_doubt or not store.is_away(refusal):
                    raise
                log.warning("turn.delayed", operation=self.claim.operation_id, code=refusal.code)
            if self._stop_reason:
                raise _Stopping
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _once(self, change: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Commit a change in a database thread; a failure of the store leaves in doubt whether it was."""
        try:
            return await in_db(change, *args, **kwargs)
        except PersistenceError:
            self._in_doubt = True
            raise


def _model_error(error: ModelError) -> Error:
    """Return what a failed operation says of its model: a core error, with the reason for dialects that tell it."""
    return to_error(InternalError(error.message, retryable=error.retryable, data={"reason": error.reason}))


def _broken() -> Ending:
    return Ending("failed", error=to_error(InternalError("the turn failed", retryable=True)))
