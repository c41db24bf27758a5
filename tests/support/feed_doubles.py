"""In-memory stand-ins for what a connection and its feed work with: the socket, the log, the hints, a dialect."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from ochat_site.rpc.connection import Receiver
from ochat_site.rpc.outbox import Closing, Frame, Outbox
from sessions_app.ledger import StoredEvent
from sessions_app.views import View

STARTED = datetime(2026, 11, 30, tzinfo=UTC)


async def settle() -> None:
    """Let every task that can go on go on; nothing here waits for anything but its turn."""
    for _ in range(100):
        await asyncio.sleep(0)


class FakeSocket:
    """A socket whose system side takes bytes when the test says so."""

    def __init__(self, full_at: int = 64 * 1024, *, reads: bool = True) -> None:
        self.sent: list[bytes] = []
        self.closed: Closing | None = None
        self.paused = False
        self.receiver: Receiver | Outbox | None = None
        self._full_at = full_at
        self._reads = reads
        self._full = False
        self._buffered = 0
        self._taken = 0

    def send(self, frame: Frame) -> None:
        if self.closed is not None:
            return
        self.sent.append(frame.body)
        self._buffered += len(frame.body)
        self._full = self._buffered > self._full_at
        if self._reads and not self._full:
            self._taken += self._buffered
            self._buffered = 0

    def take(self, size: int | None = None) -> None:
        """Let the system take bytes, all that wait by default."""
        size = self._buffered if size is None else min(size, self._buffered)
        self._buffered -= size
        self._taken += size
        if self._full and not self._buffered:
            self._full = False
            if self.receiver is not None:
                self.receiver.drained()

    def is_full(self) -> bool:
        return self._full

    def buffered(self) -> int:
        return self._buffered

    def taken(self) -> int:
        return self._taken

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def close(self, reason: Closing) -> None:
        self.closed = reason


class FakeLog:
    """The log of every session, in memory; a read takes a turn of the loop."""

    def __init__(self) -> None:
        self.events: dict[str, list[StoredEvent]] = {}
        self.reads: list[tuple[str, int]] = []
        self.head_reads = 0
        self.removed: Counter[str] = Counter()
        self.failing = False

    def commit(self, session_id: str, kind: str = "session.updated", payload: bytes = b"{}") -> int:
        """Append one event and return its sequence."""
        events = self.events.setdefault(session_id, [])
        sequence = len(events) + 1
        events.append(StoredEvent(session_id, sequence, sequence, STARTED, kind, payload, None))  # type: ignore[arg-type]  # any kind
        return sequence

    def head(self, session_id: str) -> int:
        return len(self.events.get(session_id, ()))

    async def read_heads(self, session_ids: Sequence[str]) -> Mapping[str, int]:
        await asyncio.sleep(0)
        if self.failing:
            raise OSError("the store is away")
        self.head_reads += 1
        return {session_id: self.head(session_id) for session_id in session_ids}

    async def read_events(
        self, session_id: str, after: int, limit: int, max_bytes: int
    ) -> Sequence[StoredEvent]:
        self.reads.append((session_id, after))
        await asyncio.sleep(0)
        if self.failing:
            raise OSError("the store is away")
        taken: list[StoredEvent] = []
        for event in self.events.get(session_id, [])[max(after, self.removed[session_id]) :][:limit]:
            if taken and sum(len(other.payload) for other in taken) + len(event.payload) > max_bytes:
                break
            taken.append(event)
        return taken


class FakeWakes:
    """Knows who listens; the test calls the hub itself."""

    def __init__(self) -> None:
        self.sessions: Counter[str] = Counter()

    def subscribe(self, session_id: str) -> None:
        self.sessions[session_id] += 1

    def unsubscribe(self, session_id: str) -> None:
        self.sessions[session_id] -= 1


class Told(msgspec.Struct):
    """What a test reads from the wire: a durable event, or a live one."""

    session: str = ""
    sequence: int = 0
    kind: str = ""
    full: bool = True
    pad: str = ""
    operation: str = ""
    number: int = 0
    anchor: int = 0


class CountingDialect:
    """Writes notifications the test can read back, and counts how often it is asked."""

    filtered = None

    def __init__(self) -> None:
        self.encoded = 0

    def encode_event(self, event: StoredEvent, view: View) -> bytes:
        self.encoded += 1
        return msgspec.json.encode(
            Told(
                session=event.session_id,
                sequence=event.sequence,
                kind=event.kind,
                full=view.security_read,
                pad=event.payload.decode(),
            )
        )

    def encode_live(self, event: bytes) -> bytes:
        self.encoded += 1
        header = msgspec.json.decode(event)
        return msgspec.json.encode(
            Told(
                kind="live",
                operation=header["operation_id"],
                number=header["operation_sequence"],
                anchor=header["anchor_sequence"],
            )
        )


def live(operation: str, number: int, anchor: int) -> bytes:
    """Return a live event as a worker encodes it."""
    return msgspec.json.encode(
        {"operation_id": operation, "operation_sequence": number, "anchor_sequence": anchor, "kind": "x"}
    )


def told(socket: FakeSocket) -> list[Told]:
    """Return the notifications a socket was handed, in order; answers are left out."""
    return [msgspec.json.decode(body, type=Told) for body in socket.sent if body.startswith(b'{"session"')]


def sequences(socket: FakeSocket, session: str | None = None) -> list[int]:
    """Return the sequences of the durable events a socket was handed."""
    return [
        event.sequence for event in told(socket) if event.kind != "live" and session in (None, event.session)
    ]
