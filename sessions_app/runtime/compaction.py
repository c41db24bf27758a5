"""A compaction at work: the model sums up the history, which is archived and replaced by the summary (behaviour 9.2).

Owns: what the model is asked, and what of its answer is the summary. Does not own: what is kept beside the summary, and the
transaction that replaces the history (`commands.compaction`), the archive (`archives`), or reacting to cancellation and failures
(`work`): however a compaction ends but completed, the history is what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
import structlog

from sessions_app import archives, history
from sessions_app.commands import compaction
from sessions_app.commands.operations import Cancelling, ClaimLost
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.errors import InternalError, Refusal
from sessions_app.records import InputMessageItem, InputText
from sessions_app.runtime.models.port import ItemDone, ModelError, StreamEvent
from sessions_app.runtime.work import Stopping, Work

if TYPE_CHECKING:
    from sessions_app.commands.operations import Claim, Ending
    from sessions_app.history import NewEntry
    from sessions_app.runtime.models.port import ModelRequest
    from sessions_app.runtime.turn import Plan

log = structlog.get_logger(__name__)

INSTRUCTION = (
    "The conversation above is about to be replaced by a summary of it. Write that summary for yourself, so that you can go on "
    "from it alone. Say what was asked for and why, what was decided, what was done and found out, with the names, paths, values "
    "and exact wordings that still matter, and what remains to be done. Keep instructions and preferences of the user as they were "
    "given. Answer with the summary and nothing else, and call no tool."
)
HEADING = "The conversation before this point was summed up as follows.\n\n"

_MOST_CUTS = 8
"""How often the oldest half of what is summed up is left out of the request because the model cannot take it."""


class Compaction(Work):
    """One claimed compaction."""

    NAME = "compaction"

    def __init__(self, plan: Plan, claim: Claim) -> None:
        super().__init__(claim)
        self._plan = plan

    async def _do(self) -> Ending | None:
        if self._stop_reason:
            raise Stopping
        summary = _entry(await self._unless_stopped(self._summary()), self.claim.first_number)
        archive = await in_db(archives.write, self.claim.session_id)
        try:
            await self._commit(compaction.complete, self.claim, summary, archive)
        except (Refusal, Cancelling, ClaimLost, Stopping):
            if not self._in_doubt:
                await in_db(archives.discard, archive.name)
            raise
        return None

    async def _summary(self) -> str:
        """Ask for the summary, and again with less of the oldest history while the model cannot take all of it."""
        items = self._plan.request.items
        for _ in range(_MOST_CUTS):
            try:
                return await self._ask(items)
            except ModelError as error:
                fewer = newer_half(items)
                if error.reason != "context_overflow" or len(fewer) == len(items):
                    raise
                log.info("compaction.cut", operation=self.claim.operation_id, items=len(fewer))
                items = fewer
        return await self._ask(items)

    async def _ask(self, items: Sequence[bytes]) -> str:
        """Return the text of the answer; with the same tools as a turn, so that a provider knows the request from its cache."""
        request: ModelRequest = msgspec.structs.replace(self._plan.request, items=(*items, _QUESTION))
        texts: list[str] = []
        async with aclosing(self._plan.model.stream(request)) as events:
            async for event in events:
                match event:
                    case StreamEvent(text=text) if text:
                        texts.append(text)
                    case ItemDone() if texts:
                        texts.append("\n")
        text = "".join(texts).strip()
        if not text:
            raise InternalError("the model gave no summary", retryable=True)
        return text


def newer_half(items: Sequence[bytes]) -> Sequence[bytes]:
    """Return the instructions at the beginning and the newer half of the rest, which begins with a message of the user.

    So no output is left without its call. All items, when there is no such place to cut.
    """
    kept = 0
    while kept < len(items) and _role(items[kept]) in ("system", "developer"):
        kept += 1
    middle = kept + (len(items) - kept + 1) // 2
    for start in range(max(middle, kept + 1), len(items)):
        if _role(items[start]) == "user":
            return [*items[:kept], *items[start:]]
    return items


class _Head(msgspec.Struct):
    type: str = "message"
    role: str = ""


def _role(item: bytes) -> str:
    head = _read_head(item)
    return head.role if head.type == "message" else ""


_read_head = msgspec.json.Decoder(_Head).decode
_QUESTION = encode(InputMessageItem(role="user", content=(InputText(text=INSTRUCTION),)))


def _entry(summary: str, number: int) -> NewEntry:
    item = InputMessageItem(role="developer", content=(InputText(text=HEADING + summary),))
    return history.entry_of(encode(item), number)
