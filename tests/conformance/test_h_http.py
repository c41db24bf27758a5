"""The scenarios of HTTP: its headers, statuses, batches and streams, and who owns a connection id."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from sessions_app import limits
from sessions_app.db import in_db
from sessions_app.models import Connection
from tests.conformance import fixture
from tests.conformance.fixture import ADMIN, EXPIRED, PUBLIC, READER, STRANGER, Person
from tests.conformance.over_http import HttpSite, LocalRequest, Reply, Requests
from tests.conformance.peers import Hold
from tests.conformance.sites import Headers, bearer
from tests.conformance.test_a_envelope import INITIALIZE
from tests.conformance.test_b_authentication import MALFORMED
from tests.golden.contract import writing

JSON = (b"content-type", b"application/json")
VERSION = (b"ochat-protocol-version", b"1")
ID = b"ochat-connection-id"


def call(method: str, id: str | int | None = None, /, **params: Any) -> dict[str, Any]:
    """Return a call; with `id` None a notification."""
    named = {} if id is None else {"id": id}
    return {"jsonrpc": "2.0", **named, "method": method, "params": params}


OPEN = call("protocol.initialize", "i", **INITIALIZE)
PING = call("protocol.ping", "p", payload={"a": [1, None, "x"]})


class Caller:
    """Somebody who posts."""

    def __init__(self, site: HttpSite, person: Person = ADMIN, headers: Headers | None = None) -> None:
        self.requests = Requests(site, [bearer(person)] if headers is None else headers)
        self.id = b""

    async def post(self, body: object, headers: Iterable[tuple[bytes, bytes]] | None = None) -> Reply:
        """Post a body: JSON, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = [(ID, self.id)] if self.id else []
        reply = await self.requests.ask(
            "POST", "/v1/rpc", [JSON, VERSION, *named] if headers is None else list(headers), content
        )
        if reply.status >= 400:
            assert not list(writing("Error").iter_errors(reply.json))
        return reply

    async def open(self) -> bytes:
        """Initialize a connection and return its id."""
        reply = await self.post(OPEN)
        assert reply.status == 200, reply.body
        self.id = reply.header(ID) or b""
        return self.id

    async def get(self, path: str, *headers: tuple[bytes, bytes], **options: Any) -> Reply:
        """Get something."""
        return await self.requests.ask("GET", path, headers, **options)

    def stream(self, path: str, *headers: tuple[bytes, bytes], query: str = "") -> Frames:
        """Open a stream."""
        sent = [*self.requests._headers, *headers]
        return Frames(self.requests.send(LocalRequest("GET", path, sent, query=query)))


class Frames:
    """A stream of events as its reader sees it."""

    def __init__(self, request: LocalRequest) -> None:
        self.request = request
        self._pieces = request.__aiter__()
        self._text = b""

    async def status(self) -> int:
        """Return the status of the answer."""
        await self.request.begun.wait()
        return self.request.status

    async def next(self, *, comments: bool = False) -> dict[str, Any]:
        """Return the next frame by its fields, data decoded. Raises StopAsyncIteration behind the last."""
        while True:
            while b"\n\n" not in self._text:
                self._text += await anext(self._pieces)
            block, self._text = self._text.split(b"\n\n", 1)
            if block.startswith(b":"):
                if comments:
                    return {"comment": block[1:].strip().decode()}
                continue
            fields = dict(line.split(b": ", 1) for line in block.split(b"\n"))
            return {
                name.decode(): msgspec.json.decode(value) if name == b"data" else value.decode()
                for name, value in fields.items()
            }

    async def durable(self) -> dict[str, Any]:
        """Return the next frame of a durable event."""
        while True:
            frame = await self.next()
            if frame.get("event", "session.event") == "session.event":
                return frame

    def close(self) -> None:
        """Leave."""
        self.request.hang_up()


