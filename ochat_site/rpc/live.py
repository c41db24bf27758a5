"""When a live event may be shown: behind its anchor, before its operation's end, or not at all (behaviour 8.5).

Owns: reading a live event's header, what a process knows of the operations of a session, the waiting of events whose anchor
a subscriber has not been sent. Does not own: where live events come from (`sessions_app.broadcast`), who may see them and how
they are written (`feed`), what a busy socket does to them (`outbox`).

The layer that brings live events loses, doubles and delays them. So each is judged against the log: an event of an operation
that ended before the subscriber's place in the log, or that comes twice or late, is dropped.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ochat_site.rpc.outbox import Frame

HOLD_SECONDS = 1.0
"""How long an event waits for its anchor (behaviour 8.5)."""

MAX_HELD = 256
"""Events one subscriber may have waiting; more are dropped, as everything live may be."""

MAX_OPERATIONS = 64
"""Operations of a session whose end is remembered; one runs at a time, and late events come within seconds."""

TERMINAL_KINDS = frozenset(
    {"operation.completed", "operation.failed", "operation.cancelled", "operation.interrupted"}
)


class _Header(msgspec.Struct):
    operation_id: str
    operation_sequence: int
    anchor_sequence: int


class _Ended(msgspec.Struct):
    id: str


_decode_header = msgspec.json.Decoder(_Header).decode
_decode_ended = msgspec.json.Decoder(_Ended).decode


class LiveEvent:
    """One encoded live event, and its frame in each dialect, made once for all who are sent it."""

    __slots__ = ("_frames", "anchor", "body", "operation_id", "sequence")

    def __init__(self, body: bytes) -> None:
        """Read the header of an event as its worker encoded it. Raises msgspec.DecodeError for anything else."""
        header = _decode_header(body)
        self.body = body
        self.operation_id = header.operation_id
        self.sequence = header.operation_sequence
        self.anchor = header.anchor_sequence
        self._frames: dict[object, Frame] = {}

    def frame(self, encode: Callable[[bytes], bytes]) -> Frame:
        """Return this event as `encode`, a dialect's encoding of live events, writes it."""
        frame = self._frames.get(encode)
        if frame is None:
            frame = self._frames[encode] = Frame(encode(self.body))
        return frame


def operation_ended_by(kind: str, payload: bytes) -> str | None:
    """Return the operation that a durable event ends, or None for any other event."""
    return _decode_ended(payload).id if kind in TERMINAL_KINDS else None


@dataclass(slots=True)
class _Operation:
    newest: int = 0
    """The highest operation sequence that has come."""
    clear_to: int = 0
    """No end of it lies at or below this sequence of the log, unless `ended_at` says so."""
    ended_at: int | None = None


class Operations:
    """What one process knows of the operations of one session."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, _Operation] = OrderedDict()

    def admit(self, event: LiveEvent) -> bool:
        """Take note of an event that came; False for one that came before, or behind a later one."""
        operation = self._operation(event.operation_id)
        if event.sequence <= operation.newest:
            return False
        operation.newest = event.sequence
        # Its worker had not ended the operation when it knew the anchor.
        operation.clear_to = max(operation.clear_to, event.anchor)
        return True

    def note_end(self, operation_id: str, sequence: int) -> None:
        """Take note of the durable event that ends an operation."""
        self._operation(operation_id).ended_at = sequence

    def note_read(self, after: int, upto: int) -> None:
        """Take note that the log was read from behind `after` to `upto`, and every end in it noted."""
        for operation in self._known.values():
            if after <= operation.clear_to < upto:
                operation.clear_to = upto

    def has_ended(self, event: LiveEvent, cursor: int) -> bool:
        """Tell whether the operation of an event ended at or before `cursor`."""
        ended_at = self._operation(event.operation_id).ended_at
        return ended_at is not None and ended_at <= cursor

    def unread_before(self, event: LiveEvent, start: int) -> int | None:
        """Return the sequence behind which the log must be read, up to `start`, to know whether the operation of an
        event ended before; None when that is known.
        """
        operation = self._operation(event.operation_id)
        return operation.clear_to if operation.ended_at is None and operation.clear_to < start else None

    def _operation(self, operation_id: str) -> _Operation:
        operation = self._known.get(operation_id)
        if operation is None:
            operation = self._known[operation_id] = _Operation()
            if len(self._known) > MAX_OPERATIONS:
                self._known.popitem(last=False)
        return operation


class LiveGate:
    """The live events of one subscriber: sent in order, each behind its anchor, or dropped."""

    __slots__ = ("_held", "_operations", "_send", "_start")

    def __init__(self, start: int, operations: Operations, send: Callable[[LiveEvent], None]) -> None:
        """Begin for a subscriber whose first durable event comes behind `start`."""
        self._start = start
        self._operations = operations
        self._send = send
        self._held: deque[tuple[float, LiveEvent]] = deque()

    @property
    def is_holding(self) -> bool:
        """Tell whether events wait."""
        return bool(self._held)

    def hold(self, event: LiveEvent, now: float) -> None:
        """Let an event wait; `pass_on` sends it when it may be sent."""
        if len(self._held) < MAX_HELD:
            self._held.append((now + HOLD_SECONDS, event))

    def pass_on(self, cursor: int, now: float) -> None:
        """Send what may be sent to a subscriber that has been sent the log up to `cursor`; drop what never may be."""
        while self._held:
            deadline, event = self._held[0]
            if now <= deadline and not self._operations.has_ended(event, cursor):
                if event.anchor > cursor or self.unread_before(event) is not None:
                    return
                self._send(event)
            self._held.popleft()

    def unread_before(self, event: LiveEvent) -> int | None:
        """Return where the log must be read from before this event can be judged, or None."""
        return self._operations.unread_before(event, self._start)

    def first_unread(self) -> int | None:
        """Return where the log must be read from before the oldest waiting event can be judged, or None."""
        return self.unread_before(self._held[0][1]) if self._held else None
