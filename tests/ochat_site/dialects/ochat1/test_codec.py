"""Params: what is refused beyond their shapes, and in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ochat_site.dialects.ochat1 import codec
from ochat_site.dialects.ochat1.types import (
    SHAPES,
    InitializeParams,
    PingParams,
    PromptListParams,
    SessionAttachParams,
    SessionCreateParams,
    SessionGetParams,
    SessionListParams,
    SessionSendMessageParams,
)
from sessions_app.errors import IncompatibleProtocol, InvalidRequest, Refusal
from sessions_app.records import MessageContent

WRITE = '{"session_id":"ses_a","attachment_id":"att_a","idempotency_key":"k"'


def reason(text: str | bytes, shape: Any, *, unique: bool | None = None) -> str:
    """Return the sentence with which a text is refused."""
    with pytest.raises(InvalidRequest) as caught:
        codec.decode(text.encode() if isinstance(text, str) else text, shape, unique=unique)
    return caught.value.message


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{}", "limit is missing"),
        ('{"limit":1.0}', "limit is not valid"),
        ('{"limit":1e0}', "limit is not valid"),
        ('{"limit":"1"}', "limit is not valid"),
        ('{"limit":true}', "limit is not valid"),
        ('{"limit":null}', "limit is not valid"),
        ('{"limit":1000001}', "limit is not valid"),
        ('{"limit":1,"labels":{"":"x"}}', "labels is not valid"),
        ('{"limit":1,"labels":{"secret":1}}', "labels[...] is not valid"),
        ('{"limit":1,"desired_state":"secret - at `$.other`"}', "desired_state is not valid"),
        ('{"limit":1,"desired_state":null}', "desired_state is not valid"),
        ("[]", "the whole is not valid"),
        ('{"limit":', "the params cannot be read"),
        ('{"limit":NaN}', "the params cannot be read"),
        (b'{"limit":1,"x":"\xff"}', "a message is one JSON object in UTF-8"),
    ],
)
def test_a_refusal_names_the_member_and_quotes_nothing(text: str, sentence: str) -> None:
    assert reason(text, SessionListParams) == sentence


def test_a_rule_of_a_member_is_told_with_its_place() -> None:
    text = '{"session_id":"ses_a","history":{"position":"after","history_id":"9:ses:1","limit":1,"effective":true}}'

    assert reason(text, SessionGetParams) == (
        "history: the length in a history id must be that of its namespace"
    )


def test_a_rule_of_the_whole_stands_alone() -> None:
    assert reason(WRITE + "}", SessionSendMessageParams) == "exactly one of content and text"


def test_deep_params_are_refused() -> None:
    assert reason('{"payload":%s}' % ("[" * 100_000), PingParams) == "the params cannot be read"


@pytest.mark.parametrize(
    "text",
    [
        '{"limit":1,"limit":1}',
        '{"limit":1,"x":1,"x":2}',
        '{"limit":1,"labels":{"a":"1","a":"1"}}',
        '{"limit":1,"labels":{"a":"1","\\u0061":"1"}}',
    ],
)
@pytest.mark.parametrize("unique", [None, False])
def test_a_name_repeated_in_what_is_decoded_is_refused(text: str, unique: bool | None) -> None:
    assert reason(text, SessionListParams, unique=unique) == "a member name is repeated"


@pytest.mark.parametrize(
    "text",
    [
        '{"payload":{"a":1,"a":18446744073709551616}}',
        '{"payload":[{"a":1.50,"a":1}]}',
        '{"payload":null,"x":{"a":1,"a":1}}',
    ],
)
@pytest.mark.parametrize("unique", [None, False])
def test_a_name_repeated_in_what_is_not_decoded_is_passed_on(text: str, unique: bool | None) -> None:
    params = codec.decode(text.encode(), PingParams, unique=unique)

    assert bytes(params.payload).decode() in text  # type: ignore[arg-type]  # it is there


def test_with_a_key_a_name_may_be_repeated_nowhere() -> None:
    sentence = "a member name is repeated"

    assert reason(WRITE + ',"text":"hi","x":{"a":1,"a":1}}', SessionSendMessageParams) == sentence
    assert reason(WRITE + ',"text":"hi"}', SessionSendMessageParams, unique=False) == sentence


def test_the_short_form_of_a_message_is_read_as_content() -> None:
    content = ',"content":{"kind":"plain_text","text":"hi","attachments":[]}}'
    short = codec.decode((WRITE + ',"text":"hi"}').encode(), SessionSendMessageParams)
    long = codec.decode((WRITE + content).encode(), SessionSendMessageParams)

    assert short == long
    assert short.message == MessageContent(kind="plain_text", text="hi", attachments=())


def test_lengths_are_bytes() -> None:
    longest = codec.decode(b'{"limit":1,"cursor":"%b"}' % ("é" * 1024).encode(), PromptListParams)
    assert longest.cursor == "é" * 1024
    assert (
        reason('{"limit":1,"cursor":"%s"}' % ("é" * 1025), PromptListParams)
        == "a cursor holds at most 2048 bytes"
    )

    attach = '{"session_id":"ses_a","requested_mode":"read_only","subscribe":false,"idempotency_key":"k",%s}'
    assert reason(attach % ('"reclaim_token":"%s"' % ("é" * 257)), SessionAttachParams) == (
        "a reclaim token holds at most 512 bytes"
    )


def initialize(
    minimum: tuple[int, int], maximum: tuple[int, int], encodings: str = '"json"'
) -> InitializeParams:
    """Decode the params of an initialize call for a range of versions."""
    text = (
        '{"implementation":{"name":"t","version":"1"},"features":[],"max_inbound_event_bytes":1,'
        f'"event_encodings":[{encodings}],"protocol_min":{{"major":{minimum[0]},"minor":{minimum[1]}}},'
        f'"protocol_max":{{"major":{maximum[0]},"minor":{maximum[1]}}}}}'
    )
    return codec.decode(text.encode(), InitializeParams)


def test_a_range_with_version_one_is_taken() -> None:
    assert initialize((1, 0), (1, 7)).protocol_max.minor == 7


@pytest.mark.parametrize(
    ("minimum", "maximum"),
    [((2, 0), (2, 0)), ((1, 1), (1, 2)), ((0, 9), (0, 9)), ((0, 9), (1, 0)), ((1, 0), (2, 0))],
)
def test_a_range_without_version_one_or_over_majors_is_incompatible(
    minimum: tuple[int, int], maximum: tuple[int, int]
) -> None:
    with pytest.raises(IncompatibleProtocol):
        initialize(minimum, maximum)


def test_an_inverted_range_is_invalid() -> None:
    with pytest.raises(InvalidRequest, match="protocol_min is above protocol_max"):
        initialize((2, 0), (1, 0))


def test_events_must_be_wanted_as_json() -> None:
    with pytest.raises(InvalidRequest, match="event_encodings must hold json"):
        initialize((1, 0), (1, 0), '"ndjson"')


def test_subscribing_needs_a_mode() -> None:
    text = (
        '{"subscribe":true,"idempotency_key":"k","spec":{"execution_host":"daemon","prompt":{"type":"catalog",'
        '"prompt_id":"prd_a"},"workspace":{"type":"current"},"liveness":{"type":"detached"},"persistence":"durable",'
        '"start_immediately":true,"labels":{}}}'
    )

    assert reason(text, SessionCreateParams) == "subscribe needs a requested_mode"


NAMES = sorted({name for shapes in SHAPES.values() for name in shapes.params.__struct_fields__})
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)


@given(
    st.sampled_from(list(SHAPES.values())),
    st.binary(max_size=20)
    | st.dictionaries(st.sampled_from(NAMES), JSON).map(lambda value: json.dumps(value).encode()),
    st.sampled_from([None, False, True]),
)
def test_any_params_are_read_or_refused(shapes: Any, text: bytes, unique: bool | None) -> None:
    try:
        codec.decode(text, shapes.params, unique=unique)
    except Refusal as refusal:
        assert refusal.code in ("invalid_request", "incompatible_protocol")
