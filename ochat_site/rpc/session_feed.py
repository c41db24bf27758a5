"""The subscribers of one session in this process, and what each is sent of its log (behaviour 8.2 to 8.6).

Owns: cursors, the order of what a subscriber is sent, the sharing of encodings, and who counts as slow.
Does not own: which sessions have subscribers and how news of them arrive (`feed`), the log (`EventLog`, the
kernel), what a view hides and how a dialect writes an event (`Dialect`), what a socket can take (`outbox`),
which live event may be shown when (`live`).

Subscribers that have everything *follow*: one task per session reads what is new and hands it to all of them.
A subscriber whose socket is busy *lags*: a task of its own waits for the socket, reads behind its own cursor,
and follows again once it has caught up. Nobody does both, so that a subscriber has one sender at a time. Who has
everything costs neither a task nor a query. All of this is confined to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import structlog

from ochat_site.rpc.live import LiveEvent, LiveGate, Operations, operation_ended_by
from ochat_site.rpc.outbox import Frame, Outbox
from sessions_app import limits

if TYPE_CHECKING:
    from sessions_app.ledger import StoredEvent
    from sessions_app.views import View

logger = structlog.get_logger(__name__)

READ_EVENTS = 128
READ_BYTES = 512 * limits.KIB
"""One read of the log takes at most so many events, and at most so many bytes unless the first is larger."""

CATCH_UP_BYTES = 128 * limits.KIB
"""The same for one laggard alone, who may hold what it read for as long as its socket takes nothing."""

RECENT_EVENTS = 256
RECENT_BYTES = limits.MIB
"""What a session keeps of its log for those who lag a little; nothing while all follow."""

SENDS_PER_STEP = 256
"""After so many sends the loop may do something else: about 2 ms."""

MAX_SCAN_EVENTS = 1024
"""How far the log is read to learn whether a live event's operation has ended; beyond, the event is dropped."""


class EventLog(Protocol):
    """The read path of the log."""

    async def read_heads(self, session_ids: Sequence[str]) -> Mapping[str, int]:
        """Return the newest sequence of each session that exists, in one query."""
        ...

    async def read_events(
        self, session_id: str, after: int, limit: int, max_bytes: int
    ) -> Sequence[StoredEvent]:
        """Return the next events behind `after`: contiguous, at most `limit`, at least one if there is one."""
        ...


class Dialect(Protocol):
    """How one protocol writes notifications; there is one object per dialect, because it is a cache key."""

    @property
    def filtered(self) -> bytes | None:
        """What stands in the place of a live event that its reader may not see; None for nothing."""
        ...

    def encode_event(self, event: StoredEvent, view: View) -> bytes:
        """Return the notification of a durable event as this view may see it."""
        ...

    def encode_live(self, event: bytes) -> bytes:
        """Return the notification of a live event, given as its worker encoded it."""
        ...


class Subscription:
    """One attachment's place in the log of its session."""

    __slots__ = (
        "_dialect",
        "_feed",
        "_gate",
        "_max_event_bytes",
        "_on_slow",
        "_progress",
        "_start",
        "closed",
        "cursor",
        "outbox",
        "released",
        "task",
        "view",
    )

    def __init__(
        self,
        feed: SessionFeed,
        after: int,
        outbox: Outbox,
        view: View,
        dialect: Dialect,
        max_event_bytes: int | None,
        on_slow: Callable[[], None],
    ) -> None:
        """Begin behind `after`, unreleased; see `FeedHub.subscribe`."""
        self._feed = feed
        self._start = after
        self._dialect = dialect
        self._max_event_bytes = max_event_bytes
        self._on_slow = on_slow
        self._gate: LiveGate | None = None
        # What the socket had taken, and where the log was, when the socket was last seen to take something.
        self._progress = (outbox.taken(), after)
        self.outbox = outbox
        self.view = view
        """What the subscriber may see; a change counts from the next event on."""
        self.cursor = after
        """The last sequence the subscriber was sent, or had when it came."""
        self.released = False
        self.closed = False
        self.task: asyncio.Task[None] | None = None

    def release(self) -> None:
        """Let events reach the wire: the answer that announces the subscription is written (behaviour 8.3)."""
        if not (self.released or self.closed):
            self.released = True
            self._feed.resume(self)
            self.pass_live()

    def close(self) -> None:
        """Send nothing more."""
        if not self.closed:
            self.closed = True
            self._feed.remove(self)

    # For the feed

    def deliver(self, entry: Entry) -> bool:
        """Send the next event of the log; False when the socket does not take it or the subscription ends."""
        frame = entry.frame(self.view, self._dialect)
        if self._max_event_bytes is not None and len(frame.body) > self._max_event_bytes:
            self.end()
        if self.closed or not self.outbox.offer_durable(frame):
            return False
        self.cursor = entry.sequence
        if self._gate is not None:
            self.pass_live()
        return True

    def offer_live(self, event: LiveEvent) -> None:
        """Send a live event, or keep it until it may be sent, or drop it."""
        if not self.view.security_read:
            filtered = self._dialect.filtered
            if filtered is not None and self.released:
                self.outbox.offer_live(Frame(filtered))
            return
        if self._gate is None:
            self._gate = LiveGate(self._start, self._feed.operations, self._send_live)
        self._gate.hold(event, time.monotonic())
        self.pass_live()

    def pass_live(self) -> None:
        """Send the live events that wait and may be sent now."""
        gate = self._gate
        if gate is None or not self.released:
            return
        gate.pass_on(self.cursor, time.monotonic())
        unread = gate.first_unread()
        if unread is not None:
            self._feed.scan(unread, self._start)

    def _send_live(self, event: LiveEvent) -> None:
        frame = event.frame(self._dialect.encode_live)
        if self._max_event_bytes is None or len(frame.body) <= self._max_event_bytes:
            self.outbox.offer_live(frame)

    def note_progress(self, head: int) -> None:
        """Begin to count what is committed while the socket takes nothing."""
        self._progress = (self.outbox.taken(), head)

    def check_progress(self, head: int) -> None:
        """End the subscription if its socket took nothing while too much was committed (behaviour 8.6)."""
        taken, since = self._progress
        if not self.outbox.is_stuck(taken):
            self.note_progress(head)
        elif head - since > limits.server().subscriber_queue_capacity:
            self.end()

    def end(self) -> None:
        """Give up on a subscriber that cannot be sent what comes next."""
        if not self.closed:
            self._on_slow()
            self.close()


