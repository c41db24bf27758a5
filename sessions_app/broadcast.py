"""Hints between the processes of one installation: the only file that touches the channel layer.

Owns: one channel and one reader per process, a group per session, wake-ups, live events, signals to every
process, and surviving a layer that is slow, full, gone or back again. Does not own: what a hint leads to
(`on_*` handlers), the log, which is the truth (`ledger`), or what may be shown to whom.

Everything sent here may be lost, doubled, delayed or reordered: nothing but hints and live events goes this
way (design 10). Sending puts a note into a bounded, coalescing outgoing store and returns; it neither waits
nor raises, from any thread. A process that has not started a `Broadcast` sends nothing: the others notice
what it committed when they re-read the heads, within a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import structlog
from channels.layers import get_channel_layer
from django.core.exceptions import ImproperlyConfigured

from sessions_app.imports import without
from sessions_app.limits import MIB

if TYPE_CHECKING:
    from channels.layers import BaseChannelLayer

logger = structlog.get_logger(__name__)

LAYER_SECONDS = 1.0
"""What one call to the channel layer may take before it counts as failed, and the pause before a failed one
is repeated.
"""

REJOIN_SECONDS = 3600.0
"""The in-memory layer forgets members of a group after a day unless they join again."""

MAX_WAITING_NOTES = 4096
MAX_WAITING_LIVE_BYTES = 8 * MIB
"""What may wait for a layer that is not taking anything; more is dropped."""

MAX_LIVE_MESSAGE_BYTES = MIB

PROCESSES = "processes"
"""The group of every process, for signals."""


Message = dict[str, Any]


def _configured_layer() -> BaseChannelLayer:
    # The layer's encryption is not used, and would load 6 MB into every process.
    with without("cryptography.fernet"):
        layer = get_channel_layer()
    if layer is None:
        raise ImproperlyConfigured("CHANNEL_LAYERS has no default")
    return layer


class Broadcast:
    """The channel layer as one process uses it. Confined to the loop it was started in, but for the three
    senders.
    """

    def __init__(self, layer: BaseChannelLayer | None = None) -> None:
        """Use `layer`, or the one of the settings."""
        self._layer = layer or _configured_layer()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._channel: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._wanted: Counter[str] = Counter()
        self._joined: set[str] = set()
        self._membership_changed = asyncio.Event()
        self._outgoing = _Outgoing()
        self._reachable = True
        self._on_wake: list[Callable[[str, int], None]] = []
        self._on_live: list[Callable[[str, Sequence[bytes]], None]] = []
        self._on_joined: list[Callable[[str], None]] = []
        self._on_signal: dict[str, list[Callable[[str], None]]] = {}

    @property
    def lost(self) -> Counter[str]:
        """How many notes were dropped so far, by kind: wake, live, signal."""
        return self._outgoing.lost

    @property
    def reachable(self) -> bool:
        """Tell whether the last call to the layer succeeded."""
        return self._reachable

    # Handlers: called in the loop, must return quickly; what they raise is logged.

    def on_wake(self, handler: Callable[[str, int], None]) -> None:
        """Call `handler(session_id, head)` when a subscribed session may have grown to sequence `head`."""
        self._on_wake.append(handler)

    def on_live(self, handler: Callable[[str, Sequence[bytes]], None]) -> None:
        """Call `handler(session_id, batch)` with encoded live events of a subscribed session, in order."""
        self._on_live.append(handler)

    def on_joined(self, handler: Callable[[str], None]) -> None:
        """Call `handler(session_id)` when hints of a newly subscribed session begin to arrive; earlier ones
        were missed.
        """
        self._on_joined.append(handler)

    def on_signal(self, name: str, handler: Callable[[str], None]) -> None:
        """Call `handler(subject)` when any process, this one too, sends `name`; it may come twice."""
        self._on_signal.setdefault(name, []).append(handler)

    # Life

    async def start(self) -> None:
        """Begin to send and receive, as the `Broadcast` behind the functions of this module. Never fails."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._wanted[PROCESSES] += 1
        self._tasks = [
            asyncio.create_task(run(), name=f"broadcast {run.__name__}")
            for run in (self._receive, self._keep_membership, self._publish)
        ]
        _install(self)

    async def stop(self) -> None:
        """Leave every group and send no more; what still waits is lost."""
        _uninstall(self)
        self._loop = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    # Membership

    def subscribe(self, session_id: str) -> None:
        """Count one more reader of a session in this process; `on_joined` follows when its hints arrive."""
        self._wanted[session_id] += 1
        self._membership_changed.set()

    def unsubscribe(self, session_id: str) -> None:
        """Undo one `subscribe`."""
        self._wanted[session_id] -= 1
        if self._wanted[session_id] <= 0:
            del self._wanted[session_id]
            self._membership_changed.set()

    # Senders: from any thread

    def wake(self, session_id: str, head: int) -> None:
        """Say that the log of a session reaches `head`: at once in this process, through the layer to all."""
        self._in_loop(self._wake, session_id, head)

    def publish_live(self, session_id: str, batch: Sequence[bytes]) -> None:
        """Send encoded live events of one session, in order, to every process that has readers of it."""
        self._in_loop(self._outgoing.add_live, session_id, batch)

    def signal(self, name: str, subject: str) -> None:
        """Send a signal: at once in this process, through the layer to all (so it comes twice here)."""
        self._in_loop(self._signal, name, subject)

    def _in_loop(self, function: Callable[..., None], *args: Any) -> None:
        loop = self._loop
        if loop is None:
            return
        if threading.get_ident() == self._thread:
            function(*args)
            return
        # The loop closes between the question and the call when the process ends: one more lost hint.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(function, *args)

    def _wake(self, session_id: str, head: int) -> None:
        self._deliver(self._on_wake, session_id, head)
        self._outgoing.add_wake(session_id, head)

    def _signal(self, name: str, subject: str) -> None:
        self._deliver(self._on_signal.get(name, ()), subject)
        self._outgoing.add_signal(name, subject)

    # The three tasks

    async def _publish(self) -> None:
        while True:
            group, message = await self._outgoing.take()
            if not await self._reach(self._layer.group_send(group, message)):
                # The rest would fail alike, each after its own time-out, and be old by then.
                self._outgoing.drop(message)

    async def _receive(self) -> None:
        while True:
            try:
                if self._channel is None:
                    self._channel = await self._layer.new_channel()
                    self._membership_changed.set()
                message = await self._layer.receive(self._channel)
            except Exception as error:  # noqa: BLE001 - whatever the layer raises, the reader goes on
                self._note_reach(error)
                await asyncio.sleep(LAYER_SECONDS)
            else:
                self._handle(message)

    async def _keep_membership(self) -> None:
        while True:
            settled = await self._settle_membership()
            try:
                async with asyncio.timeout(REJOIN_SECONDS if settled else LAYER_SECONDS):
                    await self._membership_changed.wait()
            except TimeoutError:
                if settled:
                    await self._rejoin()
            self._membership_changed.clear()

    async def _rejoin(self) -> None:
        if self._channel is not None:
            for group in list(self._joined):
                await self._reach(self._layer.group_add(group, self._channel))

    async def _settle_membership(self) -> bool:
        """Join and leave what is missing; False when the layer did not do it all."""
        channel = self._channel
        if channel is None:
            return True  # `_receive` sets the event when there is a channel to join with.
        for group in [group for group in self._wanted if group not in self._joined]:
            if not await self._reach(self._layer.group_add(group, channel)):
                return False
            self._joined.add(group)
            if group != PROCESSES and group in self._wanted:
                self._deliver(self._on_joined, group)
        for group in [group for group in self._joined if group not in self._wanted]:
            if not await self._reach(self._layer.group_discard(group, channel)):
                return False
            self._joined.discard(group)
        return True

    async def _reach(self, call: Coroutine[Any, Any, Any]) -> bool:
        """Await a call to the layer for a bounded time; False when it failed."""
        try:
            async with asyncio.timeout(LAYER_SECONDS):
                await call
        except Exception as error:  # noqa: BLE001 - each layer has its own errors, and every loss is allowed for
            self._note_reach(error)
            return False
        self._note_reach(None)
        return True

    def _note_reach(self, error: Exception | None) -> None:
        """Log the beginning and the end of an outage, not every call of it."""
        reachable = error is None
        if reachable != self._reachable:
            self._reachable = reachable
            logger.warning(
                "broadcast.reach", reachable=reachable, error=type(error).__name__ if error else None
            )

    # What arrived

    def _handle(self, message: Message) -> None:
        match message:
            case {"type": "wake", "session": str(session_id), "head": int(head)}:
                self._deliver(self._on_wake, session_id, head)
            case {"type": "live", "session": str(session_id), "batch": list(batch)}:
                self._deliver(self._on_live, session_id, batch)
            case {"type": "signal", "name": str(name), "subject": str(subject)}:
                self._deliver(self._on_signal.get(name, ()), subject)
            case _:
                logger.warning("broadcast.unknown", type=message.get("type"))

    @staticmethod
    def _deliver(handlers: Iterable[Callable[..., None]], *args: Any) -> None:
        for handler in handlers:
            try:
                handler(*args)
            except Exception:
                logger.exception("broadcast.handler")