async def test_a2(http_site: HttpSite) -> None:
    """HTTP initialize without a connection id gives one; a later ping echoes."""
    caller = Caller(http_site)
    id = await caller.open()
    pinged = await caller.post(PING)

    assert id.startswith(b"con_")
    assert (pinged.status, pinged.header(ID)) == (200, id)
    assert pinged.json["result"]["payload"] == {"a": [1, None, "x"]}
    assert pinged.json["result"]["ready"] is True


async def test_a3(http_site: HttpSite) -> None:
    """ping before initialize, or after one that failed: incompatible_protocol."""
    caller = Caller(http_site)
    assert (await caller.post(PING)).code == "incompatible_protocol"
    later = {**INITIALIZE, "protocol_min": {"major": 2, "minor": 0}, "protocol_max": {"major": 2, "minor": 0}}
    failed = await caller.post(call("protocol.initialize", "i", **later))
    caller.id = failed.header(ID) or b""

    assert (failed.status, failed.json["error"]["code"]) == (200, "incompatible_protocol")
    pinged = await caller.post(PING)
    assert (pinged.status, pinged.json["error"]["code"]) == (200, "incompatible_protocol")
    assert (await caller.get("/v1/events", (ID, caller.id))).code == "incompatible_protocol"
    await caller.post(OPEN)
    assert "result" in (await caller.post(PING)).json


async def test_a10(http_site: HttpSite) -> None:
    """A ping notification on HTTP: 204 and an empty body."""
    caller = Caller(http_site)
    await caller.open()
    silent = await caller.post(call("protocol.ping", payload=1))

    assert (silent.status, silent.body, silent.header(ID)) == (204, b"", caller.id)
    assert (await caller.post(call("session.list", limit=1))).code == "invalid_request"
    assert (await caller.post({"jsonrpc": "2.0", "id": 1, "result": {}})).code == "invalid_request"
    assert (await caller.post(PING)).status == 200


async def test_a12(http_site: HttpSite) -> None:
    """An HTTP batch that initializes: one array, ids in request order."""
    caller = Caller(http_site)
    opened = await caller.post([OPEN, PING, call("server.info", 7)])
    caller.id = opened.header(ID) or b""

    assert [answer["id"] for answer in opened.json] == ["i", "p", 7]
    assert all("result" in answer for answer in opened.json)
    many = await caller.post([call("protocol.ping", number, payload=number) for number in range(128)])
    assert [answer["result"]["payload"] for answer in many.json] == [*range(128)]
    assert (await caller.post([call("protocol.ping"), PING])).json["id"] == "p"
    assert (await caller.post([call("protocol.ping")] * 2)).status == 204
    for batch, refused in (
        ([], "invalid_request"),
        ([PING] * 129, "resource_limit"),
        ([PING, 1], "invalid_request"),
        ([PING, call("session.list", limit=1)], "invalid_request"),
    ):
        answer = await caller.post(batch)
        assert (answer.status, answer.code) == (400, refused)
    caller.id = b""
    assert (await caller.post([PING, OPEN])).code == "incompatible_protocol"


BAD_HEADERS: dict[str, tuple[Headers, str]] = {
    "no type": ([VERSION], "invalid_request"),
    "another type": ([(b"content-type", b"text/json"), VERSION], "invalid_request"),
    "another charset": (
        [(b"content-type", b"application/json; charset=latin-1"), VERSION],
        "invalid_request",
    ),
    "two types": ([JSON, JSON, VERSION], "invalid_request"),
    "no version": ([JSON], "incompatible_protocol"),
    "another version": ([JSON, (VERSION[0], b"1.1")], "incompatible_protocol"),
    "two versions": ([JSON, VERSION, VERSION], "invalid_request"),
    "an unknown id": ([JSON, VERSION, (ID, b"con_none")], "invalid_request"),
    "an id that is no text": ([JSON, VERSION, (ID, b"\xff")], "invalid_request"),
    "two ids": ([JSON, VERSION, (ID, b"con_a"), (ID, b"con_a")], "invalid_request"),
}


