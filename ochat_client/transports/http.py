"""HTTP: each envelope is a request, and one stream brings the notifications (behaviour 1.4).

Owns: which answer means that the connection is gone, the stream and how it goes on, the order between the answer of an attach and
the events behind it. Does not own: bytes on sockets (`Exchange`; httpx for real ones).

A server closes a connection that nobody uses; the open stream counts as use. When the stream breaks, the process that held it
may have died, and our attachments with it: the connection counts as lost then. An orderly end is another matter: the next stream
goes on where this one ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ochat_client.errors import ClientError, ConnectionLost, ConnectionRefused
from ochat_client.transports.websocket import LOOPBACK, UNREAD_FRAMES

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10
SILENCE_SECONDS = 60
"""A stream that is silent for longer has no server any more: keep-alives come every 15 s at most."""
REOPEN_SECONDS = 0.1
"""Between the end of a stream and the next."""
GOODBYE_SECONDS = 5
"""How long closing may take; a server that does not hear of it closes the connection when it has been idle."""
REQUESTS_AT_ONCE = 16
HOLDING_METHODS = frozenset({"session.attach", "session.create"})
"""Behind whose answers events begin: none is handed out while such a call waits."""


@dataclass(frozen=True)
class Answer:
    """What a request was answered with."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name."""
    body: bytes = b""