class Entry:
    """One event of the log, and its frame per view and dialect, made once for all who are sent it."""

    __slots__ = ("_frames", "event", "sequence")

    def __init__(self, event: StoredEvent) -> None:
        """Hold an event; nothing is encoded before it is asked for."""
        self.event = event
        self.sequence = event.sequence
        self._frames: dict[tuple[View, Dialect], Frame] = {}

    def frame(self, view: View, dialect: Dialect) -> Frame:
        """Return the notification for a view in a dialect."""
        key = view, dialect
        frame = self._frames.get(key)
        if frame is None:
            frame = self._frames[key] = Frame(dialect.encode_event(self.event, view))
        return frame


class SessionFeed:
    """The subscribers of one session.

    Followers are at `_tail` or beyond. `_recent` are entries read lately, contiguous; what was read and not yet
    handed out is among them.
    """

    def __init__(
        self,
        session_id: str,
        head: int,
        log: EventLog,
        catch_ups: asyncio.Semaphore,
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """Take the log to reach `head`; `catch_ups` bounds the reads for laggards, `spawn` runs a task."""
        self.session_id = session_id
        self.operations = Operations()
        self._log = log
        self._catch_ups = catch_ups
        self._spawn = spawn
        self._head = head
        self._tail = head
        self._following: set[Subscription] = set()
        self._lagging: set[Subscription] = set()
        self._recent: deque[Entry] = deque()
        self._recent_bytes = 0
        self._reader: asyncio.Task[None] | None = None
        self._scanner: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Tell whether nobody is subscribed."""
        return not (self._following or self._lagging)

    def add(self, subscription: Subscription) -> None:
        """Begin to serve a subscriber, once it is released."""
        self._lagging.add(subscription)
        self.advance(subscription.cursor)

    def remove(self, subscription: Subscription) -> None:
        """Serve a subscriber no more."""
        self._following.discard(subscription)
        self._lagging.discard(subscription)
        if subscription.task is not None:
            subscription.task.cancel()
        self._forget()

    def resume(self, subscription: Subscription) -> None:
        """Serve a subscriber again that waited for its release, its socket or the store."""
        if self._may_follow(subscription):
            self._follow(subscription)
        else:
            subscription.task = self._spawn(self._catch_up(subscription))

    def advance(self, head: int) -> None:
        """Take the log to reach `head` at least, and see to it that everybody is served."""
        if head > self._head:
            self._head = head
            for subscription in list(self._lagging):
                subscription.check_progress(head)
        self._read_on()
        for subscription in list(self._lagging):
            if subscription.released and subscription.task is None:
                self.resume(subscription)

    def pass_live(self, event: LiveEvent) -> None:
        """Offer a live event to everybody, unless it came before."""
        if self.operations.admit(event):
            self.advance(event.anchor)
            for subscription in [*self._following, *self._lagging]:
                subscription.offer_live(event)

    def scan(self, after: int, upto: int) -> None:
        """Read a part of the log for the ends of operations, so that live events can be judged."""
        if self._scanner is None and upto - after <= MAX_SCAN_EVENTS:
            self._scanner = self._spawn(self._scan(after, upto))

    # Those who follow

    def _may_follow(self, subscription: Subscription) -> bool:
        """Tell whether the reader may serve a subscriber: it would hold nobody back."""
        return subscription.cursor >= self._tail or len(self._following) + len(self._lagging) == 1

    def _follow(self, subscription: Subscription) -> None:
        if not self._following:
            self._tail = subscription.cursor
        self._lagging.discard(subscription)
        self._following.add(subscription)
        self._forget()
        self._read_on()

    def _read_on(self) -> None:
        if self._following and self._tail < self._head and self._reader is None:
            self._reader = self._spawn(self._read())

    async def _read(self) -> None:
        try:
            while self._following and self._tail < self._head:
                head, tail = self._head, min(subscription.cursor for subscription in self._following)
                self._tail = tail
                entries = self._cached(tail) or self._keep(await self._load(tail, READ_BYTES))
                if self._tail != tail:
                    continue  # All who followed left meanwhile, and others came.
                if entries:
                    await self._hand_out(entries)
                elif head == self._head:
                    break  # The hint was ahead of the log; the next look comes within a second.
        except Exception:
            logger.exception("feed.read", session_id=self.session_id)
        finally:
            self._reader = None
            self._forget()

    async def _hand_out(self, entries: Iterable[Entry]) -> None:
        sends = 0
        for entry in entries:
            for subscription in list(self._following):
                if subscription.cursor >= entry.sequence:
                    continue
                if subscription.cursor + 1 != entry.sequence:
                    subscription.end()  # What lay between is no longer retained.
                elif not subscription.deliver(entry) and not subscription.closed:
                    self._lag(subscription)
            if not self._following:
                return
            self._tail = entry.sequence
            self._head = max(self._head, self._tail)
            sends += len(self._following)
            if sends >= SENDS_PER_STEP:
                sends = 0
                await asyncio.sleep(0)
                if self._tail != entry.sequence:
                    return

    # Those who lag

    def _lag(self, subscription: Subscription) -> None:
        self._following.discard(subscription)
        self._lagging.add(subscription)
        subscription.note_progress(self._head)
        subscription.task = self._spawn(self._catch_up(subscription))

    async def _catch_up(self, subscription: Subscription) -> None:
        entries: deque[Entry] = deque()
        try:
            while True:
                await subscription.outbox.until_open()
                if subscription.outbox.closed:
                    return
                if self._may_follow(subscription):
                    self._follow(subscription)
                    return
                if not entries:
                    entries.extend(await self._next(subscription.cursor))
                    if not entries or entries[0].sequence != subscription.cursor + 1:
                        subscription.end()  # Others were sent what is no longer retained.
                        return
                while entries and subscription.deliver(entries[0]):
                    entries.popleft()
                await asyncio.sleep(0)
        except Exception:
            logger.exception("feed.catch_up", session_id=self.session_id)
        finally:
            subscription.task = None

    async def _next(self, after: int) -> Sequence[Entry]:
        entries = self._cached(after)
        if not entries:
            async with self._catch_ups:
                entries = await self._load(after, CATCH_UP_BYTES)
        return entries

    # Entries

    async def _load(self, after: int, max_bytes: int) -> Sequence[Entry]:
        events = await self._log.read_events(self.session_id, after, READ_EVENTS, max_bytes)
        for event in events:
            ended = operation_ended_by(event.kind, event.payload)
            if ended is not None:
                self.operations.note_end(ended, event.sequence)
        if events:
            self.operations.note_read(after, events[-1].sequence)
        return [Entry(event) for event in events]

    def _cached(self, after: int) -> Sequence[Entry]:
        recent = self._recent
        if not recent or not recent[0].sequence <= after + 1 <= recent[-1].sequence:
            return ()
        start = after + 1 - recent[0].sequence
        return list(islice(recent, start, start + READ_EVENTS))

    def _keep(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        recent = self._recent
        if entries and recent and recent[-1].sequence + 1 != entries[0].sequence:
            self._drop_recent()
        for entry in entries:
            recent.append(entry)
            self._recent_bytes += len(entry.event.payload)
        while len(recent) > len(entries) and (
            len(recent) > RECENT_EVENTS or self._recent_bytes > RECENT_BYTES
        ):
            self._recent_bytes -= len(recent.popleft().event.payload)
        return entries

    def _forget(self) -> None:
        """Keep nothing for anybody once nobody lags."""
        if not self._lagging and self._tail >= self._head:
            self._drop_recent()

    def _drop_recent(self) -> None:
        self._recent.clear()
        self._recent_bytes = 0

    async def _scan(self, after: int, upto: int) -> None:
        try:
            while after < upto:
                entries = await self._load(after, READ_BYTES)
                if not entries:
                    return
                after = entries[-1].sequence
        except Exception:
            logger.exception("feed.scan", session_id=self.session_id)
        else:
            self._scanner = None
            for subscription in [*self._following, *self._lagging]:
                subscription.pass_live()
        finally:
            self._scanner = None
