"""What one client sends or fails to read costs bounded memory and nobody else anything (behaviour 1.4, design 3)."""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import websockets
from websockets.asyncio.client import ClientConnection, connect

from sessions_app.limits import MAX_FRAME_BYTES, MIB

BOUND_SECONDS = 60.0
ROOT = Path(__file__).resolve().parents[2]


class ServerProcess:
    """`tests.support.socket_server` as a child."""

    def __init__(self, grace: float = 10.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.socket_server", str(grace)],
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "ochat_site.settings"},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self.line())

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def url(self, path: str) -> str:
        return f"ws://127.0.0.1:{self.port}{path}"

    def memory(self) -> float:
        """Return the resident memory in MiB."""
        return psutil.Process(self.process.pid).memory_info().rss / MIB

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    server = ServerProcess()
    yield server
    server.end()


@pytest.fixture
async def healthy(server: ServerProcess) -> AsyncIterator[ClientConnection]:
    """Somebody else, who must notice nothing."""
    async with connect(server.url("/echo"), max_size=None) as client:
        yield client
        async with asyncio.timeout(5):
            await client.send("still there?")
            assert await client.recv() == "still there?"


def raw_websocket(port: int, path: str, receive_buffer: int | None = None) -> socket.socket:
    """Return a socket behind its handshake, for what no client library would send."""
    client = socket.socket()
    if receive_buffer is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(BOUND_SECONDS)
    client.connect(("127.0.0.1", port))
    client.sendall(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += client.recv(1)
    assert answer.startswith(b"HTTP/1.1 101")
    return client


def frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """Return one client frame, masked with zeros."""
    first = (0x80 if fin else 0) | opcode
    size = len(payload)
    if size < 126:
        header = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        header = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        header = struct.pack("!BBQ", first, 0x80 | 127, size)
    return header + bytes(4) + payload


def read_exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = client.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return data


def read_frame(client: socket.socket) -> tuple[int, bytes]:
    """Return opcode and payload of the next frame of the server."""
    first, size = read_exactly(client, 2)
    if size == 126:
        (size,) = struct.unpack("!H", read_exactly(client, 2))
    elif size == 127:
        (size,) = struct.unpack("!Q", read_exactly(client, 8))
    return first & 0x0F, read_exactly(client, size)


def close_code(client: socket.socket) -> int:
    """Read up to the closing frame and return its code."""
    while True:
        opcode, payload = read_frame(client)
        if opcode == 8:
            code: int = struct.unpack("!H", payload[:2])[0]
            return code


class Closed(Exception):
    """The server said goodbye."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def read_event(client: socket.socket) -> int:
    """Return the sequence of the next event; raise Closed instead at a closing frame."""
    opcode, payload = read_frame(client)
    if opcode == 8:
        raise Closed(struct.unpack("!H", payload[:2])[0])
    return int(payload.split(maxsplit=2)[1])


class TestWhatAClientSends:
    """Behaviour 1.4, frames and their limits."""

    async def test_a_message_of_exactly_the_limit_passes(self, server: ServerProcess) -> None:
        async with connect(server.url("/echo"), max_size=None, compression=None) as client:
            message = "x" * MAX_FRAME_BYTES
            await client.send(message)
            async with asyncio.timeout(BOUND_SECONDS):
                assert await client.recv() == message

    async def test_fragments_are_one_message(self, server: ServerProcess) -> None:
        async with connect(server.url("/echo")) as client:
            await client.send(["a", "b", "c"])
            async with asyncio.timeout(BOUND_SECONDS):
                assert await client.recv() == "abc"

    @pytest.mark.parametrize("fragments", [1, 17])
    async def test_a_larger_one_is_closed_with_1009(
        self, server: ServerProcess, healthy: ClientConnection, fragments: int
    ) -> None:
        with closing(raw_websocket(server.port, "/echo")) as client:
            piece = bytes((MAX_FRAME_BYTES + fragments) // fragments)
            for number in range(fragments):
                client.sendall(frame(0 if number else 1, piece, fin=number == fragments - 1))
            assert await asyncio.to_thread(close_code, client) == 1009

    async def test_an_endless_message_costs_bounded_memory(
        self, server: ServerProcess, healthy: ClientConnection
    ) -> None:
        before = server.memory()
        with closing(raw_websocket(server.port, "/echo")) as client:
            client.sendall(frame(1, b"x" * MIB, fin=False))

            def pour() -> float:
                highest = 0.0
                for _ in range(200):
                    try:
                        client.sendall(frame(0, b"x" * MIB, fin=False))
                    except OSError:
                        break
                    highest = max(highest, server.memory())
                return highest

            assert await asyncio.to_thread(pour) - before < 40

    async def test_a_length_of_many_gigabytes_is_refused_at_its_header(self, server: ServerProcess) -> None:
        with closing(raw_websocket(server.port, "/echo")) as client:
            client.sendall(struct.pack("!BBQ", 0x81, 0x80 | 127, 1 << 40) + bytes(4))
            assert await asyncio.to_thread(close_code, client) == 1009

    async def test_a_binary_message_is_closed_with_1003(self, server: ServerProcess) -> None:
        async with connect(server.url("/echo")) as client:
            await client.send(b"binary")
            with pytest.raises(websockets.ConnectionClosed) as closed:
                await client.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1003

    @pytest.mark.parametrize("payload", [b"\xff", b"\xc3", b"ok\xed\xa0\x80"])
    async def test_what_is_not_utf8_is_closed_with_1007(self, server: ServerProcess, payload: bytes) -> None:
        with closing(raw_websocket(server.port, "/echo")) as client:
            client.sendall(frame(1, payload))
            assert await asyncio.to_thread(close_code, client) == 1007

    @pytest.mark.parametrize(
        "garbage",
        [
            pytest.param(b"\x81\x05hello", id="unmasked"),
            pytest.param(b"\xf1\x80\x00\x00\x00\x00", id="reserved bits"),
            pytest.param(b"\x83\x80\x00\x00\x00\x00", id="reserved opcode"),
            pytest.param(frame(0, b"x"), id="continuation of nothing"),
            pytest.param(frame(9, bytes(200)), id="long ping"),
            pytest.param(struct.pack("!BBQ", 0x89, 0xFF, 1 << 40) + bytes(4), id="endless ping"),
        ],
    )
    async def test_what_is_no_frame_ends_the_connection_and_is_not_kept(
        self, server: ServerProcess, healthy: ClientConnection, garbage: bytes
    ) -> None:
        before = server.memory()
        with closing(raw_websocket(server.port, "/echo")) as client:
            client.sendall(garbage)

            def pour() -> int | None:
                code = close_code(client)
                for _ in range(64):
                    try:
                        client.sendall(bytes(MIB))
                    except OSError:
                        break
                return code

            assert await asyncio.to_thread(pour) == 1002
        assert server.memory() - before < 10

    async def test_what_follows_a_close_is_ignored(self, server: ServerProcess) -> None:
        with closing(raw_websocket(server.port, "/echo")) as client:
            client.sendall(frame(8, struct.pack("!H", 1000)) + frame(1, b"late"))
            assert await asyncio.to_thread(read_frame, client) == (8, struct.pack("!H", 1000))
            assert await asyncio.to_thread(client.recv, 1) == b""


class TestWhatAClientDoesNotRead:
    """Design 3: a client that never reads costs bounded memory."""

    @pytest.mark.parametrize("path", ["/flood", "/plain"])
    async def test_an_application_waits_for_the_socket(
        self, server: ServerProcess, healthy: ClientConnection, path: str
    ) -> None:
        before = server.memory()
        with closing(raw_websocket(server.port, path)) as client:
            client.sendall(frame(1, b"200 1048576"))
            for _ in range(20):
                await healthy.send("x" * 1000)
                await healthy.recv()
            assert server.memory() - before < 12

            def read_all() -> int:
                return sum(len(read_frame(client)[1]) for _ in range(200))

            assert await asyncio.to_thread(read_all) == 200 * MIB
        assert server.memory() - before < 12

    async def test_answers_that_do_not_fit_end_the_connection_with_4408(
        self, server: ServerProcess, healthy: ClientConnection
    ) -> None:
        before = server.memory()
        with closing(raw_websocket(server.port, "/pile")) as client:
            for _ in range(40):
                client.sendall(frame(1, b"1048576"))
            assert await asyncio.to_thread(close_code, client) == 4408
        assert server.memory() - before < 40

    async def test_a_client_that_never_reads_is_dropped_after_its_goodbye(
        self, server: ServerProcess, healthy: ClientConnection
    ) -> None:
        open_before = len(psutil.Process(server.process.pid).net_connections())
        with closing(raw_websocket(server.port, "/pile", receive_buffer=4096)) as client:
            for _ in range(60):
                client.sendall(frame(1, b"1048576"))
            async with asyncio.timeout(BOUND_SECONDS):
                while len(psutil.Process(server.process.pid).net_connections()) > open_before:
                    await healthy.send("x")
                    await healthy.recv()

    async def test_who_lags_catches_up_and_who_takes_nothing_is_slow(
        self, server: ServerProcess, healthy: ClientConnection
    ) -> None:
        before = server.memory()
        stuck = raw_websocket(server.port, "/feed", receive_buffer=4096)
        lagging = raw_websocket(server.port, "/feed", receive_buffer=4096)
        with closing(stuck), closing(lagging):
            for client in (stuck, lagging):
                client.sendall(frame(1, b"attach"))
                assert read_frame(client) == (1, b"done")
            kept_up: list[int] = []
            lagged: list[int] = []
            async with connect(server.url("/feed"), max_size=None) as committing:
                await committing.send("attach")
                await committing.recv()
                for _ in range(120):
                    await committing.send("commit 10 20000")
                    lagged.append(await asyncio.to_thread(read_event, lagging))
                    while (message := str(await committing.recv())) != "done":
                        kept_up.append(int(message.split()[1]))
                while len(kept_up) < 1200:
                    kept_up.append(int(str(await committing.recv()).split()[1]))
            assert kept_up == list(range(kept_up[0], kept_up[0] + 1200))
            assert server.memory() - before < 40

            while lagged[-1] < kept_up[-1]:
                lagged.append(await asyncio.to_thread(read_event, lagging))
            assert lagged == kept_up

            got: list[int] = []
            with pytest.raises(Closed) as closed:
                while True:
                    got.append(await asyncio.to_thread(read_event, stuck))
            assert closed.value.code == 4408
            assert got == kept_up[: len(got)]
            assert len(got) < 1200 - 512

    @pytest.mark.long
    @pytest.mark.timeout(900)
    async def test_who_lags_through_10_000_events_catches_up(
        self, server: ServerProcess, healthy: ClientConnection
    ) -> None:
        """One event is read for ten that are committed, so that a hundred times the queue's capacity lies between."""
        lagging = raw_websocket(server.port, "/feed", receive_buffer=4096)
        with closing(lagging):
            lagging.sendall(frame(1, b"attach"))
            assert read_frame(lagging) == (1, b"done")
            lagged: list[int] = []
            async with connect(server.url("/feed"), max_size=None) as committing:
                for _ in range(1000):
                    await committing.send("commit 10 1500")
                    lagged.append(await asyncio.to_thread(read_event, lagging))
                    await committing.recv()
            while len(lagged) < 10_000:
                lagged.append(await asyncio.to_thread(read_event, lagging))
            assert lagged == list(range(lagged[0], lagged[0] + 10_000))

    async def test_pings_without_reading_pile_up_nothing(
        self, server: ServerProcess, healthy: ClientConnection
    ) -> None:
        before = server.memory()
        with closing(raw_websocket(server.port, "/flood")) as client:
            client.sendall(frame(1, b"20 1048576"))
            ping = frame(9, bytes(125)) * 1000
            for _ in range(150):
                client.sendall(ping)

            def last_pong() -> int:
                pongs = texts = 0
                client.sendall(frame(9, b"last"))
                while True:
                    opcode, payload = read_frame(client)
                    texts += opcode == 1
                    pongs += opcode == 10
                    if payload == b"last":
                        return pongs

            assert await asyncio.to_thread(last_pong) <= 150_001
        assert server.memory() - before < 12


class TestHandshakes:
    async def test_a_refusal_is_403(self, server: ServerProcess) -> None:
        for path in ("/refused", "/nowhere", "/echo?access_token=x", "/echo?a=b&ACCESS_TOKEN="):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await connect(server.url(path))
            assert refused.value.response.status_code == 403

    async def test_a_broken_one_harms_nobody(self, server: ServerProcess, healthy: ClientConnection) -> None:
        for request in (
            b"GET /echo HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n",
            b"GET /echo HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: short\r\nSec-WebSocket-Version: 13\r\n\r\n",
            b"GET /echo HTTP/1.0\r\nUpgrade: websocket\r\n\r\n",
        ):
            with closing(
                socket.create_connection(("127.0.0.1", server.port), timeout=BOUND_SECONDS)
            ) as client:
                client.sendall(request)
                assert (await asyncio.to_thread(client.recv, 4096)).startswith(b"HTTP/1.1 4")


class TestHttp:
    async def exchange(self, server: ServerProcess, request: bytes, *, body: bytes = b"") -> bytes:
        def run() -> bytes:
            with closing(
                socket.create_connection(("127.0.0.1", server.port), timeout=BOUND_SECONDS)
            ) as client:
                client.sendall(request)
                for start in range(0, len(body), MIB):
                    try:
                        client.sendall(body[start : start + MIB])
                    except OSError:
                        break
                answer = b""
                while chunk := client.recv(65536):
                    answer += chunk
                    if b"\r\n0\r\n\r\n" in answer:
                        break
                return answer

        return await asyncio.to_thread(run)

    async def test_a_body_of_exactly_the_limit_passes(self, server: ServerProcess) -> None:
        request = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % MAX_FRAME_BYTES
        answer = await self.exchange(server, request, body=bytes(MAX_FRAME_BYTES))
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"%d" % MAX_FRAME_BYTES in answer

    async def test_a_body_announced_too_large_is_refused_at_once(self, server: ServerProcess) -> None:
        request = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (MAX_FRAME_BYTES + 1)
        assert (await self.exchange(server, request)).startswith(b"HTTP/1.1 413")

    async def test_one_announced_and_sent_is_answered(self, server: ServerProcess) -> None:
        request = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (64 * MIB)
        assert (await self.exchange(server, request, body=bytes(64 * MIB))).startswith(b"HTTP/1.1 413")

    async def test_a_chunked_body_that_never_ends_is_refused(
        self, server: ServerProcess, healthy: ClientConnection
    ) -> None:
        before = server.memory()
        request = b"POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunk = b"100000\r\n" + bytes(MIB) + b"\r\n"
        assert (await self.exchange(server, request, body=chunk * 64)).startswith(b"HTTP/1.1 413")
        assert server.memory() - before < 40

    async def test_expecting_to_go_on_is_answered(self, server: ServerProcess) -> None:
        request = b"POST /body HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (
            MAX_FRAME_BYTES + 1
        )
        assert (await self.exchange(server, request)).startswith(b"HTTP/1.1 413")

    async def test_a_response_waits_for_its_reader(
        self, server: ServerProcess, healthy: ClientConnection
    ) -> None:
        before = server.memory()
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=BOUND_SECONDS)) as client:
            client.sendall(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
            for _ in range(20):
                await healthy.send("x")
                await healthy.recv()
            assert server.memory() - before < 12

            def read_all() -> int:
                size = 0
                tail = b""
                while not tail.endswith(b"\r\n0\r\n\r\n"):
                    chunk = client.recv(1 << 20)
                    size += len(chunk)
                    tail = (tail + chunk)[-16:]
                return size

            assert await asyncio.to_thread(read_all) > 64 * MIB


class TestTheEnd:
    """Behaviour 14.3: a web process drains."""

    async def test_calls_begun_are_answered_and_sockets_closed_with_1012(self, tmp_path: Path) -> None:
        server = ServerProcess(grace=30)
        try:
            go_on = tmp_path / "go-on"
            async with connect(server.url("/wait")) as busy, connect(server.url("/echo")) as idle:
                await busy.send(str(go_on))
                await idle.send("x")
                await idle.recv()
                server.terminate()
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await idle.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1012
                with pytest.raises(OSError, match="Connect call failed"):
                    await connect(server.url("/echo"))
                go_on.touch()
                assert await busy.recv() == "done"
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await busy.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1012
            assert await asyncio.to_thread(server.process.wait, BOUND_SECONDS) == 0
            assert server.line() == "closed 2 open 0"
        finally:
            server.end()

    async def test_the_grace_bounds_it(self, tmp_path: Path) -> None:
        server = ServerProcess(grace=0.2)
        try:
            async with connect(server.url("/wait")) as busy:
                await busy.send(str(tmp_path / "never"))
                server.terminate()
                assert await asyncio.to_thread(server.process.wait, BOUND_SECONDS) == 0
        finally:
            server.end()

    async def test_a_second_signal_ends_it_at_once(self, tmp_path: Path) -> None:
        server = ServerProcess(grace=3600)
        try:
            async with connect(server.url("/wait")) as busy, connect(server.url("/echo")) as idle:
                await busy.send(str(tmp_path / "never"))
                server.terminate()
                with pytest.raises(websockets.ConnectionClosed):
                    await idle.recv()
                server.terminate()
                assert await asyncio.to_thread(server.process.wait, BOUND_SECONDS) == 0
        finally:
            server.end()

    async def test_what_refuses_to_start_is_raised(self) -> None:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "tests.support.socket_server", "1", "refuse"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=BOUND_SECONDS,
        )

        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == "sessions_app.errors.InvalidState: not today"

    async def test_a_hangup_reloads(self) -> None:
        server = ServerProcess()
        try:
            server.process.send_signal(signal.SIGHUP)
            assert await asyncio.to_thread(server.line) == "reloaded"
        finally:
            server.end()

    async def test_every_way_a_client_goes_is_noticed_once(self, tmp_path: Path) -> None:
        server = ServerProcess()
        try:
            clean = await connect(server.url("/echo"))
            await clean.close()
            with closing(raw_websocket(server.port, "/echo")):
                pass
            reset = raw_websocket(server.port, "/echo")
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reset.close()
            busy = await connect(server.url("/wait"))
            go_on = tmp_path / "go-on"
            await busy.send(str(go_on))
            busy.transport.abort()
            too_large = raw_websocket(server.port, "/echo")
            too_large.sendall(struct.pack("!BBQ", 0x81, 0x80 | 127, 1 << 40) + bytes(4))
            too_large.close()
            go_on.touch()
            async with connect(server.url("/echo")) as last:
                await last.send("x")
                await last.recv()
                server.terminate()
                assert await asyncio.to_thread(server.process.wait, BOUND_SECONDS) == 0
            assert server.line() == "closed 6 open 0"
        finally:
            server.end()