class Exchange(Protocol):
    """Requests to one server with one credential. Raises ConnectionLost where nobody answers."""

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """Send a request and return the whole answer."""
        ...

    def stream(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[Answer | bytes]:
        """Send a GET; return the answer without its body, then the body as it comes."""
        ...

    async def close(self) -> None:
        """Let every socket go."""
        ...


class _Call(Struct):
    method: str | UnsetType = UNSET
    id: Raw | UnsetType = UNSET


class _Outcome(Struct):
    result: Raw | UnsetType = UNSET


class _Refusal(Struct):
    code: str = ""
    message: str = ""


class Http:
    """A logical connection; see `Transport`."""

    def __init__(self, exchange: Exchange) -> None:
        """Use `exchange`; the connection comes about by the first envelope, which must be `protocol.initialize`."""
        self._exchange = exchange
        self._connection_id: str | None = None
        self._opening = asyncio.Lock()
        self._frames: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._holding = 0
        self._free = asyncio.Event()
        self._free.set()
        self._requests = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._streaming = False
        self._ended: ClientError | None = None

    async def send(self, frame: bytes) -> None:
        """Send one envelope. The first one is answered before this returns; raises ConnectionRefused when it is refused."""
        if self._ended is not None:
            raise self._ended
        if self._connection_id is None:
            async with self._opening:
                if self._connection_id is None:
                    await self._open(frame)
                    return
        await self._requests.acquire()
        self._spawn(self._send(frame))

    async def receive(self) -> bytes:
        """Return the next envelope."""
        while not self._frames:
            if self._ended is not None:
                raise self._ended
            self._news.clear()
            await self._news.wait()
        frame = self._frames.popleft()
        if len(self._frames) < UNREAD_FRAMES:
            self._room.set()
        return frame

    async def close(self) -> None:
        """Close the logical connection."""
        self._end(ConnectionLost("the connection was closed here"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        connection_id, self._connection_id = self._connection_id, None
        if connection_id is not None:
            with suppress(ClientError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    headers = {"ochat-connection-id": connection_id}
                    await self._exchange.request("DELETE", "/v1/connection", headers)
        await self._exchange.close()

    # Calls

    async def _open(self, frame: bytes) -> None:
        try:
            await self._post(frame)
        except ConnectionLost as lost:
            raise ConnectionRefused(str(lost), final=False) from None

    async def _send(self, frame: bytes) -> None:
        try:
            await self._post(frame)
        finally:
            self._requests.release()

    async def _post(self, frame: bytes) -> None:
        call = msgspec.json.decode(frame, type=_Call)
        holds = call.method in HOLDING_METHODS
        if holds:
            self._holding += 1
            self._free.clear()
        try:
            headers = {"content-type": "application/json", "ochat-protocol-version": "1.0"}
            if self._connection_id is not None:
                headers["ochat-connection-id"] = self._connection_id
            answer = await self._exchange.request("POST", "/v1/rpc", headers, frame)
            self._take(call, answer)
        finally:
            if holds:
                self._holding -= 1
                if not self._holding:
                    self._free.set()

    def _take(self, call: _Call, answer: Answer) -> None:
        """Hand an answer out, or learn from it that there is no connection."""
        if answer.status == 204:
            return
        if answer.status != 200:
            raise self._refused(answer)
        if self._connection_id is None:
            self._connection_id = answer.headers.get("ochat-connection-id")
        self._put(answer.body)
        if call.method == "protocol.initialize" and not self._streaming:
            outcome = msgspec.json.decode(answer.body, type=_Outcome)
            if outcome.result is not UNSET:
                self._streaming = True
                self._spawn(self._stream())

    def _refused(self, answer: Answer) -> ClientError:
        try:
            refusal = msgspec.json.decode(answer.body, type=_Refusal)
        except msgspec.DecodeError:
            refusal = _Refusal()
        said = f"{refusal.message or 'the server refused'} (HTTP {answer.status})"
        if self._connection_id is None:
            return ConnectionRefused(said, final=answer.status < 500 and refusal.code != "resource_limit")
        return ConnectionLost(said)

    # The stream

    async def _stream(self) -> None:
        """Read notifications until the connection ends; one stream follows the other."""
        while self._ended is None:
            headers = {"ochat-connection-id": self._connection_id or "", "accept": "text/event-stream"}
            lines = Lines()
            async for piece in self._exchange.stream("/v1/events", headers):
                if isinstance(piece, Answer):
                    if piece.status != 200:
                        raise self._refused(piece)
                    continue
                for line in lines.feed(piece):
                    if line.startswith(b"data: "):
                        await self._tell(line[len(b"data: ") :])
            await asyncio.sleep(REOPEN_SECONDS)

    async def _tell(self, frame: bytes) -> None:
        await self._free.wait()
        await self._room.wait()
        self._put(frame)
        if len(self._frames) >= UNREAD_FRAMES:
            self._room.clear()

    # Inside

    def _put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._news.set()

    def _end(self, error: ClientError) -> None:
        if self._ended is None:
            self._ended = error
            self._news.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ClientError as error:
            self._end(error)


class Lines:
    """The lines of a text that comes in pieces."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that a piece completes, without their ends."""
        *whole, rest = piece.split(b"\n")
        lines = []
        for line in whole:
            self._rest.append(line)
            lines.append(b"".join(self._rest))
            self._rest.clear()
        if rest:
            self._rest.append(rest)
        return lines


class HttpxExchange:
    """Requests over sockets."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        """Use a client that has the address and the credential."""
        self._client = client

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Answer:
        """Send a request; a call may take as long as it takes."""
        import httpx  # heavy, and of use only here

        try:
            answer = await self._client.request(method, path, headers=dict(headers), content=body)
        except (httpx.HTTPError, OSError) as error:
            raise _lost(error) from None
        return Answer(answer.status_code, dict(answer.headers), answer.content)

    async def stream(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[Answer | bytes]:
        """Send a GET and read what comes."""
        import httpx  # as above

        timeout = httpx.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS)
        try:
            async with self._client.stream("GET", path, headers=dict(headers), timeout=timeout) as answer:
                if answer.status_code != 200:
                    yield Answer(answer.status_code, dict(answer.headers), await answer.aread())
                    return
                yield Answer(answer.status_code, dict(answer.headers))
                async for piece in answer.aiter_raw():
                    yield piece
        except (httpx.HTTPError, OSError) as error:
            raise _lost(error) from None

    async def close(self) -> None:
        """Let every socket go."""
        await self._client.aclose()


def _lost(error: Exception) -> ConnectionLost:
    return ConnectionLost(f"the server cannot be reached: {str(error) or type(error).__name__}")


async def connect(uri: str, *, token: str | None) -> Http:
    """Return a transport to `http://` or `https://`; see `open_transport`. Nothing is sent before the first envelope."""
    import httpx  # heavy, and of use only here

    address = urlsplit(uri)
    if not address.hostname:
        raise ConnectionRefused("this is no HTTP address", final=True)
    client = httpx.AsyncClient(
        base_url=uri.rstrip("/"),
        headers={"Authorization": f"Bearer {token}"} if token else None,
        timeout=httpx.Timeout(CONNECT_SECONDS, read=None),
        trust_env=address.hostname not in LOOPBACK,
    )
    return Http(HttpxExchange(client))
