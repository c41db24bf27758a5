"""A logical connection over HTTP whose requests go to any web process.

Owns: calls and event streams on real sockets, each at the process that a test names. Does not own: the exchange itself
(`ochat_client.transports.http`), or the processes.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from ochat_client.transports.http import Answer, HttpxExchange, connect
from tests.conformance.fixture import ADMIN
from tests.conformance.peers import WAIT_SECONDS, Hold


class Post:
    """A client, and its connection once it has initialized."""

    def __init__(self) -> None:
        self.id = ""

    async def ask(self, port: int, method: str, **params: Any) -> Any:
        """Call a method at one of the processes."""
        http = await exchange(port)
        try:
            named = {"ochat-connection-id": self.id} if self.id else {}
            headers = {"content-type": "application/json", "ochat-protocol-version": "1", **named}
            call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = await http.request("POST", "/v1/rpc", headers, json.dumps(call).encode())
            assert answer.status == 200, answer.body
            self.id = answer.headers["ochat-connection-id"]
            return json.loads(answer.body)["result"]
        finally:
            await http.close()


async def exchange(port: int) -> HttpxExchange:
    """Return requests to the process at a port."""
    made = await connect(f"http://127.0.0.1:{port}", token=ADMIN.token)
    assert isinstance(made._exchange, HttpxExchange)
    return made._exchange


class Events:
    """An event stream at one process."""

    def __init__(self, exchange: HttpxExchange, id: str) -> None:
        self._exchange = exchange
        self._pieces = exchange.stream("/v1/events", {"ochat-connection-id": id})
        self._text = b""

    async def opened(self) -> int:
        """Return the status."""
        async with asyncio.timeout(WAIT_SECONDS):
            answer = await anext(self._pieces)
        assert isinstance(answer, Answer)
        return answer.status

    async def next(self) -> int:
        """Return the sequence of the next event. Raises StopAsyncIteration at an orderly end."""
        while True:
            while b"\n\n" not in self._text:
                async with asyncio.timeout(WAIT_SECONDS):
                    piece = await anext(self._pieces)
                assert isinstance(piece, bytes)
                self._text += piece
            block, self._text = self._text.split(b"\n\n", 1)
            if block.startswith(b"data: "):
                event = json.loads(block[len(b"data: ") :])
                if event["method"] == "session.event":
                    sequence: int = event["params"]["sequence"]
                    return sequence

    async def close(self) -> None:
        """Leave."""
        await self._exchange.close()


async def events(port: int, id: str) -> Events:
    """Open the stream of a connection at the process at a port."""
    return Events(await exchange(port), id)


async def told(hold: Hold, stream: Events, first: int) -> int:
    """Let something happen, see that it is told from `first` on without a gap, and return what comes next."""
    await (hold.stop() if hold.view.session.desired_state == "running" else hold.start())
    await hold.until_kind("session.state_changed")
    latest = (await hold.counters())[1]
    assert [await stream.next() for _ in range(first, latest + 1)] == [*range(first, latest + 1)]
    return latest + 1
