"""What no schema example shows: limits of scalars, and checks of structs that are built in code."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from msgspec import Raw

from sessions_app.events import (
    DurableEvent,
    ModeratorNotificationPayload,
    SessionUpdatedPayload,
    read_payload,
)
from sessions_app.records import (
    BlobInputInlineBase64,
    HistoryEntry,
    HistoryId,
    HistoryProvenanceCanonical,
    MessageContent,
    NonBlankText,
    OutputMessageItem,
    Session,
    SessionId,
    Timestamp,
    check_entry,
    check_history_id,
    check_stream_event,
    classify_item,
    decode_item,
    instant,
)


def accepts(scalar: object, value: str) -> bool:
    """Tell whether a text is decoded as a scalar type."""
    try:
        msgspec.convert(value, scalar)
    except msgspec.ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30T08:00:01Z",
        "2026-11-30T08:00:01.5Z",
        "2026-11-30T08:00:01.000000000123Z",
        "2024-02-29T00:00:00Z",
        "2000-02-29T00:00:00Z",
        "2016-12-31T23:59:60Z",
        "2026-12-31T24:00:00Z",
        "0001-01-01T00:00:00Z",
    ],
)
def test_a_timestamp_is_read(text: str) -> None:
    assert accepts(Timestamp, text)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30t08:00:01Z",
        "2026-11-30T08:00:01z",
        "2026-11-30 08:00:01Z",
        "2026-11-30T08:00:01+00:00",
        "2026-11-30T08:00:01.Z",
        "2026-11-30T08:00:01Z\n",
        "2026-11-30T08:00:0\u0661Z",
        "2026-02-29T00:00:00Z",
        "1900-02-29T00:00:00Z",
        "2026-04-31T00:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-01-00T00:00:00Z",
        "0000-01-01T00:00:00Z",
        "2026-01-01T25:00:00Z",
        "2026-01-01T00:60:00Z",
        "2026-01-01T00:00:61Z",
    ],
)
def test_an_impossible_timestamp_is_refused(text: str) -> None:
    assert not accepts(Timestamp, text)


def test_timestamps_sort_by_time_whatever_their_fraction() -> None:
    times = [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.05Z",
        "2026-01-01T00:00:00.5Z",
        "2026-01-01T00:00:01Z",
    ]

    assert sorted(reversed(times), key=instant) == times
    assert instant("2026-01-01T00:00:00Z") == instant("2026-01-01T00:00:00.0000000009Z")


def test_an_id_has_its_prefix_and_at_most_96_characters() -> None:
    assert accepts(SessionId, "ses_" + "x" * 92)
    for wrong in ("ses_" + "x" * 93, "ses_", "att_x", "ses_x\n", "ses_é", "ses x"):
        assert not accepts(SessionId, wrong)


def test_a_history_id_counts_the_bytes_of_its_namespace() -> None:
    for right in ("5:ses_a:0", "3:é::12", "3:a:b:0"):
        assert accepts(HistoryId, right)
    check_history_id("5:ses_a:0")
    check_history_id("3:é::12")
    check_history_id("3:a:b:0")
    for wrong in ("4:ses_a:0", "2:é::12", "1:a:b:0"):
        with pytest.raises(ValueError, match="length in a history id"):
            check_history_id(wrong)
    for wrong in ("05:ses_a:0", "5:ses_a:00", "5:ses_a:", "5:ses_a", "0::1", "5:ses_a:0\n"):
        assert not accepts(HistoryId, wrong)


def test_blank_text_is_what_holds_only_ascii_whitespace() -> None:
    assert not accepts(NonBlankText, " \t\n\v\f\r")
    assert accepts(NonBlankText, "\u00a0")


def test_an_inline_blob_has_the_size_it_says() -> None:
    def blob(data: str, size: int) -> BlobInputInlineBase64:
        return BlobInputInlineBase64(
            kind="file", media_type="text/plain", byte_length=size, digest="d", inline_base64=data
        )

    assert blob("aGk=", 2).content() == b"hi"
    for data, size in (("aGk=", 3), ("aGk", 2), ("aGk=\n", 2), ("aG-_", 3), ("é", 1)):
        with pytest.raises(ValueError, match=r"base64|byte_length"):
            blob(data, size)
    with pytest.raises(ValueError, match="twice"):
        MessageContent(kind="plain_text", text="x", attachments=(blob("aGk=", 2), blob("aGk=", 2)))


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ('{"type":"message","role":"developer","content":"x"}', ("system", "message")),
        (
            '{"type":"message","role":"user","content":["x",{"type":"input_text","text":"y"}]}',
            ("user", "message"),
        ),
        ('{"type":"message","role":"assistant","content":"x"}', ("assistant", "message")),
        (
            '{"type":"message","role":"assistant","id":"m","status":"completed","content":[],"new":1}',
            ("assistant", "message"),
        ),
        ('{"type":"reasoning","id":"r","summary":[],"encrypted_content":"x"}', ("assistant", "reasoning")),
        ('{"type":"function_call","name":"f","arguments":"{}","call_id":"c"}', ("assistant", "tool_call")),
        (
            '{"type":"custom_tool_call","name":"f","input":"","call_id":"c","new":1}',
            ("assistant", "tool_call"),
        ),
        ('{"type":"function_call_output","output":"x","call_id":"c"}', ("tool", "tool_output")),
        (
            '{"type":"custom_tool_call_output","output":[{"type":"input_image","image_url":{"url":"u"},"detail":null}],'
            '"call_id":"c"}',
            ("tool", "tool_output"),
        ),
        ('{"type":"web_search_call","id":"w","status":"completed"}', ("assistant", "other")),
        (
            '{"type":"file_search_call","id":"w","status":"completed","queries":[],"results":[{"attributes":null,'
            '"file_id":"f","filename":"n","score":1,"text":"t"}]}',
            ("assistant", "other"),
        ),
    ],
)
def test_an_item_is_classified(payload: str, expected: tuple[str, str]) -> None:
    assert classify_item(payload.encode()) == expected


@pytest.mark.parametrize(
    "payload",
    [
        "{}",
        "[]",
        '{"type":"image_generation_call","id":"x"}',
        '{"type":"message","role":"tool","content":"x"}',
        '{"type":"message","role":"user","content":"x","id":"m"}',
        '{"type":"message","role":"assistant","id":"m","content":[]}',
        '{"type":"function_call","name":"f","arguments":"{}","call_id":"c","namespace":"n"}',
        '{"type":"web_search_call","id":"w","status":"completed","action":{}}',
        '{"type":"function_call_output","output":{},"call_id":"c"}',
        '{"type":"reasoning","id":"r","summary":[{"type":"summary_text","text":"t","x":1}]}',
        '{"type":1}',
    ],
)
def test_what_is_no_item_is_refused(payload: str) -> None:
    with pytest.raises(ValueError, match="provider item"):
        classify_item(payload.encode())


def test_an_item_is_read() -> None:
    item = decode_item(b'{"type":"message","role":"assistant","id":"m","status":"completed","content":[]}')

    assert item == OutputMessageItem(role="assistant", id="m", status="completed", content=())


def entry(payload: bytes, *, redacted: bool = False) -> HistoryEntry:
    """Return an entry of a user's message."""
    return HistoryEntry(
        id="5:ses_a:0",
        role="user",
        kind="message",
        payload=Raw(payload),
        provenance=HistoryProvenanceCanonical(),
        redacted=redacted,
    )


