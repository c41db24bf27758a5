"""Envelopes: what a frame is read as, what is answered to what cannot be read, and what is written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from ochat_site.dialects.ochat1.types import PingResult
from ochat_site.rpc import envelope
from ochat_site.rpc.envelope import (
    MAX_ID_BYTES,
    MAX_NESTING,
    Malformed,
    Notification,
    Request,
    Response,
    decode,
    nests_deeper,
)
from sessions_app import limits
from sessions_app.errors import Refusal, ResourceLimit
from sessions_app.records import Error


def refused(frame: bytes) -> bytes | None:
    """Return the id that the refusal of a frame is to be sent to."""
    with pytest.raises(Malformed) as caught:
        decode(frame)
    return caught.value.id


def test_a_call_is_read_without_its_params_being_looked_at() -> None:
    message = decode(b' {"id": 7 , "jsonrpc":"2.0","method":"a.b", "params": { "x":\n1.50 } }')

    assert message == Request(b"7", "a.b", Raw(b'{ "x":\n1.50 }'), True)


def test_missing_params_are_an_empty_object() -> None:
    assert decode(b'{"jsonrpc":"2.0","id":1,"method":"a"}') == Request(b"1", "a", Raw(b"{}"), True)


@pytest.mark.parametrize(
    "id", [b"1", b"1.0", b"1e0", b"-0", b'"1"', b'"\\u0061\\/"', b"1" * 5000, '"é"'.encode()]
)
def test_an_id_is_kept_as_it_was_written(id: bytes) -> None:
    message = decode(b'{"jsonrpc":"2.0","id":%b,"method":"a"}' % id)

    assert isinstance(message, Request)
    assert message.id == id


@pytest.mark.parametrize("id", [b"null", b"true", b"{}", b"[1]"])
def test_another_id_is_refused_without_an_answer(id: bytes) -> None:
    assert refused(b'{"jsonrpc":"2.0","id":%b,"method":"a"}' % id) is None


def test_an_id_that_leaves_no_room_for_an_answer_is_none() -> None:
    for size in (MAX_ID_BYTES, MAX_ID_BYTES + 1):
        id = b"1" * size
        frame = b'{"jsonrpc":"2.0","id":%b,"method":""}' % id
        assert refused(frame) == (id if size == MAX_ID_BYTES else None)


def test_a_call_without_id_is_a_notification() -> None:
    assert decode(b'{"jsonrpc":"2.0","method":"a"}') == Notification("a", Raw(b"{}"), True)


def test_a_message_with_method_is_a_call_whatever_else_it_holds() -> None:
    frame = b'{"jsonrpc":"2.0","id":1,"method":"a","result":1,"error":2,"more":{}}'

    assert isinstance(decode(frame), Request)


def test_responses_are_read() -> None:
    error = Error(code="conflict", message="no", retryable=False)

    assert decode(b'{"jsonrpc":"2.0","id":1,"result":null}') == Response(b"1", Raw(b"null"), True)
    assert decode(envelope.failure(b"1", error)) == Response(b"1", error, True)


@pytest.mark.parametrize(
    "members",
    [
        b'"method":"a"',
        b'"jsonrpc":"1.0","method":"a"',
        b'"jsonrpc":2.0,"method":"a"',
        b'"jsonrpc":"2.0"',
        b'"jsonrpc":"2.0","method":""',
        b'"jsonrpc":"2.0","method":null',
        b'"jsonrpc":"2.0","method":["a"]',
        b'"jsonrpc":"2.0","method":"a","params":null',
        b'"jsonrpc":"2.0","method":"a","params":[]',
        b'"jsonrpc":"2.0","method":"a","method":"b"',
        b'"jsonrpc":"2.0","method":"a","m\\u0065thod":"b"',
        b'"jsonrpc":"2.0","method":"a","x":1,"x":1',
        b'"jsonrpc":"2.0","result":1,"error":{"code":"conflict","message":"","retryable":false}',
        b'"jsonrpc":"2.0","error":{"code":409,"message":"","retryable":false}',
        b'"jsonrpc":"2.0","method":"a","params":{"text":"\\ud83d"}',
    ],
)
def test_what_is_malformed_is_answered_when_its_id_can_be_read(members: bytes) -> None:
    assert refused(b'{"id":"x",%b}' % members) == b'"x"'
    assert refused(b'{%b,"id":null}' % members) is None


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"null",
        b"17",
        b"[]",
        b'[{"jsonrpc":"2.0","id":1,"method":"a"}]',
        b'{"jsonrpc":"2.0","id":1,',
        b'{"jsonrpc":"2.0","id":1,"method":"a"}x',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":-Infinity}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":01}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\n"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"\xff"}}',
        b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"a"}',
        '{"jsonrpc":"2.0","id":1,"method":"a"}'.encode("utf-16"),
        b'{"jsonrpc":"2.0","id":1,"id":1,"method":"a"}',
    ],
)
def test_what_is_no_message_at_all_is_not_answered(frame: bytes) -> None:
    assert refused(frame) is None


def test_a_name_repeated_inside_is_told_to_the_codec() -> None:
    message = decode(b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":[{"y":1,"y":1}]}}')

    assert isinstance(message, Request)
    assert not message.unique


@pytest.mark.parametrize("depth", [MAX_NESTING - 1, MAX_NESTING, 100_000])
def test_a_message_that_is_too_deep_is_answered_when_its_id_comes_first(depth: int) -> None:
    params = b'{"x":%b%b}' % (b"[" * (depth - 1), b"]" * (depth - 1))
    frame = b'{"jsonrpc":"2.0","id":"\\"","method":"a","params":%b}' % params

    if depth < MAX_NESTING:
        assert isinstance(decode(frame), Request)
    else:
        assert refused(frame) == b'"\\""'
        assert refused(b'{"params":%b,"jsonrpc":"2.0","id":1,"method":"a"}' % params) is None


def test_the_largest_message_is_read_and_a_larger_one_is_not() -> None:
    empty = b'{"jsonrpc":"2.0","id":1,"method":"a","params":{"text":""}}'
    frame = empty[:-3] + b"x" * (limits.MAX_FRAME_BYTES - len(empty)) + empty[-3:]

    assert isinstance(decode(frame), Request)
    with pytest.raises(ResourceLimit):
        decode(frame + b" ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{}"\\a', max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"\\', max_size=2), inner, max_size=3)
    ),
    max_leaves=20,
)


def depth_of(value: object) -> int:
    """Return how deep objects and arrays nest, the plain way."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(depth_of, inside), default=0)


