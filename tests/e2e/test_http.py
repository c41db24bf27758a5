"""HTTP over real sockets: clients that mean ill, and connections that two web processes serve."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import psutil
import pytest

from ochat_client import Client, new_key
from ochat_client.transports.http import Http
from sessions_app.db import in_db
from sessions_app.limits import MAX_FRAME_BYTES, MIB
from sessions_app.models import Attachment, Connection
from tests.conformance.fixture import ADMIN, SETTINGS
from tests.conformance.peers import WAIT_SECONDS, Peer, answered
from tests.conformance.sites import NARROW_BYTES, SocketSite, bearer
from tests.conformance.test_a_envelope import INITIALIZE
from tests.e2e.posting import Post, events, told
from tests.support.model_scripts import Reply, Text
from tests.support.processes import Installation

AUTHORIZED = b"authorization: Bearer " + ADMIN.token.encode()
RPC = (
    b"POST /v1/rpc HTTP/1.1",
    b"host: local",
    AUTHORIZED,
    b"content-type: application/json",
    b"ochat-protocol-version: 1",
)


@pytest.fixture
async def bystander(socket_site: SocketSite) -> AsyncIterator[Peer]:
    """Somebody else, who must notice nothing."""
    peer = await socket_site.peer()
    yield peer
    async with asyncio.timeout(WAIT_SECONDS):
        assert (await peer.call("protocol.ping", payload="still there"))["payload"] == "still there"


class Wire:
    """A TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *lines: bytes, body: bytes = b"") -> None:
        """Send a head, whose lines need not be right, and what follows it."""
        self.writer.write(b"\r\n".join([*lines, b"", b""]) + body)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the next answer; an empty one for a connection that was closed."""
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return 0, {}, b""
            status, *lines = head.decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines if line)
            body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return int(status.split()[1]), headers, body

    async def ended(self) -> None:
        """Read to the end."""
        async with asyncio.timeout(WAIT_SECONDS):
            with suppress(ConnectionError):
                while await self.reader.read(2**16):
                    pass


@asynccontextmanager
async def wire(site: SocketSite, *, receive_buffer: int | None = None) -> AsyncIterator[Wire]:
    """Connect; break off at the end of the block."""
    client = socket.socket()
    client.setblocking(False)
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", site.processes.installation.port))
    reader, writer = await asyncio.open_connection(sock=client, limit=2**16)
    try:
        yield Wire(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


def _memory(site: SocketSite) -> float:
    """Return what the web process holds, in MiB."""
    return psutil.Process(site.processes.serve.pid).memory_info().rss / MIB


BAD_HEADS: dict[str, tuple[Sequence[bytes], set[int]]] = {
    "two lengths": ((*RPC, b"content-length: 2", b"content-length: 3"), {400}),
    "a length and chunks": ((*RPC, b"content-length: 2", b"transfer-encoding: chunked"), {400}),
    "a length that is none": ((*RPC, b"content-length: -1"), {400}),
    "another encoding": ((*RPC, b"transfer-encoding: gzip"), {400}),
    "a line without a colon": ((*RPC, b"nothing"), {400}),
    "a space in a name": ((*RPC, b"ochat connection: x"), {400}),
    "a NUL": ((*RPC, b"x: a\0b"), {400}),
    "a bare CR": ((*RPC, b"x: a\rochat-connection-id: con_x"), {400}),
    "no HTTP": ((b"hello",), {400}),
    "a huge header": ((*RPC, b"x: " + b"y" * 40_000), {400, 0}),
    "a thousand headers": ((*RPC, *(b"x%d: y" % number for number in range(1000))), {400}),
    "two credentials": ((*RPC, AUTHORIZED, b"content-length: 0"), {401}),
    "two versions": ((*RPC, b"ochat-protocol-version: 1", b"content-length: 0"), {400}),
    "a name that proxies fold": (
        (*RPC[:3], b"ochat_protocol_version: 1", *RPC[3:4], b"content-length: 0"),
        {400},
    ),
    "a path out of it": ((b"GET /v1/blobs/..%2f..%2fsecret HTTP/1.1", *RPC[1:3]), {400, 404}),
    "a line end in a path": ((b"GET /v1/blobs/a%0d%0ax:%20y HTTP/1.1", *RPC[1:3]), {400, 404}),
}


@pytest.mark.parametrize(("head", "statuses"), BAD_HEADS.values(), ids=BAD_HEADS.keys())
async def test_heads_that_are_none(
    socket_site: SocketSite, bystander: Peer, head: Sequence[bytes], statuses: set[int]
) -> None:
    """Each is refused, and nothing of it becomes a header of the answer or a second request."""
    async with wire(socket_site) as client:
        client.send(*head)
        status, headers, _ = await client.answer()
        assert status in statuses
        assert "x" not in headers
        assert "ochat-connection-id" not in headers


@pytest.mark.parametrize("path", [b"/v1/rpc", b"/v1/blobs"])
async def test_a_body_that_does_not_end(socket_site: SocketSite, bystander: Peer, path: bytes) -> None:
    """It is refused as soon as it is too long, however it goes on, and costs a bounded amount."""
    before = _memory(socket_site)
    async with wire(socket_site) as client:
        client.send(b"POST %b HTTP/1.1" % path, *RPC[1:], b"transfer-encoding: chunked")
        chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"

        async def pour() -> None:
            with suppress(ConnectionError):
                for _ in range(1024):
                    client.writer.write(chunk)
                    await client.writer.drain()

        pouring = asyncio.create_task(pour())
        status, _, body = await client.answer()
        pouring.cancel()
    assert (status, json.loads(body)["code"]) == (400, "resource_limit")
    assert _memory(socket_site) - before < 64


async def test_a_body_that_says_it_is_too_long(socket_site: SocketSite, bystander: Peer) -> None:
    """It is refused before it comes; who it comes from is asked first."""
    length = b"content-length: %d" % (MAX_FRAME_BYTES + 1)
    async with wire(socket_site) as client:
        client.send(*RPC, length)
        status, headers, body = await client.answer()
        assert (status, json.loads(body)["code"], headers["connection"]) == (400, "resource_limit", "close")
        await client.ended()
    async with wire(socket_site) as client:
        client.send(*RPC[:2], *RPC[3:], length)
        assert (await client.answer())[0] == 401


async def test_requests_that_come_a_byte_at_a_time(socket_site: SocketSite, bystander: Peer) -> None:
    """Many that are never complete cost the others nothing, and leave nothing behind."""
    process = psutil.Process(socket_site.processes.serve.pid)
    before = process.num_fds()
    async with asyncio.timeout(2 * WAIT_SECONDS):
        clients = [wire(socket_site) for _ in range(50)]
        open_now = [await client.__aenter__() for client in clients]
        for number, client in enumerate(open_now):
            head = b"\r\n".join([*RPC, b"content-length: 100", b"", b""]) + b"{"
            client.writer.write(head[: len(head) * number // 49])
            await client.writer.drain()
        assert (await bystander.call("protocol.ping", payload=1))["payload"] == 1
        for client in open_now:
            client.writer.write(b" ")
        for opened in clients:
            await opened.__aexit__(None, None, None)
    await answered(lambda: _true(process.num_fds() <= before + 2), "their descriptors are gone")


async def _true(value: bool) -> bool:
    return value


async def test_clients_that_say_no_more(socket_site: SocketSite, bystander: Peer) -> None:
    """A half-closed socket is a closed one: a stream on it ends, and its attachment goes."""
    hold = await bystander.create()
    held = Attachment.objects.filter(session_id=hold.session_id, hidden=True)
    path = f"/v1/sessions/{hold.session_id}/events".encode()
    for half in (True, False):
        async with wire(socket_site) as client:
            client.send(b"GET %b HTTP/1.1" % path, *RPC[1:3])
            async with asyncio.timeout(WAIT_SECONDS):
                await client.reader.readuntil(b": connected\n\n")
            assert await in_db(held.count) == 1
            if half:
                client.writer.write_eof()
                await client.ended()
        await answered(lambda: in_db(lambda: not held.exists()), "the attachment is gone")


async def test_a_stream_that_is_never_read(socket_site: SocketSite, bystander: Peer) -> None:
    """It is given up at a bounded cost while the others go on, and told why, should it ever read."""
    writer = await bystander.create(start=True)
    path = f"/v1/sessions/{writer.session_id}/events".encode()
    before = _memory(socket_site)
    async with wire(socket_site, receive_buffer=NARROW_BYTES) as stalled:
        stalled.send(b"GET %b HTTP/1.1" % path, *RPC[1:3])
        held = Attachment.objects.filter(session_id=writer.session_id, hidden=True)
        await answered(lambda: in_db(held.exists), "the stream is open")
        socket_site.model.answer(*(Reply(Text("y" * MIB)) for _ in range(6)))
        for _ in range(6):
            await writer.say("go")
            await writer.until_ended()
        for number in range(2 * SETTINGS["subscriber_queue_capacity"]):
            await (writer.stop() if number % 2 == 0 else writer.start())
        await answered(lambda: in_db(lambda: not held.exists()), "the stream is given up")
        assert _memory(socket_site) - before < 96
        text = b""
        async with asyncio.timeout(WAIT_SECONDS):
            with suppress(ConnectionError):
                while piece := await stalled.reader.read(2**16):
                    text = text[-1000:] + piece
        assert b"event: snapshot.required\ndata: " in text


# Two web processes


async def test_a_connection_is_served_by_two_processes(socket_site: SocketSite, bystander: Peer) -> None:
    """Calls go to either; a stream at one ends the stream at the other and goes on after it; one that dies takes along what
    it streamed, and nothing else.
    """
    site = socket_site
    second = Installation(site.data_dir, site.model.env())
    try:
        serve = second.start_serve()
        ports = site.processes.installation.port, second.port
        client = Post()
        await client.ask(ports[0], "protocol.initialize", **INITIALIZE)
        hold = await bystander.create()
        named = {"session_id": hold.session_id, "requested_mode": "read_only", "subscribe": True}
        made = await client.ask(ports[1], "session.attach", idempotency_key=new_key(), **named)
        due = made["latest_event_sequence"] + 1
        stream = await events(ports[0], client.id)
        assert await stream.opened() == 200
        due = await told(hold, stream, due)
        for port in (ports[1], ports[0], ports[1]):
            former, stream = stream, await events(port, client.id)
            assert await stream.opened() == 200
            with pytest.raises(StopAsyncIteration):
                await former.next()
            await former.close()
            due = await told(hold, stream, due)
        held = Attachment.objects.filter(connection_id=client.id)
        assert await in_db(held.count) == 1
        serve.kill()
        await answered(lambda: in_db(lambda: not held.exists()), "what the dead process streamed is detached")
        await stream.close()
        assert (await client.ask(ports[0], "protocol.ping", payload=1))["payload"] == 1
        assert await in_db(Connection.objects.filter(id=client.id, process=None).exists)
    finally:
        second.close()


async def test_a_typed_client_over_http(socket_site: SocketSite) -> None:
    """It follows a turn like one on a WebSocket."""
    site = socket_site
    site.model.answer(Reply(Text("hello there")))
    url = f"http://127.0.0.1:{site.processes.installation.port}"
    async with await Client.connect(url, token=ADMIN.token) as client:
        assert isinstance(client._transport, Http)
        peer = Peer(client, await site.wire(headers=[bearer(ADMIN)]))
        hold = await peer.create(start=True)
        await hold.say("hi")
        await hold.until_ended()
        assert hold.streamed() == "hello there"
        await hold.check_law()
        await peer.wire.close()
