"""Clients that mean ill, over real sockets: each gets what the contract says, and costs nobody else anything."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from ochat_client import new_key
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.limits import MAX_FRAME_BYTES, MIB
from sessions_app.models import Attachment, Connection
from tests.conformance.fixture import ADMIN, SETTINGS
from tests.conformance.local import LocalSite
from tests.conformance.peers import WAIT_SECONDS, Hold, Peer, answered
from tests.conformance.sites import NARROW_BYTES, SocketSite, bearer
from tests.conformance.test_a_envelope import INITIALIZE
from tests.e2e.raw import BINARY, CLOSE, RawSocket
from tests.support.model_scripts import Reply, Text, Wait

PING = b'{"jsonrpc":"2.0","id":"p","method":"protocol.ping","params":{"payload":7}}'


@pytest.fixture
async def bystander(socket_site: SocketSite) -> AsyncIterator[Peer]:
    """Somebody else, who must notice nothing."""
    peer = await socket_site.peer()
    yield peer
    async with asyncio.timeout(WAIT_SECONDS):
        assert (await peer.call("protocol.ping", payload="still there"))["payload"] == "still there"


@asynccontextmanager
async def _raw(site: SocketSite, *, receive_buffer: int | None = None) -> AsyncIterator[RawSocket]:
    """Connect and initialize; break off at the end of the block."""
    raw = await RawSocket.open(
        site.processes.installation.port, [bearer(ADMIN)], receive_buffer=receive_buffer
    )
    try:
        await _initialize(raw)
        yield raw
    finally:
        await raw.close()


async def _initialize(raw: RawSocket) -> None:
    await raw.send(encode({"jsonrpc": "2.0", "id": 0, "method": "protocol.initialize", "params": INITIALIZE}))
    assert json.loads(await raw.text())["id"] == 0


def _memory(site: SocketSite) -> float:
    """Return what the web process holds, in MiB."""
    return psutil.Process(site.processes.serve.pid).memory_info().rss / MIB


# Frames


async def test_a_binary_message(socket_site: SocketSite, bystander: Peer) -> None:
    async with _raw(socket_site) as raw:
        await raw.send(PING, BINARY)
        assert await raw.close_code() == 1003


@pytest.mark.parametrize("text", [b"\xff", b'{"id":"\xc3"}', b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
async def test_a_text_that_is_not_utf8(socket_site: SocketSite, bystander: Peer, text: bytes) -> None:
    async with _raw(socket_site) as raw:
        await raw.send(text)
        assert await raw.close_code() == 1007


@pytest.mark.parametrize("fragments", [1, 20], ids=["in one frame", "in fragments"])
async def test_a_message_above_the_limit(socket_site: SocketSite, bystander: Peer, fragments: int) -> None:
    """Closed with 1009 and without a reply; no more than the limit was ever kept."""
    size = MAX_FRAME_BYTES // fragments + 1
    async with _raw(socket_site) as raw:
        before = _memory(socket_site)

        async def send() -> None:
            for number in range(fragments):
                await raw.send(b" " * size, 1 if number == 0 else 0, final=number == fragments - 1)

        sending = asyncio.ensure_future(send())
        assert await raw.close_code() == 1009
        assert _memory(socket_site) - before < 3 * MAX_FRAME_BYTES / MIB
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def test_a_message_at_the_limit(socket_site: SocketSite, bystander: Peer) -> None:
    async with _raw(socket_site) as raw:
        await raw.send(PING[:-1] + b" " * (MAX_FRAME_BYTES - len(PING)) + b"}")
        assert json.loads(await raw.text())["result"]["payload"] == 7


# Messages


@pytest.mark.parametrize("depth", [65, 1000, 100_000, 1_000_000])
async def test_a_deep_message(socket_site: SocketSite, bystander: Peer, depth: int) -> None:
    """A typed answer or none, and the next call is answered."""
    deep = b"[" * depth + b"]" * depth
    answers: list[Any] = []
    async with _raw(socket_site) as raw:
        await raw.send(_nested(b"d", b"protocol.ping", b'"payload":%b' % deep))
        await raw.send(_nested(b"e", b"session.list", b'"limit":1,"labels":%b' % deep))
        await raw.send(PING)
        while not answers or answers[-1]["id"] != "p":
            answers.append(json.loads(await raw.text()))
    for answer in answers[:-1]:
        assert "error" in answer or answer["id"] == "d"
        assert answer.get("error", {}).get("code", "invalid_request") in ("invalid_request", "resource_limit")
    assert answers[-1]["result"]["payload"] == 7


def _nested(id: bytes, method: bytes, members: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":"%b","method":"%b","params":{%b}}' % (id, method, members)


async def test_garbage(socket_site: SocketSite, bystander: Peer) -> None:
    """Calls with bytes lost, doubled and changed: silence or typed errors, and the next call is answered."""
    dice = random.Random(7)
    calls = [
        encode({"jsonrpc": "2.0", "id": f"g{number}", "method": method, "params": params})
        for number, (method, params) in enumerate(
            [
                ("protocol.ping", {"payload": {"a": [1, None, "x"]}}),
                ("session.list", {"limit": 3, "labels": {"a": "b"}}),
                ("session.get", {"session_id": "ses_none"}),
                (
                    "session.attach",
                    {"session_id": "ses_none", "requested_mode": "read_only", "subscribe": True},
                ),
            ]
        )
    ]
    wire = await socket_site.wire()
    await wire.send(
        encode({"jsonrpc": "2.0", "id": "i", "method": "protocol.initialize", "params": INITIALIZE})
    )
    await wire.receive()
    for _ in range(150):
        frame = bytearray(dice.choice(calls))
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(frame))
            match dice.randrange(3):
                case 0:
                    del frame[at]
                case 1:
                    frame[at] = dice.randrange(32, 127)
                case _:
                    frame[at:at] = frame[at : at + dice.randint(1, 9)]
        await wire.transport.send(bytes(frame))
    await wire.send(PING)
    while (answer := json.loads(await _unchecked(wire.transport.receive())))["id"] != "p":
        assert "error" not in answer or answer["error"]["code"] in (
            "invalid_request",
            "method_not_found",
            "session_not_found",
        )
    await wire.close()


async def _unchecked(receiving: Awaitable[bytes]) -> bytes:
    async with asyncio.timeout(WAIT_SECONDS):
        return await receiving


# Credentials


@pytest.mark.parametrize("origin", [b"http://127.0.0.1", b"https://evil.example", b"null"])
async def test_an_origin_is_no_credential(socket_site: SocketSite, origin: bytes) -> None:
    """Whatever it says: who shows a token needs none, and who shows none is refused, with or without a cookie."""
    headers = [(b"origin", origin)]
    assert await socket_site.handshake([bearer(ADMIN), *headers]) == 101
    assert await socket_site.handshake(headers) == 403
    assert await socket_site.handshake([*headers, (b"cookie", b"ochat_session=guessed")]) == 403


# Who never reads


async def test_a_client_that_never_reads(socket_site: SocketSite, bystander: Peer) -> None:
    """With every attachment it may have, so that each event is owed to it many times: closed as slow, at a bounded cost."""
    socket_site.model.answer(Reply(Text("one", Wait("first"))), Reply(Text("two", Wait("second"))))
    writer = await (await socket_site.peer()).create(start=True)
    healthy = await (await socket_site.peer()).attach(writer.session_id, "read_only")
    async with _raw(socket_site, receive_buffer=NARROW_BYTES) as stalled:
        await _flood(socket_site, writer, healthy, stalled)
    await answered(lambda: _attached(writer.session_id, 2), "the attachments of the slow one are gone")
    await writer.stop("cancel")
    await healthy.until_ended()


async def _flood(site: SocketSite, writer: Hold, healthy: Hold, stalled: RawSocket) -> None:
    """Commit more than the client that does not read may owe."""
    for number in range(SETTINGS["max_attachments_per_session"] - 3):
        params = {"session_id": writer.session_id, "requested_mode": "read_only", "subscribe": True}
        await stalled.send(_call(number, "session.attach", {**params, "idempotency_key": new_key()}))
        assert "result" in json.loads(await stalled.text())
    before = _memory(site)

    await writer.say("go")
    for number in range(32):
        await writer.say(f"{number} " + "x" * 100_000)
    site.model.open("first")
    await healthy.until(lambda: healthy.kinds.count("operation.started") == 2)
    for number in range(2 * SETTINGS["subscriber_queue_capacity"]):
        await writer.say(f"{number}")
    latest = (await writer.counters())[1]
    await healthy.until(lambda: healthy.sequence == latest)

    assert await stalled.close_code() == 4408
    # What was owed is 13 times 6.4 MB.
    assert _memory(site) - before < 48


def _call(id: int, method: str, params: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


async def _attached(session_id: str, count: int) -> bool:
    return await in_db(Attachment.objects.filter(session=session_id).count) == count


# Who comes and goes


@pytest.mark.parametrize("times", [25, pytest.param(300, marks=pytest.mark.long)])
async def test_coming_and_going(socket_site: SocketSite, bystander: Peer, times: int) -> None:
    """In order, and breaking off in the middle of a call: no row, no descriptor and no attachment stays behind."""
    session_id = (await bystander.create(start=True)).session_id
    serve = psutil.Process(socket_site.processes.serve.pid)

    def held() -> tuple[int, int]:
        return Connection.objects.count(), Attachment.objects.filter(session=session_id).count()

    async def come_and_go(number: int) -> None:
        async with together, _raw(socket_site) as raw:
            params = {"session_id": session_id, "requested_mode": "read_write", "subscribe": True}
            await raw.send(_call(1, "session.attach", {**params, "idempotency_key": new_key()}))
            if number % 2:
                assert "result" in json.loads(await raw.text())
            if number % 3 == 0:
                await raw.send(b"\x03\xe8", CLOSE)
                assert await raw.close_code() == 1000

    together = asyncio.Semaphore(8)
    before = await in_db(held)
    # Threads and their connections to the store are made as they are needed first.
    await asyncio.gather(*map(come_and_go, range(times)))
    await answered(lambda: _equals(held, before), "the rows of those that left are gone")
    descriptors = serve.num_fds()
    await asyncio.gather(*map(come_and_go, range(times)))
    await answered(lambda: _equals(held, before), "the rows of those that left are gone")
    await answered(lambda: _has_descriptors(serve, descriptors), "their descriptors are closed")


async def _equals(question: Any, expected: object) -> bool:
    return bool(await in_db(question) == expected)


async def _has_descriptors(process: psutil.Process, at_most: int) -> bool:
    return process.num_fds() <= at_most


async def test_coming_and_going_leaves_no_task(local_site: LocalSite) -> None:
    session_id = (await (await local_site.peer()).create(start=True)).session_id
    before = len(asyncio.all_tasks())

    for number in range(30):
        peer = await local_site.connect()
        if number % 2:
            await peer.client.initialize()
            await peer.attach(session_id)
        await peer.close()

    async def as_before() -> bool:
        return len(asyncio.all_tasks()) <= before

    await answered(as_before, "no task stays behind")
