"""Clients of the Unix socket that mean ill, or just leave: each gets what the contract says, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

from ochat_client import new_key
from permissions_app.models import AuthFailure
from sessions_app import clock, ids
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.limits import MAX_FRAME_BYTES
from sessions_app.models import Attachment, Connection, Process
from tests.conformance.line_sites import UnixSite, socket_path
from tests.conformance.peers import WAIT_SECONDS, Peer, answered
from tests.conformance.test_a_envelope import INITIALIZE

PING = b'{"jsonrpc":"2.0","id":"p","method":"protocol.ping","params":{"payload":7}}\n'


def call(id: object, method: str, params: Any) -> bytes:
    return encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + b"\n"


OPEN = call(0, "protocol.initialize", INITIALIZE)


class Raw:
    """A socket that sends what it is told."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(0)
        self._held = b""

    async def connect(self) -> None:
        await asyncio.get_running_loop().sock_connect(self.socket, str(socket_path()))

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def read(self) -> bytes:
        """Return what comes next, nothing at the end."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await asyncio.get_running_loop().sock_recv(self.socket, 2**16)

    async def answer(self) -> Any:
        while b"\n" not in self._held:
            data = await self.read()
            assert data, "the server closed the connection"
            self._held += data
        found, _, self._held = self._held.partition(b"\n")
        return json.loads(found)

    async def rest(self) -> list[Any]:
        """Return every answer up to the end of the connection."""
        with suppress(ConnectionResetError):  # It may leave something of ours unread.
            while data := await self.read():
                self._held += data
        return [json.loads(found) for found in self._held.splitlines()]


@contextmanager
def raw() -> Iterator[Raw]:
    made = Raw()
    with made.socket:
        yield made


@pytest.fixture
async def bystander(unix_site: UnixSite) -> AsyncIterator[Peer]:
    """Somebody else, who must notice nothing."""
    peer = await unix_site.peer()
    yield peer
    async with asyncio.timeout(WAIT_SECONDS):
        assert (await peer.call("protocol.ping", payload="still there"))["payload"] == "still there"


async def test_a_client_that_is_half_closed_has_its_answers(bystander: Peer) -> None:
    with raw() as client:
        await client.connect()
        await client.send(OPEN + PING + PING.replace(b'"p"', b"1.0").rstrip(b"\n"))
        client.socket.shutdown(socket.SHUT_WR)

        assert [answer["id"] for answer in await client.rest()] == [0, "p", 1.0]


async def test_a_line_above_the_limit(bystander: Peer) -> None:
    with raw() as client:
        await client.connect()
        await client.send(OPEN + PING)
        sending = asyncio.ensure_future(client.send(b"x" * (MAX_FRAME_BYTES + 1)))

        assert [answer["id"] for answer in await client.rest()] == [0, "p"]
        assert isinstance((await asyncio.gather(sending, return_exceptions=True))[0], OSError | None)


async def test_a_line_at_the_limit(bystander: Peer) -> None:
    padding = MAX_FRAME_BYTES - len(PING) + 1
    with raw() as client:
        await client.connect()
        await client.send(OPEN)
        await client.answer()
        await client.send(b" " * padding + PING)

        assert (await client.answer())["id"] == "p"


async def test_garbage_between_calls(bystander: Peer) -> None:
    with raw() as client:
        await client.connect()
        await client.send(OPEN)
        await client.answer()
        await client.send(
            b"\n\r\n\x00\xff\n[]\n{\n\x16\x03\x01\nGET / HTTP/1.1\n" + b"[" * 5000 + b"\n" + PING
        )

        assert (await client.answer())["id"] == "p"


async def test_bytes_one_by_one(bystander: Peer) -> None:
    with raw() as client:
        await client.connect()
        for byte in OPEN + PING:
            await client.send(bytes([byte]))

        assert [(await client.answer())["id"] for _ in range(2)] == [0, "p"]


async def test_a_descendant_of_a_worker_is_hung_up_on(unix_site: UnixSite, bystander: Peer) -> None:
    """Without an answer; and the audit log tells of it (behaviour 2.2, 15)."""
    now = clock.now()
    worker = Process(
        id=ids.new_id("prc"),
        kind="worker",
        host=socket.gethostname(),
        pid=os.getppid(),
        started_at=now,
        beat_at=now,
    )
    await in_db(worker.save)
    try:
        with raw() as client:
            await client.connect()
            with suppress(BrokenPipeError):  # It may be faster.
                await client.send(OPEN)
            assert await client.rest() == []
    finally:
        await in_db(worker.delete)

    async def told() -> bool:
        return await in_db(AuthFailure.objects.filter(source="unix_socket").exists)

    await answered(told, "the audit record")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", [40, pytest.param(1000, marks=pytest.mark.long)])
async def test_coming_and_going(unix_site: UnixSite, bystander: Peer, times: int) -> None:
    """At once, initialized, attached, in the middle of a call: no row, descriptor or task stays behind."""
    session_id = (await bystander.create(start=True)).session_id
    attach = {"session_id": session_id, "requested_mode": "read_write", "subscribe": True}
    together = asyncio.Semaphore(8)

    async def come_and_go(number: int) -> None:
        async with together:
            with raw() as client:
                await client.connect()
                if number % 4:
                    await client.send(OPEN)
                if number % 4 > 1:
                    await client.answer()
                    await client.send(call(1, "session.attach", {**attach, "idempotency_key": new_key()}))
                if number % 4 == 3:
                    await client.answer()

    def rows() -> int:
        return Connection.objects.count() + Attachment.objects.count()

    async def held() -> tuple[int, ...]:
        return await in_db(rows), psutil.Process().num_fds(), len(asyncio.all_tasks())

    async def at_most(most: tuple[int, ...]) -> bool:
        return all(now <= then for now, then in zip(await held(), most, strict=True))

    await asyncio.gather(*map(come_and_go, range(8)))  # Threads and their connections are made at first use.
    await answered(lambda: at_most((2, 10**6, 10**6)), "the bystander's rows alone are left")
    before = await held()
    await asyncio.gather(*map(come_and_go, range(times)))
    await answered(lambda: at_most(before), "nothing stays behind")


async def test_the_socket_goes_with_the_process_and_comes_with_the_next(unix_site: UnixSite) -> None:
    peer = await unix_site.peer()

    await unix_site.restart()

    assert peer.client.is_closed
    assert (await (await unix_site.peer()).call("protocol.ping", payload=1))["payload"] == 1
