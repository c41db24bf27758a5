"""One claimed operation at work: what a turn and a compaction have in common (behaviour 6.4, 6.6, 9.2).

Owns: reacting to cancellation, loss of the claim, failures and the end of the process; committing and ending while the store comes
and goes. Does not own: what is done meanwhile (`turn`, `compaction`), or which process runs what (`host`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import structlog

from sessions_app import store
from sessions_app.commands import operations
from sessions_app.commands.operations import Cancelling, Claim, ClaimLost, Ending
from sessions_app.db import in_db
from sessions_app.errors import InternalError, PersistenceError, Refusal, to_error
from sessions_app.runtime.models.port import ModelError

if TYPE_CHECKING:
    from sessions_app.commands.operations import StreamedItem
    from sessions_app.records import Error

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_AGAIN_SECONDS = 0.25
"""Between two attempts to commit to a store that is busy or away; each has waited for its lock already."""

_STOP_SECONDS = 5.0
"""How long a request or a tool that was cancelled may take to let go; what it still does is then nobody's."""


class Stopping(Exception):
    """The process ends before the operation does."""


class Work(ABC):
    """One claimed operation. `run` it once; `look` wakes it when its rows have changed."""

    NAME: ClassVar[str]
    """What it is called in the log and in errors."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self._woken = False
        self._sleeper: asyncio.Future[None] | None = None
        self._stop_reason = ""
        self._in_doubt = False
        """A commit failed in a way that does not tell whether it was one."""

    @property
    def calling(self) -> bool:
        """Tools run, so that other calls of this operation may be waiting for an answer."""
        return False

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
        return ()

    def not_saved(self) -> None:  # noqa: B027 - not every work hands something over to be saved
        """Take back what `due` returned last: it could not be saved."""

    async def run(self) -> None:
        """Run until the operation ends, parks, or is no longer this claim's. Cancelling the task leaves the rows as they are:
        whoever stops the process ends them."""
        try:
            ending = await self._ending()
            if ending is not None:
                await self._finish(await self._settled(ending))
        except ClaimLost:
            log.info(f"{self.NAME}.claim_lost", operation=self.claim.operation_id)
        finally:
            await self._close()

    async def _ending(self) -> Ending | None:
        """Do the work and say how it ends; None when it has parked or ended already. Raises ClaimLost."""
        try:
            return await self._do()
        except ClaimLost:
            raise
        except Cancelling:
            return Ending("cancelled")
        except Stopping:
            return Ending("interrupted", interruption=self._stop_reason)
        except ModelError as error:
            log.warning(f"{self.NAME}.model_failed", operation=self.claim.operation_id, reason=error.reason)
            return Ending("failed", error=_model_error(error))
        except Refusal as refusal:
            log.warning(f"{self.NAME}.refused", operation=self.claim.operation_id, code=refusal.code)
            return Ending("failed", error=to_error(refusal))
        except Exception:  # the boundary of an operation: whatever it met, it must end
            log.exception(f"{self.NAME}.failed", operation=self.claim.operation_id)
            return self._broken()

    @abstractmethod
    async def _do(self) -> Ending | None:
        """Do the work; see `_ending`."""

    async def _settled(self, ending: Ending) -> Ending:
        """Return an ending with all that is to be committed with it."""
        return ending

    async def _close(self) -> None:  # noqa: B027 - not every work holds something
        """Let go of everything."""

    async def _finish(self, ending: Ending) -> None:
        """Commit the end, however long the store is away: nobody else ends what a living worker holds."""
        while True:
            try:
                return await in_db(operations.finish, self.claim, ending)
            except ClaimLost:
                raise
            except Exception as error:  # the boundary of an operation: it must end
                ending = replace(ending, in_doubt=True)
                if store.is_away(error):
                    log.warning(f"{self.NAME}.end_delayed", operation=self.claim.operation_id)
                else:
                    # The store does not take what this operation came to: it ends without that.
                    log.exception(f"{self.NAME}.end_refused", operation=self.claim.operation_id)
                    ending = replace(self._broken(), streamed=(), promised=ending.promised)
            await asyncio.sleep(_AGAIN_SECONDS)

    def _broken(self) -> Ending:
        return Ending("failed", error=to_error(InternalError(f"the {self.NAME} failed", retryable=True)))

    # Waiting and committing

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
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
        """Go on only if the operation does: raises ClaimLost, Cancelling and Stopping."""
        self._woken = False
        if self._stop_reason:
            raise Stopping
        try:
            await self._look_after()
        except Refusal as refusal:
            # What does not need the store goes on without it for as long as no commit is in doubt.
            if self._in_doubt or not store.is_away(refusal):
                raise
            log.warning(f"{self.NAME}.not_tended", operation=self.claim.operation_id, code=refusal.code)

    async def _look_after(self) -> None:
        """Look at the rows while the work goes on."""
        await in_db(operations.check_held, self.claim)

    async def _wait(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Wait until one of the tasks is done, or somebody wakes this operation."""
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
            log.error(f"{self.NAME}.not_let_go", operation=self.claim.operation_id, tasks=len(late))

    async def _commit(self, change: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Commit a change in a database thread, and again while the store is only busy: nothing was committed then."""
        while True:
            try:
                return await self._once(change, *args, **kwargs)
            except Refusal as refusal:
                if self._in_doubt or not store.is_away(refusal):
                    raise
                log.warning(f"{self.NAME}.delayed", operation=self.claim.operation_id, code=refusal.code)
            if self._stop_reason:
                raise Stopping
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