class _Outgoing:
    """What waits for the layer: the newest head per session, live events in order, signals once. Confined to
    the loop.
    """

    def __init__(self) -> None:
        self.lost: Counter[str] = Counter()
        self._signals: dict[tuple[str, str], None] = {}
        self._heads: dict[str, int] = {}
        self._live: dict[str, deque[bytes]] = {}
        self._live_bytes = 0
        self._something = asyncio.Event()

    def add_signal(self, name: str, subject: str) -> None:
        if len(self._signals) >= MAX_WAITING_NOTES:
            self.lost["signal"] += 1
            return
        self._signals[name, subject] = None
        self._something.set()

    def add_wake(self, session_id: str, head: int) -> None:
        if len(self._heads) >= MAX_WAITING_NOTES and session_id not in self._heads:
            self.lost["wake"] += 1
            return
        self._heads[session_id] = max(head, self._heads.get(session_id, 0))
        self._something.set()

    def add_live(self, session_id: str, batch: Sequence[bytes]) -> None:
        for event in batch:
            if self._live_bytes + len(event) > MAX_WAITING_LIVE_BYTES:
                self.lost["live"] += 1
                continue
            self._live.setdefault(session_id, deque()).append(event)
            self._live_bytes += len(event)
            self._something.set()

    async def take(self) -> tuple[str, Message]:
        """Wait for something to send; return its group and message: signals first, then heads, then live
        events.
        """
        await self._something.wait()
        group, message = self._next()
        if not (self._signals or self._heads or self._live):
            self._something.clear()
        return group, message

    def _next(self) -> tuple[str, Message]:
        if self._signals:
            name, subject = next(iter(self._signals))
            del self._signals[name, subject]
            return PROCESSES, {"type": "signal", "name": name, "subject": subject}
        if self._heads:
            session_id = next(iter(self._heads))
            return session_id, {"type": "wake", "session": session_id, "head": self._heads.pop(session_id)}
        session_id, waiting = next(iter(self._live.items()))
        batch: list[bytes] = []
        size = 0
        while waiting and (not batch or size + len(waiting[0]) <= MAX_LIVE_MESSAGE_BYTES):
            size += len(waiting[0])
            batch.append(waiting.popleft())
        self._live_bytes -= size
        if not waiting:
            del self._live[session_id]
        return session_id, {"type": "live", "session": session_id, "batch": batch}

    def drop(self, message: Message) -> None:
        """Give up a message that could not be sent, and everything behind it."""
        self.lost[message["type"]] += len(message.get("batch", "."))
        self.lost["signal"] += len(self._signals)
        self.lost["wake"] += len(self._heads)
        self.lost["live"] += sum(map(len, self._live.values()))
        self._signals.clear()
        self._heads.clear()
        self._live.clear()
        self._live_bytes = 0
        self._something.clear()


_started: Broadcast | None = None


def _install(broadcast: Broadcast) -> None:
    global _started
    _started = broadcast


def _uninstall(broadcast: Broadcast) -> None:
    global _started
    if _started is broadcast:
        _started = None


def wake(session_id: str, head: int) -> None:
    """Say, from any thread, that the log of a session reaches `head`. Returns at once and never fails."""
    if _started is not None:
        _started.wake(session_id, head)


def publish_live(session_id: str, batch: Sequence[bytes]) -> None:
    """Send encoded live events of one session, in order, from any thread. Returns at once; never fails."""
    if _started is not None:
        _started.publish_live(session_id, batch)


def signal(name: str, subject: str) -> None:
    """Send a signal to every process, this one included, from any thread. Returns at once; never fails."""
    if _started is not None:
        _started.signal(name, subject)
