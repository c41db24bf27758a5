"""What the parts below the server cost without it, on this machine and in this run.

Owns: the three floors. A figure of the server means little by itself on a shared or slow machine; its ratio to a floor
that was measured seconds before travels.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx
import psutil

from bench.processes import Installation, Memory, Process, memory
from bench.wire import WebSocket, open_websocket
from sessions_app.encoding import encode

ECHOES = 200
BURSTS = 10
TRANSACTIONS = 100
REPLIES = 50
FIRST_DELTA = b"response.output_text.delta"


@dataclass(frozen=True, slots=True)
class Asked:
    """One reply of the model server, asked directly."""

    first_delta: float
    completed: float


class Echo:
    """The raw echo (`bench.echo`), and clients of it."""

    def __init__(self, installation: Installation) -> None:
        """Start it."""
        self._process: Process = installation.run("-m", "bench.echo")
        self._port = int(self._process.line())

    async def round_trip(self, size: int = 300, count: int = ECHOES) -> float:
        """Return the median seconds until a message of `size` bytes is back."""
        socket = await self._open()
        times = [await _echoed(socket, b"x" * size) for _ in range(count)]
        socket.abort()
        return median(times)

    async def spread(self, clients: int) -> float:
        """Return the median seconds from the first to the last of `clients` that each wait for an echo."""
        sockets = [await self._open() for _ in range(clients)]
        spreads = []
        for _ in range(BURSTS):
            echoes = [_echo(socket, b"x" * 300) for socket in sockets]
            arrived = await asyncio.gather(*echoes)
            spreads.append(max(arrived) - min(arrived))
        for socket in sockets:
            socket.abort()
        return median(spreads)

    async def memory_per_client(self, clients: int) -> tuple[Memory, float]:
        """Return the memory of the process, and the bytes that each of `clients` idle ones adds."""
        family = [psutil.Process(self._process.pid)]
        before = memory(family)
        sockets = [await self._open() for _ in range(clients)]
        after = memory(family)
        for socket in sockets:
            socket.abort()
        return before, (after.best - before.best) / clients

    def stop(self) -> None:
        """End it."""
        self._process.stop()

    async def _open(self) -> WebSocket:
        return await open_websocket(self._port, "/")


def _echo(socket: WebSocket, text: bytes) -> asyncio.Future[float]:
    """Send a message and return when it is back."""
    back: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    socket.on_text = lambda _frame: back.set_result(time.perf_counter())
    socket.send(text)
    return back


async def _echoed(socket: WebSocket, text: bytes) -> float:
    sent = time.perf_counter()
    return await _echo(socket, text) - sent


class ModelFloor:
    """The model server, asked with httpx and nothing between."""

    def __init__(self, url: str) -> None:
        """Ask the server at `url`."""
        self._client = httpx.AsyncClient(base_url=url, timeout=10)

    async def ask(self, turns: int = 1) -> Asked:
        """Ask with a history of so many turns."""
        first = 0.0
        sent = time.perf_counter()
        async with self._client.stream("POST", "/responses", content=_request(turns)) as reply:
            async for chunk in reply.aiter_bytes():
                if not first and FIRST_DELTA in chunk:
                    first = time.perf_counter()
        return Asked(first - sent, time.perf_counter() - sent)

    async def asked(self, turns: int = 1, count: int = REPLIES) -> Asked:
        """Return the medians of `count` replies, one after the other."""
        replies = [await self.ask(turns) for _ in range(count)]
        return Asked(
            median(reply.first_delta for reply in replies), median(reply.completed for reply in replies)
        )

    async def cpu(self, count: int = REPLIES) -> float:
        """Return the seconds of processor time that one reply costs the client."""
        begun = time.process_time()
        await self.asked(count=count)
        return (time.process_time() - begun) / count

    async def rate(self, clients: int, each: int) -> float:
        """Return the replies per second when `clients` ask `each` times, all at once."""
        begun = time.perf_counter()
        await asyncio.gather(*(self.asked(count=each) for _ in range(clients)))
        return clients * each / (time.perf_counter() - begun)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def transaction(installation: Installation) -> float:
    """Return the seconds that a bare ORM transaction of three statements takes on the server's database."""
    process = installation.run("-m", "bench.store", "transactions", str(TRANSACTIONS))
    return float(process.finish()) / 1000


def _request(turns: int) -> bytes:
    """Return a request as the server would make it in its turn number `turns`."""
    items: list[dict[str, Any]] = [_user("Answer in one sentence.", "developer")]
    for _ in range(turns - 1):
        items += [_user("hello"), _answer()]
    items.append(_user("hello"))
    return encode({"model": "mock", "store": False, "stream": True, "input": items})


def _user(text: str, role: str = "user") -> dict[str, Any]:
    parts: Sequence[dict[str, str]] = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": role, "content": parts}


def _answer() -> dict[str, Any]:
    parts = [{"type": "output_text", "text": "word " * 10, "annotations": []}]
    return {"type": "message", "role": "assistant", "id": "msg_0123456789abcdef", "content": parts}
