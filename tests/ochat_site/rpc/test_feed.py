"""Every subscriber is sent every durable event once and in order, whatever the layer and its socket do."""

import asyncio

import pytest

from ochat_site.rpc.feed import FeedHub
from ochat_site.rpc.outbox import Outbox
from ochat_site.rpc.session_feed import Subscription
from sessions_app import limits
from sessions_app.limits import ServerSettings
from sessions_app.views import FULL, TRANSCRIPT, View
from tests.support.feed_doubles import (
    CountingDialect,
    FakeLog,
    FakeSocket,
    FakeWakes,
    live,
    sequences,
    settle,
    told,
)
from tests.support.waiting import eventually

SESSION = "ses_a"


class World:
    """A hub over a log in memory, and its clients."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.wakes = FakeWakes()
        self.dialect = CountingDialect()
        self.hub = FeedHub(self.log, self.wakes)
        self.slow: list[Subscription] = []

    def client(
        self,
        after: int | None = None,
        *,
        session: str = SESSION,
        view: View = FULL,
        socket: FakeSocket | None = None,
        released: bool = True,
        max_event_bytes: int | None = None,
    ) -> tuple[FakeSocket, Subscription]:
        socket = socket or FakeSocket()
        outbox = Outbox(socket, lambda: None)
        socket.receiver = outbox
        subscription = self.hub.subscribe(
            session,
            self.log.head(session) if after is None else after,
            outbox=outbox,
            view=view,
            dialect=self.dialect,
            max_event_bytes=max_event_bytes,
            on_slow=lambda: self.slow.append(subscription),
        )
        if released:
            subscription.release()
        return socket, subscription

    def commit(self, count: int = 1, *, kind: str = "session.updated", payload: bytes = b"{}") -> int:
        """Commit events and wake the hub once."""
        head = 0
        for _ in range(count):
            head = self.log.commit(SESSION, kind, payload)
        self.hub.wake(SESSION, head)
        return head

    def end_operation(self, operation: str) -> int:
        return self.commit(kind="operation.completed", payload=b'{"id":"%s"}' % operation.encode())


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_subscriber_is_sent_what_comes_behind_its_attach(world: World) -> None:
    world.commit(3)
    socket, _ = world.client()

    world.commit(2)
    await settle()

    assert sequences(socket) == [4, 5]


async def test_everybody_shares_one_encoding_per_view(world: World) -> None:
    sockets = [world.client(view=FULL if number % 2 else TRANSCRIPT)[0] for number in range(50)]
    await settle()
    world.log.reads.clear()

    world.commit()
    await settle()

    assert all(sequences(socket) == [1] for socket in sockets)
    assert world.dialect.encoded == 2
    assert world.log.reads == [(SESSION, 0)]
    assert len({id(socket.sent[0]) for socket in sockets}) == 2


async def test_each_reader_gets_its_own_view(world: World) -> None:
    powerful, _ = world.client(view=FULL)
    reader, subscription = world.client(view=TRANSCRIPT)

    world.commit()
    await settle()
    subscription.view = FULL
    world.commit()
    await settle()

    assert [event.full for event in told(powerful)] == [True, True]
    assert [event.full for event in told(reader)] == [False, True]


async def test_an_idle_subscriber_costs_no_task_and_no_read(world: World) -> None:
    for _ in range(10):
        world.client()
    await settle()
    world.log.reads.clear()

    world.hub.wake(SESSION, 0)
    await settle()

    assert world.log.reads == []
    assert len(asyncio.all_tasks()) == 1


async def test_nothing_is_sent_before_the_attach_is_answered(world: World) -> None:
    socket, subscription = world.client(released=False)

    world.commit(3)
    world.hub.live(SESSION, [live("opn_a", 1, 3)])
    await settle()
    assert socket.sent == []
    subscription.release()
    await settle()

    assert [event.sequence or event.operation for event in told(socket)] == [1, 2, 3, "opn_a"]


async def test_lost_and_doubled_hints_lose_and_double_nothing(world: World) -> None:
    socket, _ = world.client()
    for _ in range(5):
        world.log.commit(SESSION)

    for head in (2, 2, 1, 0, 2, 5, 5):
        world.hub.wake(SESSION, head)
        await settle()
    assert sequences(socket) == [1, 2, 3, 4, 5]
    world.log.commit(SESSION)
    ticker = asyncio.create_task(world.hub.run())
    await eventually(lambda: len(sequences(socket)) > 5, "the event whose hint was lost")
    ticker.cancel()

    assert sequences(socket) == [1, 2, 3, 4, 5, 6]
    assert world.log.head_reads == 1


async def test_one_query_looks_after_all_sessions(world: World) -> None:
    sockets = [world.client(session=f"ses_{number}")[0] for number in range(20)]
    for number in range(20):
        world.log.commit(f"ses_{number}")

    ticker = asyncio.create_task(world.hub.run())
    await eventually(lambda: all(sequences(socket) == [1] for socket in sockets), "every session")
    ticker.cancel()

    assert world.log.head_reads == 1


async def test_what_was_committed_before_hints_began_is_found(world: World) -> None:
    socket, _ = world.client()
    world.log.commit(SESSION)

    world.hub.joined(SESSION)
    await settle()

    assert sequences(socket) == [1]


async def test_a_hint_ahead_of_the_log_does_no_harm(world: World) -> None:
    socket, _ = world.client()

    world.hub.wake(SESSION, 4)
    await settle()
    world.commit(5)
    await settle()

    assert sequences(socket) == [1, 2, 3, 4, 5]


async def test_a_failing_store_delays_and_loses_nothing(world: World) -> None:
    world.log.failing = True
    socket, _ = world.client()
    world.commit(2)
    await settle()
    assert sequences(socket) == []

    world.log.failing = False
    world.hub.wake(SESSION, 2)
    await settle()

    assert sequences(socket) == [1, 2]


async def test_a_reader_that_lags_catches_up_in_order(world: World) -> None:
    socket, subscription = world.client(socket=FakeSocket(full_at=10_000, reads=False))
    keeping_up, _ = world.client()

    with limits.using(ServerSettings(subscriber_queue_capacity=100_000)):
        for _ in range(100):
            world.commit(100)
            await settle()
    assert 0 < subscription.cursor < 1000
    assert sequences(keeping_up) == list(range(1, 10_001))
    while subscription.cursor < 10_000:
        cursor = subscription.cursor
        socket.take()
        await settle()
        assert subscription.cursor > cursor

    assert sequences(socket) == list(range(1, 10_001))
    assert world.slow == []


async def test_a_lone_reader_that_lags_reads_nothing_twice(world: World) -> None:
    socket, _ = world.client(socket=FakeSocket(full_at=1000, reads=False))

    world.commit(500)
    await settle()
    while len(sequences(socket)) < 500:
        socket.take()
        await settle()

    assert sequences(socket) == list(range(1, 501))
    assert len(world.log.reads) == 4


async def test_laggards_hold_back_nobody(world: World) -> None:
    laggards = [world.client(socket=FakeSocket(full_at=100, reads=False))[0] for _ in range(5)]
    healthy, _ = world.client()

    for _ in range(300):
        world.commit()
        await settle()

    assert sequences(healthy) == list(range(1, 301))
    assert all(len(sequences(socket)) < 10 for socket in laggards)


async def test_a_socket_that_takes_nothing_for_too_long_is_slow(world: World) -> None:
    stuck, subscription = world.client(socket=FakeSocket(full_at=100, reads=False))
    lagging, _ = world.client(socket=FakeSocket(full_at=100, reads=False))
    healthy, _ = world.client()

    with limits.using(ServerSettings(subscriber_queue_capacity=16)):
        while not world.slow and world.log.head(SESSION) < 100:
            world.commit()
            await settle()
            lagging.take(1)

    sent = len(sequences(stuck))
    assert world.slow == [subscription]
    # It was sent events until its socket was full, and one was refused before the counting began.
    assert world.log.head(SESSION) == sent + 1 + 16 + 1
    world.commit(3)
    await settle()
    assert len(sequences(stuck)) == sent
    assert sequences(healthy) == list(range(1, world.log.head(SESSION) + 1))


async def test_an_event_larger_than_its_client_takes_ends_the_subscription(world: World) -> None:
    socket, subscription = world.client(max_event_bytes=300)
    world.commit(2)
    world.commit(payload=b"x" * 300)
    world.commit()
    await settle()

    assert sequences(socket) == [1, 2]
    assert world.slow == [subscription]


async def test_a_reader_behind_what_is_retained_is_told(world: World) -> None:
    socket, subscription = world.client(socket=FakeSocket(full_at=100, reads=False))
    healthy, _ = world.client()
    world.commit(10)
    await settle()
    for _ in range(3):
        world.commit(100)
        await settle()

    world.log.removed[SESSION] = 150
    for _ in range(10):
        socket.take()
        await settle()

    assert world.slow == [subscription]
    assert sequences(healthy) == list(range(1, 311))


async def test_a_closed_subscription_is_sent_nothing(world: World) -> None:
    socket, subscription = world.client()
    other, _ = world.client()
    world.commit()
    await settle()

    subscription.close()
    subscription.close()
    world.commit()
    await settle()

    assert sequences(socket) == [1]
    assert sequences(other) == [1, 2]


async def test_a_session_without_subscribers_is_no_longer_listened_to(world: World) -> None:
    _, subscription = world.client()
    _, other = world.client()
    assert world.wakes.sessions[SESSION] == 1

    subscription.close()
    other.close()
    ticker = asyncio.create_task(world.hub.run())
    await eventually(lambda: not world.wakes.sessions[SESSION], "leaving")
    ticker.cancel()

    socket, _ = world.client()
    world.commit()
    await settle()
    assert sequences(socket) == [1]


async def test_who_attaches_ahead_of_the_hints_misses_and_repeats_nothing(world: World) -> None:
    early, _ = world.client()
    for _ in range(3):
        world.log.commit(SESSION)

    late, _ = world.client()
    world.commit(2)
    await settle()

    assert sequences(early) == [1, 2, 3, 4, 5]
    assert sequences(late) == [4, 5]


async def test_who_attaches_behind_the_others_catches_up(world: World) -> None:
    early, _ = world.client()
    world.commit(400)
    await settle()

    late, _ = world.client(after=10)
    await settle()
    world.commit()
    await settle()

    assert sequences(late) == list(range(11, 402))
    assert sequences(early) == list(range(1, 402))


@pytest.mark.parametrize("followers", [1, 10])
async def test_who_takes_over_from_readers_that_left_meanwhile_begins_at_its_own_place(
    world: World, followers: int
) -> None:
    world.commit(100)
    leaving = [world.client()[1] for _ in range(followers)]
    socket, staying = world.client(after=0, released=False)
    for _ in range(128):
        world.log.commit(SESSION)

    world.hub.wake(SESSION, 228)
    # One follower leaves while the log is read, ten in the middle of being handed it.
    while not world.log.reads or (followers > 1 and leaving[0].cursor == 100):  # noqa: ASYNC110 - turn by turn
        await asyncio.sleep(0)
    assert leaving[0].cursor < 228
    for subscription in leaving:
        subscription.close()
    staying.release()
    await settle()

    assert sequences(socket) == list(range(1, 229))
    assert world.slow == []


class TestLiveEvents:
    """Behaviour 8.5, over a feed."""

    async def test_they_go_to_readers_with_security_read(self, world: World) -> None:
        powerful, _ = world.client(view=FULL)
        reader, _ = world.client(view=TRANSCRIPT)
        world.commit()
        await settle()

        world.hub.live(SESSION, [live("opn_a", 1, 1), b"broken", live("opn_a", 2, 1)])

        assert [event.number for event in told(powerful) if event.kind == "live"] == [1, 2]
        assert [event.kind for event in told(reader)] == ["session.updated"]

    async def test_they_come_behind_their_anchor(self, world: World) -> None:
        socket, _ = world.client()
        world.log.commit(SESSION)
        world.log.commit(SESSION)

        world.hub.live(SESSION, [live("opn_a", 1, 2)])
        await settle()

        assert [event.sequence or event.operation for event in told(socket)] == [1, 2, "opn_a"]

    async def test_they_come_before_the_end_of_their_operation_or_not(self, world: World) -> None:
        socket, _ = world.client()
        world.log.commit(SESSION)
        world.hub.live(SESSION, [live("opn_a", 1, 1)])
        world.end_operation("opn_a")
        await settle()

        world.hub.live(SESSION, [live("opn_a", 2, 1), live("opn_b", 1, 2)])
        await settle()

        assert [event.sequence or event.operation for event in told(socket)] == [1, "opn_a", 2, "opn_b"]

    async def test_who_attaches_in_the_middle_gets_those_of_the_running_operation(self, world: World) -> None:
        started = world.commit()
        world.commit(4)
        socket, _ = world.client()

        world.hub.live(SESSION, [live("opn_a", 7, started)])
        await settle()

        assert [event.number for event in told(socket)] == [7]

    async def test_who_attaches_behind_the_end_gets_none(self, world: World) -> None:
        started = world.commit()
        world.end_operation("opn_a")
        world.commit()
        socket, _ = world.client()

        world.hub.live(SESSION, [live("opn_a", 7, started), live("opn_b", 1, 3)])
        await settle()

        assert [event.operation for event in told(socket)] == ["opn_b"]

    async def test_a_busy_socket_gets_durable_events_and_perhaps_live_ones(self, world: World) -> None:
        socket, _ = world.client(socket=FakeSocket(full_at=1000, reads=False))
        for number in range(1, 400):
            head = world.commit()
            world.hub.live(SESSION, [live("opn_a", number, head)])
            await settle()
        while len(sequences(socket)) < 399:
            socket.take()
            await settle()

        events = told(socket)
        assert [event.sequence for event in events if event.kind != "live"] == list(range(1, 400))
        for position, event in enumerate(events):
            if event.kind == "live":
                assert any(other.sequence == event.anchor for other in events[:position])
