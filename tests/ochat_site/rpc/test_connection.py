"""One client's connection: order, answers, attachments, and one end (behaviour 1.4, 5.6, 8.3)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ochat_site.rpc.connection import INBOX_FRAMES, Connection, Connections, ConnectionServices
from ochat_site.rpc.feed import FeedHub
from ochat_site.rpc.outbox import Closing
from permissions_app.principals import Identity
from sessions_app import limits
from sessions_app.limits import ServerSettings
from sessions_app.records import Principal
from sessions_app.views import FULL
from tests.support.feed_doubles import (
    CountingDialect,
    FakeLog,
    FakeSocket,
    FakeWakes,
    live,
    sequences,
    settle,
)

IDENTITY = Identity(Principal(id="pri_a", authentication_kind="http.static_bearer", scopes=(), attributes={}))
SESSION = "ses_a"


class World:
    """Connections over a handler that the test writes."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.hub = FeedHub(self.log, FakeWakes())
        self.closed: list[str] = []
        self.handled: list[bytes] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.on_handle: Callable[[Connection, bytes], Awaitable[bytes | None]] = self.echo

    async def echo(self, connection: Connection, body: bytes) -> bytes | None:
        return b"answer to " + body

    async def handle(self, connection: Connection, body: bytes) -> bytes | None:
        await self.go_on.wait()
        self.handled.append(body)
        return await self.on_handle(connection, body)

    async def on_close(self, connection: Connection) -> None:
        self.closed.append(connection.connection_id)

    def connect(self, socket: FakeSocket | None = None, name: str = "con_a") -> tuple[FakeSocket, Connection]:
        socket = socket or FakeSocket()
        services = ConnectionServices(
            handle=self.handle, hub=self.hub, dialect=CountingDialect(), on_close=self.on_close
        )
        connection = Connection(name, IDENTITY, socket, services)
        socket.receiver = connection
        return socket, connection

    def commit(self) -> None:
        self.hub.wake(SESSION, self.log.commit(SESSION))


@pytest.fixture
async def world() -> World:
    return World()


async def attach(connection: Connection, body: bytes) -> bytes:
    connection.open_attachment("att_a", SESSION, "read_only", view=FULL, after=0)
    return b"attached"


async def closed(connection: Connection) -> None:
    async with asyncio.timeout(30):
        await connection.wait_closed()


async def test_calls_run_one_after_another_and_are_answered_in_order(world: World) -> None:
    socket, connection = world.connect()
    running = 0

    async def slower_and_faster(connection: Connection, body: bytes) -> bytes:
        nonlocal running
        running += 1
        assert running == 1
        for _ in range(5 - len(world.handled)):
            await asyncio.sleep(0)
        running -= 1
        return body

    world.on_handle = slower_and_faster
    for number in range(5):
        connection.received(b"%d" % number)
    await settle()

    assert socket.sent == [b"0", b"1", b"2", b"3", b"4"]


async def test_connections_do_not_wait_for_each_other(world: World) -> None:
    stuck, first = world.connect()
    socket, second = world.connect(name="con_b")

    async def wait_for_the_first(connection: Connection, body: bytes) -> bytes:
        if connection is first:
            await asyncio.Event().wait()
        return body

    world.on_handle = wait_for_the_first
    first.received(b"1")
    second.received(b"2")
    await settle()

    assert (stuck.sent, socket.sent) == ([], [b"2"])


async def test_a_notification_is_answered_with_nothing(world: World) -> None:
    socket, connection = world.connect()

    async def nothing(connection: Connection, body: bytes) -> None:
        return None

    world.on_handle = nothing
    connection.received(b"ping")
    await settle()

    assert socket.sent == []
    assert world.handled == [b"ping"]


