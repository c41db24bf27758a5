"""What a gateway does by itself: order, malformed lines, ends, and what HTTP would not answer (behaviour 1.3, 1.4)."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ochat_client import ConnectionLost
from ochat_client.transports.lines import LineTransport
from ochat_site.stdio.gateway import INBOX_LINES, Gateway
from ochat_site.stdio.streams import Streams

SECONDS = 30
UNIX, HTTP = "unix:///run/agent.sock", "http://127.0.0.1:1"


class Upstream:
    """A server that is asked and answers by hand."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[bytes] = asyncio.Queue()
        self.said: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = False

    async def send(self, frame: bytes) -> None:
        await self.asked.put(frame)

    async def receive(self) -> bytes:
        frame = await self.said.get()
        if frame is None:
            raise ConnectionLost("gone")
        return frame

    async def close(self) -> None:
        self.closed = True

    async def answer(self) -> str:
        """Answer the next call; return its method."""
        async with asyncio.timeout(SECONDS):
            call = json.loads(await self.asked.get())
        self.said.put_nowait(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": {}}).encode())
        return str(call["method"])


class Client:
    """The client's end of the streams."""

    def __init__(self, stream: socket.socket, upstream: Upstream, gateway: asyncio.Task[int]) -> None:
        self.lines = LineTransport(stream, 2**24)
        self.upstream = upstream
        self.gateway = gateway

    async def say(self, *lines: bytes) -> None:
        await self.lines.send(b"\n".join(lines))

    async def hear(self) -> Any:
        async with asyncio.timeout(SECONDS):
            return json.loads(await self.lines.receive())

    async def code(self) -> int:
        async with asyncio.timeout(SECONDS):
            return await self.gateway


@asynccontextmanager
async def between(uri: str = UNIX) -> AsyncIterator[Client]:
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    upstream = Upstream()
    gateway = Gateway(Streams(os.dup(theirs.fileno()), theirs.detach()), upstream, uri)
    client = Client(ours, upstream, asyncio.create_task(gateway.run()))
    try:
        yield client
    finally:
        await client.lines.close()
        await client.code()


def call(id: object, method: str = "protocol.ping") -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": {}}).encode()


async def test_calls_go_one_after_another_and_the_end_waits_for_the_last_answer() -> None:
    async with between() as client:
        await client.say(call(1), call(2))
        await client.lines.end_input()
        assert await client.upstream.answer() == "protocol.ping"
        assert (await client.hear())["id"] == 1
        assert await client.upstream.answer() == "protocol.ping"

        assert (await client.hear())["id"] == 2
        assert await client.code() == 0
        assert client.upstream.closed


async def test_notifications_pass_between_calls_and_answers() -> None:
    async with between() as client:
        await client.say(call(1))
        await client.upstream.asked.get()
        client.upstream.said.put_nowait(b'{"jsonrpc":"2.0","method":"session.event","params":{}}')
        client.upstream.said.put_nowait(b'{"jsonrpc":"2.0","id":1,"result":{}}')

        assert (await client.hear())["method"] == "session.event"
        assert (await client.hear())["id"] == 1


async def test_malformed_lines_are_answered_here_in_their_order() -> None:
    async with between() as client:
        await client.say(
            call(1),
            b"",
            b"{",
            b"\xff",
            b"[]",
            b'{"jsonrpc":"2.0","method":"session.list","params":{}}',
            b'{"jsonrpc":"2.0","id":5,"result":{}}',
            b'{"jsonrpc":"1.0","id":"bad","method":"protocol.ping"}',
            call(2),
        )
        await client.upstream.answer()
        assert (await client.hear())["id"] == 1
        refused = await client.hear()
        assert (refused["id"], refused["error"]["code"]) == ("bad", "invalid_request")
        await client.upstream.answer()
        assert (await client.hear())["id"] == 2


async def test_a_ping_without_id_waits_for_nothing() -> None:
    async with between() as client:
        await client.say(b'{"jsonrpc":"2.0","method":"protocol.ping","params":{}}', call(1))
        async with asyncio.timeout(SECONDS):
            assert b"id" not in await client.upstream.asked.get()
        await client.upstream.answer()
        assert (await client.hear())["id"] == 1


async def test_the_end_of_the_server_is_the_end() -> None:
    async with between() as client:
        await client.say(call(1))
        await client.upstream.asked.get()
        client.upstream.said.put_nowait(None)

        assert await client.code() == 1
        with pytest.raises(ConnectionLost):
            await client.lines.receive()


async def test_a_client_that_is_gone_is_the_end() -> None:
    async with between() as client:
        await client.say(call(1))
        await client.upstream.asked.get()
        await client.lines.close()

        assert await client.code() == 0
        assert client.upstream.closed


async def test_what_waits_here_is_bounded() -> None:
    async with between() as client:
        sending = asyncio.create_task(client.say(*(call(number) for number in range(40 * INBOX_LINES))))
        for number in range(40 * INBOX_LINES):
            await client.upstream.answer()
            assert (await client.hear())["id"] == number
        await sending


async def test_http_is_asked_for_nothing_before_a_connection() -> None:
    async with between(HTTP) as client:
        await client.say(
            b'{"jsonrpc":"2.0","method":"protocol.ping"}', call(1), call(2, "protocol.initialize"), call(3)
        )
        refused = await client.hear()
        assert (refused["id"], refused["error"]["code"]) == (1, "incompatible_protocol")
        assert await client.upstream.answer() == "protocol.initialize"
        assert (await client.hear())["id"] == 2
        assert await client.upstream.answer() == "protocol.ping"


async def test_http_is_not_sent_what_is_too_deep_for_it() -> None:
    async with between(HTTP) as client:
        await client.say(call(1, "protocol.initialize"))
        await client.upstream.answer()
        await client.hear()
        await client.say(call(2).replace(b"{}", b'{"payload":' + b"[" * 64 + b"]" * 64 + b"}"))
        refused = await client.hear()

    assert (refused["id"], refused["error"]["code"]) == (2, "resource_limit")
    assert refused["error"]["retryable"] is False