def test_a_producer_writes_entries_that_fit_their_payload() -> None:
    check_entry(entry(b'{"type":"message","role":"user","content":"x"}'))
    check_entry(entry(b"{}", redacted=True))
    for wrong in (
        entry(b'{"type":"message","role":"assistant","content":"x"}'),
        entry(b'{"x":1}', redacted=True),
    ):
        with pytest.raises(ValueError, match="entry"):
            check_entry(wrong)


@pytest.mark.parametrize(
    "event",
    [
        '{"type":"response.something_new","delta":1}',
        '{"type":7}',
        "{}",
        '{"type":"response.output_text.delta","content_index":0,"delta":"x","item_id":"i","output_index":0,"logprobs":[]}',
        '{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","id":"r","summary":[]}}',
        '{"type":"response.content_part.added","content_index":0,"item_id":"i","output_index":0,"part":{"type":"x"}}',
    ],
)
def test_a_stream_event_passes(event: str) -> None:
    check_stream_event(event.encode())


@pytest.mark.parametrize(
    "event",
    [
        '{"type":"response.output_text.delta","delta":"x"}',
        '{"type":"response.output_item.done","output_index":0,"item":{"type":"web_search_call","id":"w","status":"s"}}',
        '{"type":"response.web_search_call.completed","item_id":"w","output_index":0}',
    ],
)
def test_a_stream_event_that_the_client_would_not_take_is_refused(event: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        check_stream_event(event.encode())


def test_a_hidden_event_holds_nothing() -> None:
    with pytest.raises(ValueError, match="hidden"):
        DurableEvent(
            session_id="ses_a",
            sequence=1,
            revision=1,
            timestamp="2026-01-01T00:00:00Z",
            kind="session.error",
            payload=Raw(b'{"x":1}'),
            visibility="hidden",
        )


def test_a_moderator_says_one_thing() -> None:
    assert ModeratorNotificationPayload(message="x").message == "x"
    with pytest.raises(ValueError, match="exactly one"):
        ModeratorNotificationPayload(message="x", cancellation_reason="y")


SESSION = msgspec.json.decode(
    b'{"id":"ses_a","created_at":"2026-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z","generation":0,"spec":'
    b'{"execution_host":"daemon","prompt":{"type":"catalog","prompt_id":"prd_a"},"workspace":{"type":"configured",'
    b'"workspace_id":"wsd_a"},"liveness":{"type":"detached"},"persistence":"durable","start_immediately":true,'
    b'"labels":{}},"desired_state":"running","observed_state":{"type":"idle"},"revision":1,"latest_event_sequence":1}',
    type=Session,
)


def test_an_update_is_a_summary_with_room_for_a_snapshot() -> None:
    payload = SessionUpdatedPayload.of(SESSION)
    event = DurableEvent(
        session_id="ses_a",
        sequence=1,
        revision=1,
        timestamp="2026-01-01T00:00:00Z",
        kind="session.updated",
        payload=Raw(msgspec.json.encode(payload)),
    )

    assert msgspec.json.encode(payload) == msgspec.json.encode(SESSION)
    assert read_payload(event) == payload


def test_updates_do_not_precede_beginnings() -> None:
    with pytest.raises(ValueError, match="before it began"):
        msgspec.structs.replace(SESSION, updated_at="2025-12-31T23:59:59.999999999Z")


def test_the_shared_model_does_not_know_django() -> None:
    code = "import sys, ochat_site.dialects.ochat1.codec, ochat_site.rpc.envelope; sys.exit('django' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