async def test_a_client_that_asks_too_fast_is_not_read_for_a_while(world: World) -> None:
    world.go_on.clear()
    socket, connection = world.connect()

    for number in range(INBOX_FRAMES):
        assert not socket.paused
        connection.received(b"%d" % number)
    was_paused = socket.paused
    world.go_on.set()
    await settle()
    await settle()

    assert was_paused
    assert not socket.paused
    assert len(socket.sent) == INBOX_FRAMES


async def test_a_large_message_is_handled_before_more_is_read(world: World) -> None:
    world.go_on.clear()
    socket, connection = world.connect()

    connection.received(bytes(limits.MAX_FRAME_BYTES))
    was_paused = socket.paused
    world.go_on.set()
    await settle()

    assert was_paused
    assert not socket.paused


async def test_nothing_of_a_session_passes_the_answer_of_its_attach(world: World) -> None:
    socket, connection = world.connect()

    async def attach_slowly(connection: Connection, body: bytes) -> bytes:
        await attach(connection, body)
        for _ in range(3):
            world.commit()
            world.hub.live(SESSION, [live("opn_a", world.log.head(SESSION), 1)])
            await settle()
        return b"attached"

    world.on_handle = attach_slowly
    connection.received(b"attach")
    for _ in range(6):
        await settle()
    world.commit()
    await settle()

    assert socket.sent[0] == b"attached"
    assert sequences(socket) == [1, 2, 3, 4]


async def test_events_come_between_answers(world: World) -> None:
    socket, connection = world.connect()
    world.on_handle = attach
    connection.received(b"attach")
    await settle()
    world.on_handle = world.echo

    world.commit()
    await settle()
    connection.received(b"ping")
    await settle()
    world.commit()
    await settle()

    kinds = ["event" if body.startswith(b"{") else body.decode() for body in socket.sent]
    assert kinds == ["attached", "event", "answer to ping", "event"]


async def test_a_detached_session_is_heard_no_more(world: World) -> None:
    socket, connection = world.connect()
    world.on_handle = attach
    connection.received(b"attach")
    await settle()
    assert list(connection.attachments) == ["att_a"]

    connection.close_attachment("att_a")
    connection.close_attachment("att_unknown")
    world.commit()
    await settle()

    assert sequences(socket) == []
    assert connection.attachments == {}


async def test_a_replayed_attach_goes_on_behind_its_newer_answer(world: World) -> None:
    socket, connection = world.connect()
    world.on_handle = attach
    connection.received(b"attach")
    await settle()
    world.commit()
    await settle()

    async def attach_again(connection: Connection, body: bytes) -> bytes:
        world.commit()
        connection.open_attachment("att_a", SESSION, "read_only", view=FULL, after=2)
        return b"attached again"

    world.on_handle = attach_again
    connection.received(b"attach")
    await settle()
    world.commit()
    await settle()

    assert sequences(socket)[-1] == 3
    assert sequences(socket) == [*range(1, len(sequences(socket))), 3]


async def test_a_view_may_change(world: World) -> None:
    _, connection = world.connect()
    world.on_handle = attach
    connection.received(b"attach")
    await settle()

    attachment = connection.attachments["att_a"]
    attachment.view = FULL

    assert attachment.subscription.view is attachment.view is FULL


