"""A scripted model server over real HTTP: OpenAI Responses, OpenAI chat and Anthropic messages.

Owns what no third-party mock does on cue: replies that stop at a gate until a test opens it, fall silent,
break off or end early at an exact place, and a record of who hung up. The happy paths are tested against a
third-party mock (`llmock`) as well, so that our reading of a dialect does not only meet our own writing of
it.

    with ModelServer() as server:
        server.answer(Reply(Text("Hel", Wait("gate"), "lo"), Call("clock", "{}")))
        ...                                    # ask, with `server.env()` in the environment
        server.open("gate")

It runs in a thread, so that synchronous tests, event loops and other processes can all talk to it. For a
benchmark it is a process of its own: `python -m tests.support.model_servers --chunks 10`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from tests.support.model_scripts import (
    Answer,
    Drop,
    Fail,
    Hang,
    Pause,
    Reply,
    Wait,
    error_body,
    render,
    words,
)

WAIT_S = 20.0
"""The bound on every wait of this module: far above what a loaded machine needs, so that reaching it is a
failure."""


_connections = itertools.count()


class Request:
    """A request that the server got."""

    def __init__(self, connection: int, path: str, headers: dict[str, str], raw: bytes) -> None:
        self.connection = connection
        self.path = path
        self.headers = headers
        self.raw = raw
        self.body: dict[str, Any] = msgspec.json.decode(raw)
        self.hung_up = False
        self._over = threading.Event()

    def wait_over(self) -> None:
        """Wait until the answer was sent to its end or the client hung up."""
        assert self._over.wait(WAIT_S), "the request is still being answered"

    def _end(self, *, hung_up: bool) -> None:
        self.hung_up = hung_up
        self._over.set()


class ModelServer:
    """The server; answers come from the queue, then from `default` for ever."""

    def __init__(
        self, default: Answer | Callable[[dict[str, Any]], Answer] | None = None, *, port: int = 0
    ) -> None:
        self.default = default if default is not None else Reply(words(10))
        self.requests: list[Request] = []
        self._answers: deque[Answer] = deque()
        self._gates: dict[str, asyncio.Event] = {}
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        # With its protocol named, or asyncio leaves Nagle's algorithm on: 40 ms before the second event.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._run, name="model-server", daemon=True)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.openai_url = self.url + "/v1"

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(WAIT_S)

    def env(self) -> dict[str, str]:
        """Return the variables that point the official SDKs at this server."""
        return {
            "OPENAI_BASE_URL": self.openai_url,
            "OPENAI_API_KEY": "test-key",
            "OLLAMA_BASE_URL": self.openai_url,
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "test-key",
        }

    def reset(self) -> None:
        """Forget what is queued and what was asked; every gate is shut."""
        self._answers.clear()
        self._gates.clear()
        self.requests.clear()

    def answer(self, *answers: Answer) -> None:
        """Queue answers for the next requests."""
        self._answers.extend(answers)

    def open(self, gate: str) -> None:
        """Let every reply that waits at `gate`, or gets there, go on."""
        self._loop.call_soon_threadsafe(lambda: self._gate(gate).set())

    def wait_request(self, count: int = 1) -> Request:
        """Wait until `count` requests have come and return the last of them."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, WAIT_S), "no request came"
            return self.requests[count - 1]

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._track, sock=self._socket)
        await self._stopped.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _track(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._connection(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # The client went away, or the test is over.
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = next(_connections)
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])
            }
            raw = await reader.readexactly(int(headers.get("content-length", 0)))
            request = Request(connection, head[0].split()[1], headers, raw)
            with self._changed:
                self.requests.append(request)
                self._changed.notify_all()
            answer = self._answers.popleft() if self._answers else self.default
            if callable(answer):
                answer = answer(request.body)
            answering = asyncio.ensure_future(_send(writer, request, answer, self._gate))
            watching = asyncio.ensure_future(reader.read(1))
            await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
            request._end(hung_up=not answering.done())
            if not answering.done():
                answering.cancel()
                return
            watching.cancel()
            await asyncio.wait({watching})
            if not answering.result():
                return


async def _send(
    writer: asyncio.StreamWriter, request: Request, answer: Answer, gate: Callable[[str], asyncio.Event]
) -> bool:
    """Send an answer; tell whether the connection goes on."""
    if isinstance(answer, Fail):
        body = error_body(answer, request.path)
        head = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
        lines = (f"HTTP/1.1 {answer.status} Scripted", *(f"{name}: {value}" for name, value in head.items()))
        writer.write("\r\n".join((*lines, "", "")).encode() + body)
        return True
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for part in render(answer, request.path, str(request.body.get("model"))):
        match part:
            case bytes():
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await asyncio.sleep(0)  # One send per event: a model does not batch them.
            case Wait():
                await gate(part.gate).wait()
            case Pause():
                await asyncio.sleep(part.seconds)
            case Hang():
                await asyncio.Event().wait()
            case Drop():
                writer.transport.abort()
                return False
            case _:
                break
    writer.write(b"0\r\n\r\n")
    return True


def main() -> None:
    """Serve a fixed reply until killed; the first line of output is the URL."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--chunks", type=int, default=10)
    options = parser.parse_args()
    with ModelServer(Reply(words(options.chunks)), port=options.port) as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
