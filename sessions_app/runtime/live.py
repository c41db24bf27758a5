"""The live events of one claim: numbered, anchored, encoded once, handed to the other processes (behaviour 8.5, wire 10).

Owns: operation sequences and anchors. Does not own: delivery, which may drop any of them (`broadcast`, the feeds).
"""

from __future__ import annotations

import itertools

from msgspec import Raw

from sessions_app import broadcast, clock
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


class LiveEvents:
    """What one worker tells of one operation while it holds it."""

    def __init__(self, session_id: str, operation_id: str, *, sequence: int, anchor: int) -> None:
        """`sequence` is the last one an earlier claim handed out, `anchor` the newest durable sequence known."""
        self._session_id = session_id
        self._operation_id = operation_id
        self._count = itertools.count(sequence + 1)
        self.sequence = sequence
        """The last sequence that was handed out."""
        self.anchor = anchor

    def stream(self, entry_id: str, event: bytes) -> None:
        """Tell a provider stream event of the entry that its item will be."""
        self._publish(
            "sourced.stream",
            SourcedStreamPayload(
                entry_id=entry_id, invocation_id=None, parent_call_id=None, event=Raw(event)
            ),
        )

    def started(self, call_id: str, name: str, kind: ToolCallKind, shown: str, anchor: int) -> bytes:
        """Return the event of a call that is about to start, numbered but not told yet: its row keeps it first."""
        self.anchor = max(self.anchor, anchor)
        payload = ToolStartedPayload(
            call_id=call_id, name=name, kind=kind, payload=shown, agent_page_kind=None
        )
        return self._encoded("tool.started", payload)

    def tell(self, encoded: bytes) -> None:
        """Tell an event that was made before."""
        broadcast.publish_live(self._session_id, [encoded])

    def progress(self, call_id: str, channel: ToolProgressChannel, text: str) -> None:
        """Tell more output of a running call."""
        told = ToolProgress(channel=channel, update="append", text=text)
        self._publish("tool.progress", ToolProgressPayload(call_id=call_id, progress=told))

    def finished(self, call_id: str, outcome: ToolOutcome, output: ToolOutput | None) -> None:
        """Tell that a call is done."""
        self._publish("tool.finished", ToolFinishedPayload(call_id=call_id, outcome=outcome, output=output))

    def _publish(self, kind: LiveEventKind, payload: LivePayload) -> None:
        broadcast.publish_live(self._session_id, [self._encoded(kind, payload)])

    def _encoded(self, kind: LiveEventKind, payload: LivePayload) -> bytes:
        # Taken in the loop and, for `started`, in a database thread: only the counter itself is shared safely.
        self.sequence = number = next(self._count)
        event = LiveEvent(
            session_id=self._session_id,
            operation_id=self._operation_id,
            operation_sequence=number,
            anchor_sequence=self.anchor,
            timestamp=wire_time(clock.now()),
            kind=kind,
            payload=Raw(encode(payload)),
        )
        return encode(event)
