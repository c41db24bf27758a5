"""The live events of one claim: numbered, anchored, encoded once, handed to the other processes (behaviour 8.5, wire 10).

Owns: operation sequences, anchors, and which events leave together. Does not own: delivery, which may drop any of them
(`broadcast`, the feeds).

A number is given when an event leaves, in the order of leaving, so that readers see it grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Raw

from sessions_app import broadcast, clock, history, ids
from sessions_app.clock import wire_time
from sessions_app.encoding import encode
from sessions_app.events import (
    LiveEvent,
    LiveEventKind,
    LivePayload,
    SourcedStreamPayload,
    ToolFinishedPayload,
    ToolProgress,
    ToolProgressPayload,
    ToolStartedPayload,
)
from sessions_app.records import ToolCallKind, ToolOutcome, ToolOutput, ToolProgressChannel

GATHER_SECONDS = 0.01
"""What comes this soon behind the last batch leaves together: no reader sees it, and a message costs each process more than the
events in it. The first event after a pause leaves with what came in the same tick of the loop."""

_MOST_TOGETHER = 1024
"""Events that leave together at most; while a step is being committed no more than these wait, and the rest is dropped."""


class LiveEvents:
    """What one worker tells of one operation while it holds it. Confined to the loop, but for `started`."""

    def __init__(self, session_id: str, operation_id: str, *, sequence: int, anchor: int) -> None:
        """`sequence` is the last one an earlier claim handed out, `anchor` the newest durable sequence known."""
        self._session_id = session_id
        self._operation_id = operation_id
        self.sequence = sequence
        """The last sequence that was handed out."""
        self.anchor = anchor
        self._waiting: list[tuple[LiveEventKind, LivePayload]] = []
        self._flush: asyncio.TimerHandle | None = None
        self._next_flush = 0.0
        self._held = False
        self._closed = False

    def stream(self, number: int, event: bytes) -> None:
        """Tell a provider stream event of the entry that will have this history sequence."""
        entry_id = ids.history_id(self._session_id, number)
        payload = SourcedStreamPayload(
            entry_id=entry_id, invocation_id=None, parent_call_id=None, event=Raw(event)
        )
        self._add("sourced.stream", payload)

    def progress(self, call_id: str, channel: ToolProgressChannel, text: str) -> None:
        """Tell more output of a running call."""
        told = ToolProgress(channel=channel, update="append", text=text)
        self._add("tool.progress", ToolProgressPayload(call_id=call_id, progress=told))

    def finished(self, call_id: str, outcome: ToolOutcome, output: ToolOutput | None) -> None:
        """Tell that a call is done."""
        shown = None if output is None else history.shown_output(output)
        self._add("tool.finished", ToolFinishedPayload(call_id=call_id, outcome=outcome, output=shown))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Tell what waits, then nothing inside the block but what `tell` is given: no number is handed out but by `started`.

        A step of the calls is committed inside it, so that a `tool.started` is told in the order of its number.
        """
        self.flush()
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self._schedule()

    def started(self, call_id: str, name: str, kind: ToolCallKind, shown: str, anchor: int) -> bytes:
        """Return the event of a call that is about to start, numbered but not told yet: its row keeps it first.

        In a database thread, while `held`. `anchor` is the newest sequence of the transaction that will keep it.
        """
        payload = ToolStartedPayload(
            call_id=call_id, name=name, kind=kind, payload=shown, agent_page_kind=None
        )
        return self._encoded("tool.started", payload, wire_time(clock.now()), anchor)

    def tell(self, encoded: bytes) -> None:
        """Tell an event that `started` made, once it is committed."""
        broadcast.publish_live(self._session_id, [encoded])

    def flush(self) -> None:
        """Tell what waits now."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        at = wire_time(clock.now())
        broadcast.publish_live(
            self._session_id, [self._encoded(kind, payload, at, self.anchor) for kind, payload in waiting]
        )
        self._next_flush = asyncio.get_running_loop().time() + GATHER_SECONDS

    def close(self) -> None:
        """Tell nothing any more: the operation is over, or another claim tells of it."""
        self._closed = True
        self._waiting = []
        self.flush()

    def _add(self, kind: LiveEventKind, payload: LivePayload) -> None:
        if len(self._waiting) >= _MOST_TOGETHER and not self._held:
            self.flush()
        if not self._closed and len(self._waiting) < _MOST_TOGETHER:
            self._waiting.append((kind, payload))
            self._schedule()

    def _schedule(self) -> None:
        if self._waiting and self._flush is None and not self._held:
            loop = asyncio.get_running_loop()
            self._flush = loop.call_at(max(self._next_flush, loop.time()), self.flush)

    def _encoded(self, kind: LiveEventKind, payload: LivePayload, at: str, anchor: int) -> bytes:
        self.sequence += 1
        event = LiveEvent(
            session_id=self._session_id,
            operation_id=self._operation_id,
            operation_sequence=self.sequence,
            anchor_sequence=anchor,
            timestamp=at,
            kind=kind,
            payload=Raw(encode(payload)),
        )
        return encode(event)