@pytest.mark.parametrize(("headers", "refused"), BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
async def test_a2_headers(http_site: HttpSite, headers: Headers, refused: str) -> None:
    """HTTP initialize without a connection id gives one; a later ping echoes.

    Each header stands once and says what it must, or the whole POST is refused and nothing is opened.
    """
    before = await in_db(Connection.objects.count)
    answer = await Caller(http_site).post(OPEN, headers)

    assert (answer.status, answer.code, answer.header(ID)) == (400, refused, None)
    assert await in_db(Connection.objects.count) == before
    wide = [(b"content-type", b'Application/JSON ; charset="UTF-8"'), (VERSION[0], b"1.0")]
    assert (await Caller(http_site).post(OPEN, wide)).status == 200


BAD_BODIES: dict[str, tuple[bytes, str]] = {
    "truncated": (json.dumps(PING).encode()[:-1], "invalid_request"),
    "empty": (b"", "invalid_request"),
    "not UTF-8": (b'{"jsonrpc":"2.0","id":"\xff","method":"protocol.ping"}', "invalid_request"),
    "a number": (b"17", "invalid_request"),
    "two texts": (b"{}{}", "invalid_request"),
    "too deep": (
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":' + b"[" * 64 + b"]" * 64 + b"}}",
        "resource_limit",
    ),
    "far too deep": (b"[" * 100_000, "resource_limit"),
    "a name twice, anywhere": (
        b'{"jsonrpc":"2.0","id":1,"method":"protocol.ping","params":{"payload":{"a":1,"a":2}}}',
        "invalid_request",
    ),
}


