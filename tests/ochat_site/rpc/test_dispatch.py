"""The order of the checks, for every method, and what of a failure leaves the server (behaviour 1.1)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from ochat_site.dialects.ochat1.types import ScheduleCreateParams, SessionListParams
from ochat_site.rpc.context import Context, Handler, Method
from ochat_site.rpc.dispatch import Dispatcher, fingerprint
from ochat_site.rpc.methods import METHODS
from permissions_app.audit_batch import AuditBatch
from permissions_app.principals import Identity
from sessions_app import processes
from sessions_app.errors import InvalidState
from sessions_app.records import AttachmentMode, Scope
from sessions_app.views import View
from tests.golden.contract import EXAMPLES, Example, writing
from tests.golden.contract import METHODS as PROTOCOL
from tests.support.serving import identity, server
from tests.support.world import ALL_SCOPES

ROWS = [row for (dialect, _), row in METHODS.items() if dialect == "ochat1"]
HANDLED = {row.name for row in ROWS}
UNHANDLED = [facts["method"] for facts in PROTOCOL if facts["method"] not in HANDLED]
REQUESTS = [example for example in EXAMPLES if example.definition.removesuffix(".request") in HANDLED]
VALID = {
    example.definition.removesuffix(".request"): example.text
    for example in reversed(REQUESTS)
    if example.valid and not example.decode_only
}
MALFORMED = [example for example in REQUESTS if not example.valid and example.detect != "state"]


@pytest.fixture
def serving_process(transactional_db: None) -> None:
    """Enter this process into the store of the test: a connection names the process that holds it."""
    processes.register("web")


@dataclass
class Stranger:
    """A connection that has said nothing yet, of somebody without any scope unless some are given."""

    identity: Identity = field(default_factory=lambda: identity(scopes=()))
    connection_id: str = "con_stranger"
    transport: str = "websocket"
    logical: bool = False
    initialized: bool = False
    max_event_bytes: int | None = None

    def open_attachment(
        self, attachment_id: str, session_id: str, mode: AttachmentMode, *, view: View, after: int
    ) -> None:
        raise AssertionError("nothing is attached here")

    def close_attachment(self, attachment_id: str) -> None:
        raise AssertionError("nothing is attached here")


class Recorder(AuditBatch):
    """Keeps what it is told instead of writing it."""

    def said(self) -> Sequence[tuple[str, str, str]]:
        payloads = [(row.name, msgspec.json.decode(row.payload)) for row in self._rows]
        return [(name, payload["method"], payload["outcome"]) for name, payload in payloads]


@dataclass
class Desk:
    """A dispatcher and one client in front of it; no store."""

    client: Stranger = field(default_factory=Stranger)
    audit: Recorder = field(default_factory=Recorder)
    methods: Mapping[tuple[str, str], Method] = field(default_factory=lambda: METHODS)

    def __post_init__(self) -> None:
        self.server = server()
        self.dispatcher = Dispatcher(self.server, self.audit, self.methods)

    async def ask(self, frame: bytes) -> Any:
        """Return the answer, which a producer may write, or None."""
        answer = await self.dispatcher.handle(self.client, frame)
        if answer is None:
            return None
        message = msgspec.json.decode(answer)
        if "error" in message:
            assert not list(writing("ErrorEnvelope").iter_errors(message))
        return message

    async def refusal(self, frame: bytes) -> str:
        """Return the code that a frame is refused with."""
        code: str = (await self.ask(frame))["error"]["code"]
        return code


def request(method: str, params: str = "{}", id: str = '"r"') -> bytes:
    return f'{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}'.encode()


def row_name(row: Method) -> str:
    return row.name


def file(example: Example) -> str:
    return example.file.removesuffix(".json")


def without(*missing: Scope) -> Stranger:
    return Stranger(identity(scopes=ALL_SCOPES - set(missing)))


# Step 2: the envelope


async def test_nothing_is_said_to_what_is_no_message() -> None:
    desk = Desk()
    for frame in (b"", b"\xff", b"[]", b"{}", b"null", b"[" * 100_000, b'{"jsonrpc":"2.0","id":null}'):
        assert await desk.ask(frame) is None
    assert desk.audit.said() == []


async def test_a_message_that_is_malformed_is_answered_by_its_id() -> None:
    desk = Desk()

    assert await desk.refusal(b'{"jsonrpc":"1.0","id":7,"method":"protocol.ping"}') == "invalid_request"
    assert await desk.refusal(b'{"jsonrpc":"2.0","id":7,"params":' + b"[" * 100_000) == "invalid_request"


@pytest.mark.parametrize("method", ["server.info", "session.send_message", "made.up"])
async def test_a_notification_is_taken_for_ping_alone(method: str) -> None:
    """Behaviour 1.3."""
    desk = Desk(Stranger(identity(scopes=ALL_SCOPES), initialized=True))
    for named in (method, "protocol.ping"):
        assert await desk.ask(f'{{"jsonrpc":"2.0","method":"{named}"}}'.encode()) is None
    assert desk.audit.said() == [("protocol.command.succeeded", "protocol.ping", "success")]


async def test_a_ping_notification_is_not_answered_when_it_is_refused() -> None:
    assert await Desk().ask(b'{"jsonrpc":"2.0","method":"protocol.ping"}') is None


async def test_a_response_is_not_answered() -> None:
    assert await Desk().ask(b'{"jsonrpc":"2.0","id":1,"result":{}}') is None


@pytest.mark.parametrize("id", ["1", "1.0", "1e0", '"1"', '"\\u0031"', "-0", "12345678901234567890123"])
async def test_an_id_comes_back_as_it_was_written(id: str) -> None:
    answer = await Desk().dispatcher.handle(Stranger(), request("protocol.ping", id=id))

    assert answer is not None
    assert answer.startswith(f'{{"jsonrpc":"2.0","id":{id},"error":'.encode())


# Step 3: the method and its params


@pytest.mark.parametrize("method", [*UNHANDLED, "made.up", "PROTOCOL.PING", "protocol.ping ", "x" * 4096])
async def test_a_method_that_is_not_handled_does_not_exist(method: str) -> None:
    """Whoever asks, with whatever params, initialized or not; and it is in no list."""
    for client in (Stranger(), Stranger(identity(scopes=ALL_SCOPES), initialized=True)):
        desk = Desk(client)
        assert await desk.refusal(request(method, '{"limit":"x"}')) == "method_not_found"
        assert desk.audit.said() == []


@pytest.mark.parametrize("example", MALFORMED, ids=file)
async def test_bad_params_are_told_before_anything_about_the_caller(example: Example) -> None:
    desk = Desk()
    answer = await desk.ask(example.text)

    if answer is not None:
        assert answer["error"]["code"] == example.refusal
    assert desk.audit.said() == []


# Step 4: scopes


@pytest.mark.parametrize("row", [row for row in ROWS if row.scope], ids=row_name)
async def test_a_missing_scope_is_told_before_initialization(row: Method) -> None:
    assert row.scope is not None
    desk = Desk(without(row.scope))
    answer = await desk.ask(VALID[row.name])

    assert answer["error"]["code"] == "permission_denied"
    assert answer["error"]["message"] == f"missing scope {row.scope}"
    assert desk.audit.said() == [("protocol.command.denied", row.name, "permission_denied")]


@pytest.mark.parametrize(
    ("mode", "asked"),
    [
        ("read_only", ["session.transcript.read"]),
        ("read_write", ["session.transcript.read", "session.message.send"]),
        ("owner_read_write", ["session.transcript.read", "session.message.send", "session.own"]),
    ],
)
@pytest.mark.parametrize("method", ["session.create", "session.attach"])
async def test_a_mode_asks_for_scopes_of_its_own(method: str, mode: str, asked: Sequence[Scope]) -> None:
    message = msgspec.json.decode(VALID[method])
    message["params"]["requested_mode"] = mode
    frame = msgspec.json.encode(message)

    for missing in asked:
        answer = await Desk(without(missing)).ask(frame)
        assert answer["error"]["message"] == f"missing scope {missing}"
    # Everything but what is asked for is not missed; what stops this call is the next check.
    enough = Stranger(identity(scopes={*asked, "session.create"}))
    assert await Desk(enough).refusal(frame) == "incompatible_protocol"


async def test_a_create_without_attachment_asks_for_its_own_scope_alone() -> None:
    message = msgspec.json.decode(VALID["session.create"])
    message["params"].pop("requested_mode", None)
    message["params"]["subscribe"] = False

    desk = Desk(Stranger(identity(scopes={"session.create"})))
    assert await desk.refusal(msgspec.json.encode(message)) == "incompatible_protocol"


async def test_scopes_are_those_of_now() -> None:
    desk = Desk(Stranger(identity(scopes=ALL_SCOPES)))
    assert await desk.refusal(VALID["session.list"]) == "incompatible_protocol"

    desk.client.identity = identity(scopes=())
    assert await desk.refusal(VALID["session.list"]) == "permission_denied"


# Step 5: initialized


@pytest.mark.parametrize("row", [row for row in ROWS if not row.opens], ids=row_name)
async def test_nothing_goes_before_initialize(row: Method) -> None:
    desk = Desk(without())

    assert await desk.refusal(VALID[row.name]) == "incompatible_protocol"
    assert desk.audit.said() == [("protocol.command.denied", row.name, "incompatible_protocol")]


@pytest.mark.usefixtures("serving_process")
@pytest.mark.django_db(transaction=True)
async def test_initialize_opens_the_connection() -> None:
    desk = Desk(without())
    answer = await desk.ask(VALID["protocol.initialize"])

    assert not list(writing("protocol.initialize.response").iter_errors(answer))
    assert desk.client.initialized
    assert (
        desk.client.max_event_bytes
        == msgspec.json.decode(VALID["protocol.initialize"])["params"]["max_inbound_event_bytes"]
    )
    assert "result" in await desk.ask(VALID["protocol.ping"])


@pytest.mark.usefixtures("serving_process")
@pytest.mark.django_db(transaction=True)
async def test_a_failed_initialize_leaves_the_connection_as_it_is() -> None:
    desk = Desk(without())
    bad = next(example for example in MALFORMED if "too-new" in example.file).text

    assert await desk.refusal(bad) == "incompatible_protocol"
    assert not desk.client.initialized
    await desk.ask(VALID["protocol.initialize"])
    assert await desk.refusal(bad) == "incompatible_protocol"
    assert desk.client.initialized


@pytest.mark.usefixtures("serving_process")
@pytest.mark.django_db(transaction=True)
async def test_versions_are_negotiated_before_draining_counts() -> None:
    """Behaviour 1.2."""
    desk = Desk(without())
    desk.server.draining = True

    too_new = next(example for example in MALFORMED if "too-new" in example.file).text
    assert await desk.refusal(too_new) == "incompatible_protocol"
    answer = await desk.ask(VALID["protocol.initialize"])
    assert (answer["error"]["code"], answer["error"]["retryable"]) == ("server_shutting_down", True)
    assert not desk.client.initialized


# What of a failure leaves the server


def with_handler(method: str, handler: Handler) -> Mapping[tuple[str, str], Method]:
    """Return the method table with another handler in one row."""
    return {**METHODS, ("ochat1", method): replace(METHODS["ochat1", method], handler=handler)}


@pytest.mark.parametrize(
    "error", [ValueError("a secret"), RecursionError(), MemoryError(), KeyError("secret")]
)
async def test_a_fault_of_ours_keeps_its_details(error: Exception) -> None:
    def fail(_context: Context, _params: Any) -> Any:
        raise error

    desk = Desk(Stranger(identity(), initialized=True), methods=with_handler("protocol.ping", fail))
    answer = await desk.ask(VALID["protocol.ping"])

    assert answer["error"]["code"] == "internal_error"
    assert "secret" not in str(answer)
    assert desk.audit.said() == [("protocol.command.failed", "protocol.ping", "internal_error")]
    assert "result" in await desk.ask(VALID["server.info"])


@pytest.mark.usefixtures("serving_process")
@pytest.mark.django_db(transaction=True)
async def test_what_a_failed_handler_asked_for_is_not_done() -> None:
    def fail(context: Context, _params: Any) -> Any:
        context.afterwards(lambda: setattr(context.client, "initialized", True))
        raise InvalidState("not today")

    desk = Desk(without(), methods=with_handler("protocol.initialize", fail))

    assert await desk.refusal(VALID["protocol.initialize"]) == "invalid_state"
    assert not desk.client.initialized


# Large messages


async def test_others_are_served_while_a_large_message_is_read() -> None:
    desk = Desk(Stranger(identity(), initialized=True))
    payload = "[" + ",".join(["[]"] * 400_000) + "]"
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(count())
    answer = await desk.ask(request("protocol.ping", f'{{"payload":{payload}}}'))
    other.cancel()

    assert len(answer["result"]["payload"]) == 400_000
    assert turns > 10


async def test_an_answer_above_16_mib_is_refused() -> None:
    desk = Desk(Stranger(identity(), initialized=True))
    room = 16 * 2**20 - len(request("protocol.ping", '{"payload":""}'))

    assert await desk.refusal(request("protocol.ping", f'{{"payload":"{"x" * room}"}}')) == "resource_limit"


# The digest of params (behaviour 11.2)


def created(payload: bytes, **changed: Any) -> ScheduleCreateParams:
    given = {
        "session_id": "ses_a",
        "attachment_id": "att_a",
        "idempotency_key": "k",
        "due": {"type": "after_ms", "delay_ms": 1},
        "misfire": "fail",
    }
    return msgspec.convert({**given, **changed, "payload": Raw(payload)}, ScheduleCreateParams)


def test_the_order_of_members_does_not_count_in_free_json_either() -> None:
    one = fingerprint(created(b'{"a": 1, "b": {"c": [1.0, null], "d": "\\u00e9"}}'))
    other = fingerprint(created('{"b":{"d":"é","c":[1.0,null]},"a":1}'.encode()))

    assert one == other


@pytest.mark.parametrize(
    "payload", [b"1e400", b"9" * 5000, b"-0", b"[" * 400 + b"]" * 400, b'"\\ud83d\\ude42"']
)
def test_any_free_json_has_a_digest(payload: bytes) -> None:
    assert len(fingerprint(created(payload))) == 32


def differing() -> Iterable[ScheduleCreateParams]:
    yield created(b"1")
    yield created(b"2")
    yield created(b'"1"')
    yield created(b"[1]")
    yield created(b"1", attachment_id="att_b")
    yield created(b"1", session_id="ses_b")
    yield created(b"1", misfire="deliver_once_immediately")


def test_what_differs_has_another_digest() -> None:
    digests = [fingerprint(params) for params in differing()]

    assert len(set(digests)) == len(digests)


def test_labels_count_sorted() -> None:
    one = SessionListParams(limit=1, labels={"a": "1", "b": "2"})
    other = SessionListParams(limit=1, labels={"b": "2", "a": "1"})

    assert fingerprint(one) == fingerprint(other)