class TestTheEnd:
    """Every way to end detaches once, behind the call that runs."""

    async def test_a_client_that_goes(self, world: World) -> None:
        socket, connection = world.connect()
        world.on_handle = attach
        connection.received(b"attach")
        await settle()

        connection.lost()
        connection.lost()
        connection.close(Closing.SLOW)
        await closed(connection)
        world.commit()
        await settle()

        assert world.closed == ["con_a"]
        assert socket.closed is None
        assert sequences(socket) == []
        assert connection.attachments == {}

    async def test_a_call_that_runs_is_finished_first(self, world: World) -> None:
        world.go_on.clear()
        world.on_handle = attach
        socket, connection = world.connect()
        connection.received(b"attach")
        connection.received(b"never handled")
        await settle()

        connection.lost()
        await settle()
        assert world.closed == []
        world.go_on.set()
        await closed(connection)

        assert world.handled == [b"attach"]
        assert world.closed == ["con_a"]
        assert socket.sent == []
        assert connection.attachments == {}

    async def test_a_handler_that_fails(self, world: World) -> None:
        async def fail(connection: Connection, body: bytes) -> bytes:
            raise ValueError(body)

        world.on_handle = fail
        socket, connection = world.connect()
        connection.received(b"x")
        await closed(connection)

        assert socket.closed is Closing.FAILED
        assert world.closed == ["con_a"]

    async def test_a_failing_detach_is_the_end_too(self, world: World) -> None:
        async def fail(connection: Connection) -> None:
            raise ValueError(connection)

        services = ConnectionServices(
            handle=world.handle, hub=world.hub, dialect=CountingDialect(), on_close=fail
        )
        connection = Connection("con_a", IDENTITY, FakeSocket(), services)
        connection.lost()

        await closed(connection)

    async def test_an_answer_that_does_not_fit(self, world: World) -> None:
        socket, connection = world.connect(FakeSocket(full_at=10, reads=False))

        async def large(connection: Connection, body: bytes) -> bytes:
            return bytes(limits.MAX_FRAME_BYTES)

        world.on_handle = large
        for _ in range(4):
            connection.received(b"x")
        await closed(connection)

        assert socket.closed is Closing.SLOW
        # One the socket holds, one in the queue, and one too many.
        assert len(world.handled) == 3

    async def test_a_slow_subscriber(self, world: World) -> None:
        socket, connection = world.connect(FakeSocket(full_at=100, reads=False))
        world.on_handle = attach
        connection.received(b"attach")
        await settle()

        with limits.using(ServerSettings(subscriber_queue_capacity=8)):
            for _ in range(30):
                world.commit()
                await settle()
        await closed(connection)

        assert socket.closed is Closing.SLOW
        assert world.closed == ["con_a"]

    async def test_nothing_is_taken_afterwards(self, world: World) -> None:
        socket, connection = world.connect()
        connection.close(Closing.CREDENTIAL_ENDED)
        connection.received(b"x")
        await attach(connection, b"")
        await closed(connection)

        assert connection.is_closing
        assert world.handled == []
        assert connection.attachments == {}
        assert socket.closed is Closing.CREDENTIAL_ENDED


class TestDraining:
    """Behaviour 14.3, for the connections of a web process."""

    @pytest.fixture
    async def connections(self, world: World) -> AsyncIterator[Connections]:
        connections = Connections()
        tasks: list[asyncio.Task[None]] = []
        for name in ("con_a", "con_b"):
            _, connection = world.connect(name=name)
            tasks.append(asyncio.create_task(connections.hold(connection)))
        await settle()
        yield connections
        for task in tasks:
            task.cancel()

    async def test_calls_received_are_answered_and_all_closed(
        self, world: World, connections: Connections
    ) -> None:
        assert len(connections) == 2
        world.go_on.clear()
        for connection in connections:
            connection.received(b"1")
            connection.received(b"2")
        draining = asyncio.create_task(connections.drain())
        await settle()
        for connection in connections:
            connection.received(b"too late")
        assert not draining.done()

        world.go_on.set()
        async with asyncio.timeout(30):
            await draining
        await settle()

        assert sorted(world.handled) == [b"1", b"1", b"2", b"2"]
        assert sorted(world.closed) == ["con_a", "con_b"]
        assert len(connections) == 0

    async def test_a_client_that_does_not_read_is_waited_for(self, world: World) -> None:
        socket, connection = world.connect(FakeSocket(full_at=10, reads=False))
        connection.received(b"1")
        connection.received(b"2")
        await settle()
        draining = asyncio.create_task(connection.drain())
        await settle()
        assert socket.closed is None

        socket.take()
        socket.take()
        async with asyncio.timeout(30):
            await draining

        assert socket.sent == [b"answer to 1", b"answer to 2"]
        assert socket.closed is Closing.DRAINING