@pytest.mark.parametrize(("body", "refused"), BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_a14(http_site: HttpSite, body: bytes, refused: str) -> None:
    """A truncated HTTP body: 400, and the connection lives."""
    caller = Caller(http_site)
    await caller.open()
    answer = await caller.post(body)

    assert (answer.status, answer.code) == (400, refused)
    assert (await caller.post(PING)).status == 200


async def test_a15(http_site: HttpSite) -> None:
    """An HTTP body of 16 MiB and one byte: 400 resource_limit."""
    padded = json.dumps(PING).encode().ljust(limits.MAX_FRAME_BYTES)
    caller = Caller(http_site)
    await caller.open()

    assert (await caller.post(padded)).status == 200
    refused = await caller.post(padded + b" ")
    assert (refused.status, refused.code, refused.json["retryable"]) == (400, "resource_limit", False)
    cut = await caller.requests.ask("POST", "/v1/rpc", [JSON, VERSION], too_large=True)
    assert (cut.status, cut.code) == (400, "resource_limit")
    await Caller(http_site).open()


@pytest.mark.parametrize("headers", MALFORMED.values(), ids=MALFORMED.keys())
async def test_b1(http_site: HttpSite, headers: Headers) -> None:
    """No, unknown and malformed credentials are refused, each alike."""
    caller = Caller(http_site, headers=headers)
    for answer in (await caller.post(OPEN), await caller.get("/v1/events"), await caller.get("/v1/nowhere")):
        assert (answer.status, answer.header(b"www-authenticate")) == (401, b"Bearer")
        assert (answer.code, answer.json["message"]) == ("unauthenticated", "authentication is required")
        assert answer.header(ID) is None


async def test_b2(http_site: HttpSite) -> None:
    """The scheme is read in any case; its kind is http.static_bearer."""
    opened = await Caller(http_site, headers=[(b"authorization", b"bEaReR " + ADMIN.token.encode())]).post(
        OPEN
    )
    assert opened.json["result"]["principal"]["authentication_kind"] == "http.static_bearer"


async def test_b3(http_site: HttpSite) -> None:
    """An expired token is refused, another one is not."""
    assert (await Caller(http_site, EXPIRED).post(OPEN)).status == 401
    assert (await Caller(http_site, ADMIN).post(OPEN)).status == 200


def asserted(principal: str = "pri_asserted", scopes: str = "audit.read, prompt.list") -> Headers:
    """Return what a proxy says of who asks."""
    return [(b"x-ochat-principal-id", principal.encode()), (b"x-ochat-scopes", scopes.encode())]


async def test_b4(http_site: HttpSite) -> None:
    """A trusted proxy asserts the identity."""
    for more in ((), [(b"authorization", b"Bearer nobody")]):
        opened = await Caller(http_site, headers=[*asserted(), *more]).post(OPEN)
        assert opened.json["result"]["principal"] == {
            "id": "pri_asserted",
            "authentication_kind": "http.reverse_proxy",
            "scopes": ["prompt.list", "audit.read"],
            "attributes": {"http.proxy": "127.0.0.1"},
        }
    bad = [
        asserted()[:1],
        asserted()[1:],
        [*asserted(), *asserted()[1:]],
        asserted(principal="nobody"),
        asserted(scopes="prompt.list prompt.list"),
        asserted(scopes=","),
        asserted(scopes="root"),
    ]
    for headers in bad:
        assert (await Caller(http_site, headers=[*headers, bearer(ADMIN)]).post(OPEN)).status == 401
    malformed = [*asserted(), (b"authorization", b"Basic x")]
    assert (await Caller(http_site, headers=malformed).post(OPEN)).status == 401
    elsewhere = Requests(http_site, asserted())
    assert (await elsewhere.ask("GET", "/v1/health", peer="127.0.0.9")).status == 401


async def test_b8(http_site: HttpSite) -> None:
    """A connection id belongs to one authority."""
    owner = Caller(http_site, headers=asserted())
    id = await owner.open()
    others: list[tuple[Headers, str]] = [
        (asserted(scopes="prompt.list"), "127.0.0.1"),
        (asserted(principal="pri_other"), "127.0.0.1"),
        (asserted(), "127.0.0.2"),
        ([bearer(ADMIN)], "127.0.0.1"),
    ]
    for headers, peer in others:
        other = Requests(http_site, [*headers, JSON, VERSION, (ID, id)])
        for method, path in (("POST", "/v1/rpc"), ("GET", "/v1/events"), ("DELETE", "/v1/connection")):
            body = json.dumps(PING).encode() if method == "POST" else b""
            answer = await other.ask(method, path, body=body, peer=peer)
            assert (answer.status, answer.code) == (400, "permission_denied")
    assert (await owner.post(PING)).status == 200


async def _session(site: HttpSite, *, starts: int = 1) -> Hold:
    hold = await (await site.peer()).create()
    for _ in range(starts):
        await hold.start()
        await hold.stop()
    return hold


async def test_h3(http_site: HttpSite) -> None:
    """A cursor that is no longer retained on an HTTP stream: 409."""
    with limits.using(msgspec.structs.replace(limits.server(), max_events_per_session=8)):
        hold = await _session(http_site, starts=7)
        caller = Caller(http_site)
        path = f"/v1/sessions/{hold.session_id}/events"

        gone = await caller.get(path, query="after_sequence=1")
        assert (gone.status, gone.code, gone.json["retryable"]) == (409, "snapshot_required", False)
        latest = (await hold.counters())[1]
        stream = caller.stream(path, query=f"after_sequence={latest - 8}")
        assert await stream.status() == 200
        assert (await stream.durable())["id"] == str(latest - 7)
        stream.close()


async def test_h3_every_failure(http_site: HttpSite) -> None:
    """A cursor that is no longer retained on an HTTP stream: 409.

    So are all other failures of that route but a missing credential.
    """
    session_id = (await _session(http_site, starts=0)).session_id
    path = f"/v1/sessions/{session_id}/events"
    admin = Caller(http_site)
    answers = {
        "invalid_request": [
            await admin.get(path, query="after_sequence=-1"),
            await admin.get(path, query="after_sequence=1.0"),
            await admin.get(path, query="after_sequence="),
            await admin.get(path, query="after_sequence=1&after_sequence=1"),
            await admin.get(path, (b"last-event-id", b"x")),
            await admin.get(path, (b"last-event-id", b"1"), query="after_sequence=0"),
            await admin.get(path, (b"last-event-id", b"1"), (b"last-event-id", b"1")),
        ],
        "session_not_found": [await admin.get("/v1/sessions/ses_none/events")],
        "permission_denied": [
            await Caller(http_site, STRANGER).get(path),
            await Caller(http_site, PUBLIC).get(path),
        ],
    }
    for refused, replies in answers.items():
        assert [(reply.status, reply.code) for reply in replies] == [(409, refused)] * len(replies)


async def test_h4(http_site: HttpSite) -> None:
    """An HTTP stream reopened with Last-Event-ID goes on."""
    hold = await _session(http_site)
    caller = Caller(http_site)
    path = f"/v1/sessions/{hold.session_id}/events"
    stream = caller.stream(path, query="after_sequence=0")
    assert await stream.next(comments=True) == {"comment": "connected"}
    first = await stream.durable()
    stream.close()
    await stream.request.ended.wait()
    again = caller.stream(path, (b"last-event-id", first["id"].encode()))
    second = await again.durable()

    assert (first["id"], second["id"]) == ("1", "2")
    assert (first["event"], first["data"]["sequence"]) == ("session.event", 1)
    assert not list(writing("DurableEventProduced").iter_errors(first["data"]))
    latest = (await hold.counters())[1]
    while int(second["id"]) < latest:
        second = await again.durable()
    now = caller.stream(path)
    assert await now.status() == 200
    await hold.start()
    assert [(await one.durable())["id"] for one in (again, now)] == [str(latest + 1)] * 2
    again.close()
    now.close()


async def test_h12(http_site: HttpSite) -> None:
    """An ETag for each scope identity."""
    hold = await _session(http_site)
    path = f"/v1/sessions/{hold.session_id}/snapshot"
    admin, reader = Caller(http_site), Caller(http_site, READER)
    seen, other = await admin.get(path), await reader.get(path)
    tag = seen.header(b"etag") or b""

    assert not list(writing("Snapshot").iter_errors(seen.json))
    assert (seen.status, other.status) == (200, 200)
    assert tag != other.header(b"etag")
    known = await admin.get(path, (b"if-none-match", b'"x", W/' + tag))
    assert (known.status, known.body, known.header(b"etag")) == (304, b"", tag)
    assert (await reader.get(path, (b"if-none-match", tag))).status == 200
    await hold.start()
    assert (await admin.get(path, (b"if-none-match", tag))).status == 200
    refused = [await Caller(http_site, STRANGER).get(path), await admin.get("/v1/sessions/ses_none/snapshot")]
    assert [(one.status, one.code) for one in refused] == [
        (400, "permission_denied"),
        (400, "session_not_found"),
    ]


async def test_h8(http_site: HttpSite) -> None:
    """A stalled subscriber is closed as slow; a healthy one and the writer notice nothing.

    The stream of a session ends with `snapshot.required`.
    """
    hold = await (await http_site.peer()).create(fixture.SMOKE)
    caller = Caller(http_site)
    path = f"/v1/sessions/{hold.session_id}/events"
    stalled, healthy = caller.stream(path), caller.stream(path)
    assert [await one.status() for one in (stalled, healthy)] == [200, 200]
    stalled.request.send_part(b": %s\n\n" % (b"x" * stalled.request.FULL_BYTES))
    ended = False
    for number in range(2 * fixture.SETTINGS["subscriber_queue_capacity"]):
        await (hold.start() if number % 2 == 0 else hold.stop())
        ended = stalled.request.ended.is_set()
    latest = (await hold.counters())[1]
    while int((await healthy.durable())["id"]) < latest:
        pass
    if not ended:
        await stalled.request.ended.wait()
    last = {}
    with pytest.raises(StopAsyncIteration):
        while True:
            last = await stalled.next()
    assert (last["event"], last["data"]["code"]) == ("snapshot.required", "snapshot_required")
    assert last["data"]["retryable"] is True
    healthy.close()
