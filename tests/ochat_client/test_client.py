"""One connection: calls and answers, refusals, notifications, ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from ochat_client import (
    AttachedSession,
    Client,
    ConnectionLost,
    ConnectionRefused,
    FrameTooLarge,
    Lagged,
    ProtocolError,
    ProtocolViolation,
    methods,
    new_key,
)
from ochat_client.methods import Method
from ochat_client.notifications import MAX_EVENTS
from ochat_site.dialects.ochat1.types import (
    SHAPES,
    AttachReplayEvents,
    AttachReplaySnapshot,
    PingParams,
    PromptGetParams,
    SessionListParams,
)
from sessions_app.events import DurableEvent
from tests.ochat_client.agent import NOW, OTHER_SESSION, SESSION, Agent, raw, spec
from tests.ochat_client.server import TOKEN, Refused, Server, serving
from tests.support.waiting import eventually


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(Agent()) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with await Client.connect(server.uri, token=TOKEN) as connected:
        yield connected


# The table of methods


def test_every_method_has_the_types_of_the_protocol() -> None:
    hints = get_type_hints(methods)
    by_name = {
        method.name: get_args(hints[constant])
        for constant, method in vars(methods).items()
        if isinstance(method, Method)
    }
    assert by_name == SHAPES


# Connecting


async def test_connecting_presents_the_token_and_initializes(server: Server, client: Client) -> None:
    assert server.headers[0]["Authorization"] == f"Bearer {TOKEN}"
    assert client.server.server_id == "srv_1"
    params = server.called("protocol.initialize")[0]
    assert params["protocol_min"] == params["protocol_max"] == {"major": 1, "minor": 0}
    assert server.connections[0].socket.request
    assert server.connections[0].socket.request.path == "/v1/ws"


async def test_without_a_token_none_is_presented(server: Server) -> None:
    async with await Client.connect(f"{server.uri}/other"):
        assert "Authorization" not in server.headers[0]
        assert server.connections[0].socket.request
        assert server.connections[0].socket.request.path == "/other"


@pytest.mark.parametrize(
    ("status", "final"),
    [
        (HTTPStatus.FORBIDDEN, True),
        (HTTPStatus.UNAUTHORIZED, True),
        (HTTPStatus.NOT_FOUND, True),
        (HTTPStatus.BAD_GATEWAY, False),
    ],
)
async def test_a_refused_handshake_says_whether_trying_again_may_help(
    server: Server, status: HTTPStatus, final: bool
) -> None:
    server.status = status
    with pytest.raises(ConnectionRefused) as refused:
        await Client.connect(server.uri)
    assert refused.value.final is final


async def test_nobody_listening_may_change(server: Server) -> None:
    uri = server.uri
    await server.stop()
    with pytest.raises(ConnectionRefused) as refused:
        await Client.connect(uri)
    assert not refused.value.final


@pytest.mark.parametrize("uri", ["ftp://host", "host:80", ""])
async def test_a_uri_that_no_transport_serves(uri: str) -> None:
    with pytest.raises(ValueError, match="no transport"):
        await Client.connect(uri)


async def test_an_address_that_is_none() -> None:
    with pytest.raises(ConnectionRefused) as refused:
        await Client.connect("ws://")
    assert refused.value.final


async def test_a_server_that_does_not_initialize(server: Server) -> None:
    server.refusals["protocol.initialize"].append(Refused("incompatible_protocol"))
    with pytest.raises(ProtocolError) as refused:
        await Client.connect(server.uri)
    assert refused.value.code == "incompatible_protocol"
    await eventually(lambda: server.connections[0].socket.close_code, "the connection is closed")


# Calls


async def test_answers_find_their_callers(client: Client) -> None:
    answers = await asyncio.gather(
        *(client.call(methods.PING, PingParams(payload=raw(number))) for number in range(20))
    )
    assert [bytes(answer.payload or b"") for answer in answers] == [
        str(number).encode() for number in range(20)
    ]


async def test_a_refusal_is_typed(client: Client) -> None:
    with pytest.raises(ProtocolError) as refused:
        await client.call(methods.PROMPT_GET, PromptGetParams(prompt_id="prd_none"))
    assert refused.value.code == "method_not_found"
    assert refused.value.message == "because of method_not_found"
    assert not refused.value.retryable
    assert refused.value.data == raw({"a": 1})
    assert str(refused.value) == "because of method_not_found (method_not_found)"


async def test_anything_can_be_asked_and_stays_encoded(server: Server, client: Client) -> None:
    server.handlers["no.such"] = lambda _, params: params
    assert await client.request("no.such", {"anything": [1, None]}) == raw({"anything": [1, None]})


async def test_a_request_that_the_server_would_not_take_is_not_sent(server: Server, client: Client) -> None:
    with pytest.raises(FrameTooLarge):
        await client.call(methods.PING, PingParams(payload=raw("x" * 100_000)))
    assert server.called("protocol.ping") == []


async def test_an_answer_of_another_shape_is_a_violation(server: Server, client: Client) -> None:
    server.handlers["protocol.ping"] = lambda *_: {"ready": "yes"}
    with pytest.raises(ProtocolViolation):
        await client.call(methods.PING, PingParams())
    assert not client.is_closed


async def test_pages_are_gone_through(server: Server, client: Client) -> None:
    pages = {None: ([1, 2], "more"), "more": ([3], None)}

    def list_sessions(_: object, params: dict[str, Any]) -> object:
        numbers, cursor = pages[params.get("cursor")]
        items = [{**session, "generation": number} for number in numbers]
        return {"items": items, **({"next_cursor": cursor} if cursor else {})}

    session = msgspec.json.decode(raw(server.agent.session))
    server.handlers["session.list"] = list_sessions
    listed = [
        item.generation async for item in client.items(methods.SESSION_LIST, SessionListParams(limit=2))
    ]
    assert listed == [1, 2, 3]


async def test_a_call_that_is_given_up_leaves_the_connection_alone(server: Server, client: Client) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await client.call(methods.PING, PingParams())
    assert (await client.call(methods.PING, PingParams())).ready


async def test_the_same_key_means_the_same_mutation(server: Server, client: Client) -> None:
    attached = await client.attach(SESSION)
    params = attached.params_of(methods.SESSION_SEND_MESSAGE, text="hello")
    first = await client.call(methods.SESSION_SEND_MESSAGE, params)
    assert await client.call(methods.SESSION_SEND_MESSAGE, params) == first
    assert len(server.agent.history) == 2


async def test_the_same_session_is_created_on_any_connection(server: Server, client: Client) -> None:
    key = new_key()
    first = await client.create_session(spec(), key=key)
    async with await Client.connect(server.uri) as another:
        assert await another.create_session(spec(), key=key) == first
    assert "requested_mode" not in server.called("session.create")[0]


def test_keys_are_the_protocols_and_never_the_same() -> None:
    keys = {new_key() for _ in range(1000)}
    assert len(keys) == 1000
    assert all(1 <= len(key) <= 256 and key.replace("-", "").replace("_", "").isalnum() for key in keys)


async def test_mutations_have_names_of_their_own(server: Server, client: Client) -> None:
    attached = await client.attach(SESSION)

    def changed(_: object, params: dict[str, Any]) -> object:
        return {
            "revision": 7,
            "latest_event_sequence": 3,
            "session": server.agent.session,
            "permission": permission,
        }

    server.agent.send("hello")
    server.agent.ask("per_1")
    permission = server.agent.permissions["per_1"]
    for method in ("start", "stop", "cancel_operation"):
        server.handlers[f"session.{method}"] = changed
    server.handlers["permission.respond"] = changed
    assert (await attached.start(queue_if_limited=False)).revision == 7
    await attached.stop("cancel")
    await attached.cancel_operation("op_1")
    await attached.respond(permission, "deny", reason="no")
    await attached.respond(permission, "approve_once")

    base = {"session_id": SESSION, "attachment_id": "att_0_0"}
    told = [
        {name: value for name, value in params.items() if name != "idempotency_key"}
        for _, _, params in server.calls[2:]
    ]
    answer = {"permission_id": "per_1", "permission_generation": 0}
    assert told == [
        {**base, "queue_if_limited": False},
        {**base, "mode": "cancel"},
        {**base, "operation_id": "op_1"},
        {**base, **answer, "choice": "deny", "reason": "no"},
        {**base, **answer, "choice": "approve_once"},
    ]


# Notifications


async def test_what_follows_an_attach_is_told(server: Server, client: Client) -> None:
    attached = await client.attach(SESSION)
    assert isinstance(attached.result.replay, AttachReplaySnapshot)
    await attached.send_message("hello")

    told = [await anext(attached.notifications) for _ in range(3)]

    assert told == server.agent.log[1:]


async def test_an_attach_behind_a_cursor_replays(server: Server, client: Client) -> None:
    server.agent.send("hello")
    attached = await client.attach(SESSION, "read_only", after_sequence=2, reclaim_token="old")
    assert attached.result.replay == AttachReplayEvents(events=tuple(server.agent.log[2:]))
    assert server.called("session.attach")[0]["reclaim_token"] == "old"


async def test_events_are_told_to_their_own_session_and_to_who_listens_to_all(
    server: Server, client: Client
) -> None:
    attached = await client.attach(SESSION)
    everything = client.listen()
    of_another = DurableEvent(
        session_id=OTHER_SESSION, sequence=1, revision=1, timestamp=NOW, kind="session.error", payload=raw({})
    )
    await server.tell(of_another)
    await server.open[0].tell("server.notice", {"unknown": "to us"})
    server.agent.send("hello")
    await server.publish()

    assert await anext(attached.notifications) == server.agent.log[1]
    assert [await anext(everything) for _ in range(2)] == [of_another, server.agent.log[1]]


async def test_after_a_detach_the_iteration_ends(server: Server, client: Client) -> None:
    attached = await client.attach(SESSION)
    await attached.detach()
    assert [event async for event in attached] == []


async def test_a_refused_attach_leaves_nothing_behind(server: Server, client: Client) -> None:
    server.refusals["session.attach"].append(Refused("session_not_found"))
    with pytest.raises(ProtocolError):
        await client.attach(SESSION)
    assert (await client.attach(SESSION)).attachment_id


async def follow_without_reading(server: Server, client: Client, live: int, durable: int) -> AttachedSession:
    attached = await client.attach(SESSION)
    server.agent.send("hello")
    for _ in range(live):
        await server.tell(server.agent.delta("x", None))
    for _ in range(durable):
        server.agent.notify()
    await server.publish()
    await client.call(methods.PING, PingParams())  # behind everything that was sent
    return attached


async def test_live_events_are_dropped_first_when_nobody_reads(server: Server, client: Client) -> None:
    attached = await follow_without_reading(server, client, live=10, durable=MAX_EVENTS - 3)
    told = [await anext(attached.notifications) for _ in range(MAX_EVENTS)]
    assert told == server.agent.log[1:]


async def test_live_events_beyond_the_bound_are_dropped(server: Server, client: Client) -> None:
    attached = await follow_without_reading(server, client, live=MAX_EVENTS + 10, durable=0)
    server.agent.notify()
    await server.publish()
    told = [await anext(attached.notifications) for _ in range(4)]
    assert told == server.agent.log[1:]


async def test_who_does_not_read_durable_events_is_told_that_it_lags(server: Server, client: Client) -> None:
    attached = await follow_without_reading(server, client, live=0, durable=MAX_EVENTS)
    with pytest.raises(Lagged):
        await anext(attached.notifications)
    server.agent.notify()
    await server.publish()
    with pytest.raises(Lagged):
        await anext(attached.notifications)


# Ends


async def test_a_lost_connection_ends_everything_that_waits(server: Server, client: Client) -> None:
    attached = await client.attach(SESSION)
    await attached.send_message("hello")
    server.fates["protocol.ping"].append("lose the request")
    with pytest.raises(ConnectionLost) as lost:
        await client.call(methods.PING, PingParams())

    assert lost.value.close_code is None
    assert client.is_closed
    told = [await anext(attached.notifications) for _ in range(3)]
    assert told == server.agent.log[1:]
    with pytest.raises(ConnectionLost):
        await anext(attached.notifications)
    with pytest.raises(ConnectionLost):
        await client.call(methods.PING, PingParams())
    with pytest.raises(ConnectionLost):
        await anext(client.listen())


async def test_a_close_code_is_told(server: Server, client: Client) -> None:
    waiting = asyncio.create_task(anext((await client.attach(SESSION)).notifications))
    await server.open[0].socket.close(4408, "slow")
    with pytest.raises(ConnectionLost, match="4408 slow") as lost:
        await waiting
    assert lost.value.close_code == 4408


async def test_closing_here_ends_it_too(client: Client) -> None:
    attached = await client.attach(SESSION)
    await client.close()
    with pytest.raises(ConnectionLost):
        await anext(attached.notifications)
    await client.close()


@pytest.mark.parametrize(
    "frame",
    [
        "{",
        "[]",
        '{"jsonrpc":"2.0"}',
        '{"jsonrpc":"2.0","id":1}',
        '{"jsonrpc":"2.0","method":"session.event","params":{"sequence":-1}}',
        '{"jsonrpc":"2.0","method":"session.live_event","params":{}}',
        '{"jsonrpc":"2.0","method":"session.event","params":' + "[" * 2000 + "]" * 2000 + "}",
    ],
)
async def test_a_server_that_speaks_something_else_is_left(
    server: Server, client: Client, frame: str
) -> None:
    attached = await client.attach(SESSION)
    await server.open[0].socket.send(frame)
    with pytest.raises(ProtocolViolation):
        await anext(attached.notifications)
    await eventually(lambda: server.connections[0].socket.close_code, "the connection is closed")


@pytest.mark.parametrize("id", [99, "1", 1.5])
async def test_an_answer_to_no_call_is_skipped(server: Server, client: Client, id: object) -> None:
    await client.attach(SESSION)
    frame = raw({"jsonrpc": "2.0", "id": id, "result": {}})
    await server.open[0].socket.send(bytes(frame).decode())
    assert (await client.call(methods.PING, PingParams())).ready


class BrokenTransport:
    """A connection whose end is heard of by whoever sends, and not yet by whoever reads."""

    async def send(self, frame: bytes) -> None:
        raise ConnectionLost("the connection broke")

    async def receive(self) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None: ...


async def test_an_end_that_sending_hears_of_first_is_the_end() -> None:
    client = Client(BrokenTransport())
    listening = client.listen()

    with pytest.raises(ConnectionLost):
        await client.request("protocol.ping", {})

    assert client.is_closed
    with pytest.raises(ConnectionLost):
        await anext(listening)
    await client.close()
