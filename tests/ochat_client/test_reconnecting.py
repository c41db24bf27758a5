"""One session over many connections: nothing missed, nothing twice, nothing done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from itertools import islice

import pytest

from ochat_client import (
    Backoff,
    Client,
    ConnectionLost,
    ConnectionRefused,
    Durable,
    Lagged,
    Live,
    Lost,
    ProtocolError,
    ProtocolViolation,
    ReconnectingSession,
    Replaced,
    Restored,
    SequenceGap,
    Update,
    differences,
    methods,
)
from ochat_client.notifications import MAX_EVENTS
from ochat_site.dialects.ochat1.types import PingParams, SessionGetParams
from sessions_app.records import AttachmentMode, OperationCompleted
from tests.ochat_client.agent import SESSION, Agent, entry
from tests.ochat_client.server import Refused, Server, serving

AT_ONCE = Backoff(first=0.0)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(Agent()) as running:
        yield running


@asynccontextmanager
async def opened(server: Server, mode: AttachmentMode = "read_write") -> AsyncIterator[ReconnectingSession]:
    async with await ReconnectingSession.open(
        partial(Client.connect, server.uri), SESSION, mode=mode, backoff=AT_ONCE
    ) as session:
        yield session


async def until(session: ReconnectingSession, condition: Callable[[Update], bool]) -> list[Update]:
    """Iterate up to the first update that meets a condition, and return all."""
    updates: list[Update] = []
    async for update in session:
        updates.append(update)
        if condition(update):
            return updates
    raise AssertionError("the session ended")


async def caught_up(session: ReconnectingSession, server: Server) -> list[Update]:
    """Iterate until the projection is where the log is."""
    updates: list[Update] = []
    while session.projection.sequence < server.agent.sequence:
        updates.append(await anext(session))
    return updates


def sequences(updates: list[Update]) -> list[int]:
    return [update.event.sequence for update in updates if isinstance(update, Durable)]


def kinds(updates: list[Update]) -> list[type]:
    return [type(update) for update in updates]


def a_turn(agent: Agent) -> None:
    """Eight events behind the message that starts it."""
    agent.ready()
    agent.append(entry(agent.number(), "call_1", "assistant", "tool_call"))
    agent.append(entry(agent.number(), "call_1", "tool", "tool_output"))
    agent.send("and then?")
    agent.adopt()
    agent.append(entry(agent.number(), "hi", "assistant"))
    agent.end("operation.completed", OperationCompleted())


EVENTS_OF_A_TURN = 11


@pytest.mark.parametrize("index", range(EVENTS_OF_A_TURN + 1))
async def test_a_connection_lost_at_any_event_loses_none(server: Server, index: int) -> None:
    server.cuts.append(index)
    async with opened(server) as session:
        assert isinstance(await anext(session), Replaced)
        server.agent.send("hello")
        a_turn(server.agent)
        await server.publish()
        updates = await until(session, lambda update: isinstance(update, Restored))
        updates += await caught_up(session, server)

        assert sequences(updates) == list(range(2, server.agent.sequence + 1))
        assert server.agent.sequence == EVENTS_OF_A_TURN + 1
        assert kinds(updates).count(Lost) == 1
        assert updates[index + 1] == Restored(missed=EVENTS_OF_A_TURN - index)
        assert server.called("session.attach")[1]["after_sequence"] == 1 + index
        assert differences(session.projection.snapshot(), server.agent.snapshot()) == []


async def test_a_connection_lost_at_every_event_loses_none(server: Server) -> None:
    server.cuts.extend([1] * EVENTS_OF_A_TURN)
    async with opened(server) as session:
        await anext(session)
        updates: list[Update] = []
        server.agent.send("hello")
        for step in (a_turn, *[Agent.notify] * EVENTS_OF_A_TURN):
            step(server.agent)
            await server.publish()
            updates += await caught_up(session, server)

        assert sequences(updates) == list(range(2, server.agent.sequence + 1))
        keys = {params["idempotency_key"] for params in server.called("session.attach")}
        assert len(keys) == len(server.called("session.attach")) > 2


async def test_live_events_go_on_after_a_reconnect_and_the_gap_is_known(server: Server) -> None:
    agent = server.agent
    async with opened(server) as session:
        await anext(session)
        agent.send("hello")
        await server.publish()
        coming = entry(agent.numbers).id
        await server.tell(agent.delta("Hel", coming))
        await until(session, lambda update: isinstance(update, Live))
        server.connections[0].abort()
        agent.delta("lo, ", coming)
        await until(session, lambda update: isinstance(update, Restored))
        await server.tell(agent.delta("world", coming))
        await until(session, lambda update: isinstance(update, Live))

        stream = session.projection.streams[coming]
        assert (stream.text, stream.has_gap) == ("Helworld", True)


async def test_a_cursor_that_is_no_longer_retained_brings_a_snapshot(server: Server) -> None:
    async with opened(server) as session:
        await anext(session)
        server.connections[0].abort()
        server.agent.send("hello")
        a_turn(server.agent)
        server.retained_from = 5
        updates = await caught_up(session, server)

        assert kinds(updates) == [Lost, Restored, Replaced]
        assert differences(session.projection.snapshot(), server.agent.snapshot()) == []


async def test_a_gap_is_repaired_by_a_snapshot(server: Server) -> None:
    async with opened(server) as session:
        await anext(session)
        for _ in range(3):
            server.agent.notify()
        await server.tell(server.agent.log[1], server.agent.log[3])
        updates = await caught_up(session, server)

        assert kinds(updates) == [Durable, Lost, Restored, Replaced]
        assert isinstance(updates[1], Lost)
        assert isinstance(updates[1].error, SequenceGap)
        assert "after_sequence" not in server.called("session.attach")[1]

        server.connections[-1].abort()
        await until(session, lambda update: isinstance(update, Restored))
        assert server.called("session.attach")[2]["after_sequence"] == server.agent.sequence


async def test_events_out_of_order_and_repeated_are_sorted_out(server: Server) -> None:
    async with opened(server) as session:
        await anext(session)
        for _ in range(4):
            server.agent.notify()
        log = server.agent.log
        await server.tell(log[1], log[1], log[0], log[2], log[1], log[4])
        await server.publish()
        updates = await caught_up(session, server)

        assert sequences(updates) == [2, 3]
        assert session.projection.sequence == 5


async def test_an_unreadable_event_is_repaired_by_a_snapshot(server: Server) -> None:
    async with opened(server) as session:
        await anext(session)
        await server.open[0].socket.send('{"jsonrpc":"2.0","method":"session.event","params":{}}')
        updates = await until(session, lambda update: isinstance(update, Replaced))
        assert isinstance(updates[0], Lost)
        assert isinstance(updates[0].error, ProtocolViolation)


async def test_who_reads_too_slowly_attaches_again(server: Server) -> None:
    async with opened(server) as session:
        await anext(session)
        for _ in range(MAX_EVENTS + 1):
            server.agent.notify()
        await server.publish()
        await session.call(methods.PING, PingParams())
        updates = await caught_up(session, server)

        assert kinds(updates[:2]) == [Lost, Restored]
        assert isinstance(updates[0], Lost)
        assert isinstance(updates[0].error, Lagged)
        assert sequences(updates) == list(range(2, server.agent.sequence + 1))


async def test_a_cursor_from_another_life_is_not_used(server: Server) -> None:
    for _ in range(5):
        server.agent.notify()
    async with opened(server) as session:
        await anext(session)
        server.connections[0].abort()
        server.agent = Agent()
        server.agent.notify()
        updates = await until(session, lambda update: isinstance(update, Replaced))

        assert kinds(updates) == [Lost, Restored, Replaced]
        assert session.projection.sequence == 2
        assert [params.get("after_sequence") for params in server.called("session.attach")] == [None, 6, None]


async def test_another_server_is_given_no_cursor(server: Server) -> None:
    async with opened(server) as session:
        await anext(session)
        server.connections[0].abort()
        server.server_id = "srv_2"
        await until(session, lambda update: isinstance(update, Replaced))
        assert "after_sequence" not in server.called("session.attach")[1]


async def test_the_reclaim_token_of_an_owner_is_presented_and_renewed(server: Server) -> None:
    async with opened(server, "owner_read_write") as session:
        for _ in range(2):
            server.connections[-1].abort()
            await until(session, lambda update: isinstance(update, Restored))
    attaches = server.called("session.attach")
    assert [params["requested_mode"] for params in attaches] == ["owner_read_write"] * 3
    assert [params.get("reclaim_token") for params in attaches] == [None, "token-att_0_0", "token-att_1_0"]


# When it takes several attempts, or none will do


async def test_it_goes_on_trying_while_that_may_help(server: Server) -> None:
    attempts: list[str] = []

    async def dial() -> Client:
        attempts.append("dial")
        if 2 < len(attempts) < 5:
            raise ConnectionRefused("not yet", final=False)
        if len(attempts) == 5:
            raise ConnectionLost("between")
        return await Client.connect(server.uri)

    session = await ReconnectingSession.open(dial, SESSION, backoff=AT_ONCE)
    async with session:
        await anext(session)
        server.connections[0].abort()
        server.refusals["session.attach"].append(Refused("resource_limit", retryable=True))
        server.refusals["protocol.initialize"].append(Refused("server_shutting_down", retryable=True))
        assert kinds(await until(session, lambda update: isinstance(update, Restored))) == [Lost, Restored]
        assert len(attempts) == 7


@pytest.mark.parametrize("method", ["protocol.initialize", "session.attach"])
async def test_it_gives_up_when_the_server_says_no(server: Server, method: str) -> None:
    async with opened(server) as session:
        await anext(session)
        server.connections[0].abort()
        server.refusals[method].append(Refused("session_not_found"))
        assert isinstance(await anext(session), Lost)
        with pytest.raises(ProtocolError):
            await anext(session)


async def test_it_gives_up_when_the_credentials_are_no_longer_taken(server: Server) -> None:
    async with opened(server) as session:
        await anext(session)
        server.status = HTTPStatus.FORBIDDEN
        await server.open[0].socket.close(4401)
        assert isinstance(await anext(session), Lost)
        with pytest.raises(ConnectionRefused):
            await anext(session)


async def test_opening_tries_once(server: Server) -> None:
    server.status = HTTPStatus.BAD_GATEWAY
    with pytest.raises(ConnectionRefused):
        await ReconnectingSession.open(partial(Client.connect, server.uri), SESSION)
    server.status = None
    server.refusals["session.attach"].append(Refused("session_not_found"))
    with pytest.raises(ProtocolError):
        await ReconnectingSession.open(partial(Client.connect, server.uri), SESSION)


async def test_opening_needs_a_snapshot(server: Server) -> None:
    attachment = {"id": "att_1", "session_id": SESSION, "mode": "read_write"}
    server.handlers["session.attach"] = lambda *_: {
        "attachment": attachment,
        "replay": {"type": "current"},
        "latest_event_sequence": 1,
    }
    with pytest.raises(ProtocolViolation):
        await ReconnectingSession.open(partial(Client.connect, server.uri), SESSION)


async def test_leaving_ends_the_iteration_and_the_calls(server: Server) -> None:
    async with opened(server) as session:
        await anext(session)
        reading = asyncio.create_task(anext(session, None))
        await asyncio.sleep(0)
        await session.close()
        assert await reading is None
        assert [update async for update in session] == []
        with pytest.raises(ConnectionLost):
            await session.send_message("hello")


def test_pauses_grow_up_to_a_limit_and_differ() -> None:
    delays = list(islice(Backoff(first=1.0, limit=8.0).delays(), 8))
    middle = [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    assert delays[0] == 0.0
    assert all(0.75 * m <= delay <= 1.25 * m for m, delay in zip(middle, delays[1:], strict=True))
    assert delays != list(islice(Backoff(first=1.0, limit=8.0).delays(), 8))


# Mutations whose answer does not come


def messages(server: Server) -> int:
    """How often a user said something."""
    return sum(item.role == "user" for item in [*server.agent.history[1:], *server.agent.deferred])


async def test_a_mutation_that_was_committed_is_answered_from_its_receipt(server: Server) -> None:
    server.fates["session.send_message"].append("lose the answer")
    async with opened(server) as session:
        result = await session.send_message("hello")

        assert messages(server) == 1
        assert result.operation_id == "op_1"
        first, second = server.called("session.send_message")
        assert first == second
        assert session.projection.revision == result.revision


async def test_a_mutation_that_never_arrived_is_made_anew(server: Server) -> None:
    server.fates["session.send_message"].append("lose the request")
    async with opened(server) as session:
        await session.send_message("hello")

        assert messages(server) == 1
        first, second, third = server.called("session.send_message")
        assert first == second
        assert third["idempotency_key"] != first["idempotency_key"]
        assert (first["attachment_id"], third["attachment_id"]) == ("att_0_0", "att_1_0")


async def test_a_mutation_survives_any_number_of_losses(server: Server) -> None:
    server.fates["session.send_message"].extend(
        ["lose the request", "lose the answer", "lose the request", "lose the answer", None]
    )
    async with opened(server) as session:
        await session.send_message("hello")
        assert messages(server) == 1
        updates = await caught_up(session, server)
        assert differences(session.projection.snapshot(), server.agent.snapshot()) == []
        assert sequences(updates) == [2, 3, 4]


async def test_a_late_first_request_is_fenced_off(server: Server) -> None:
    """What the client gave up on may still be on its way when it asks again."""
    server.fates["session.send_message"].append("lose the request")
    async with opened(server) as session:
        await session.send_message("hello")
        lost = server.called("session.send_message")[0]
        with pytest.raises(Refused, match="permission_denied"):
            server.outcome(server.connections[0], "session.send_message", lost)
        assert messages(server) == 1


async def test_a_refusal_that_was_stored_is_told(server: Server) -> None:
    def refuse(*_: object) -> object:
        raise Refused("invalid_state")

    server.handlers["session.send_message"] = refuse
    server.fates["session.send_message"].append("lose the answer")
    async with opened(server) as session:
        with pytest.raises(ProtocolError) as refused:
            await session.send_message("hello")
        assert refused.value.code == "invalid_state"
        assert len(server.called("session.send_message")) == 2


async def test_a_denial_on_the_present_attachment_is_told(server: Server) -> None:
    server.refusals["session.send_message"].append(Refused("permission_denied"))
    async with opened(server) as session:
        with pytest.raises(ProtocolError):
            await session.send_message("hello")


async def test_an_unknown_outcome_is_told(server: Server) -> None:
    server.fates["session.send_message"].append("lose the request")
    server.refusals["session.send_message"].append(Refused("interrupted"))
    async with opened(server) as session:
        with pytest.raises(ProtocolError) as refused:
            await session.send_message("hello")
        assert refused.value.code == "interrupted"


async def test_a_server_that_shuts_down_is_left_for_the_next(server: Server) -> None:
    server.refusals["session.send_message"].append(Refused("server_shutting_down", retryable=True))
    async with opened(server) as session:
        await session.send_message("hello")
        assert messages(server) == 1
        assert len(server.connections) == 2


async def test_a_read_is_repeated(server: Server) -> None:
    server.fates["session.get"].append("lose the request")
    async with opened(server) as session:
        snapshot = await session.call(methods.SESSION_GET, SessionGetParams(session_id=SESSION))
        assert snapshot == server.agent.snapshot()


async def test_an_answer_of_another_shape_is_not_asked_for_again(server: Server) -> None:
    server.handlers["session.get"] = server.handlers["session.send_message"] = lambda *_: {}
    async with opened(server) as session:
        with pytest.raises(ProtocolViolation):
            await session.call(methods.SESSION_GET, SessionGetParams(session_id=SESSION))
        with pytest.raises(ProtocolViolation):
            await session.send_message("hello")


async def test_calls_reconnect_while_nobody_iterates_and_nothing_is_missed(server: Server) -> None:
    async with opened(server) as session:
        await anext(session)
        for number in range(3):
            server.connections[-1].abort()
            await session.send_message(f"message {number}")
        updates = await caught_up(session, server)

        assert sequences(updates) == list(range(2, server.agent.sequence + 1))
        assert differences(session.projection.snapshot(), server.agent.snapshot()) == []