@given(JSON, st.integers(0, 5))
def test_depth_is_that_of_the_parsed_text(value: object, limit: int) -> None:
    assert nests_deeper(json.dumps(value).encode(), limit) == (depth_of(value) > limit)


@given(st.binary() | st.text().map(str.encode) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_frame_is_a_message_or_a_refusal(frame: bytes) -> None:
    try:
        decode(frame)
    except Refusal as refusal:
        assert refusal.code == "invalid_request"


@given(
    st.fixed_dictionaries(
        {}, optional={name: JSON for name in ("jsonrpc", "id", "method", "params", "result", "error")}
    ).map(lambda members: json.dumps(members | {"jsonrpc": "2.0"}).encode())
)
def test_any_object_is_a_message_or_a_refusal(frame: bytes) -> None:
    try:
        decode(frame)
    except Refusal as refusal:
        assert refusal.code == "invalid_request"


def test_an_answer_holds_the_id_as_it_came_and_free_json_as_it_is() -> None:
    result = PingResult(payload=Raw(b'{"b":1.0,"a":2}'), server_time="t", ready=True, draining=False)

    assert envelope.success(b"1.0", result) == (
        b'{"jsonrpc":"2.0","id":1.0,"result":{"payload":{"b":1.0,"a":2},"server_time":"t","ready":true,"draining":false}}'
    )


def test_a_refusal_always_holds_data() -> None:
    error = Error(code="conflict", message="stale", retryable=False)

    assert envelope.failure(b'"x"', error) == (
        b'{"jsonrpc":"2.0","id":"x","error":{"code":"conflict","message":"stale","retryable":false,"data":{}}}'
    )


def test_a_frame_is_one_line_whatever_free_json_it_holds() -> None:
    frame = envelope.notification("session.event", b'{"payload":{\r\n"text":"a\\nb"}}')

    assert frame == b'{"jsonrpc":"2.0","method":"session.event","params":{"payload":{  "text":"a\\nb"}}}'
