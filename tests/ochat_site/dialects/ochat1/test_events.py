"""Events as notifications: whole, redacted or hidden, and as they are stored where nothing is hidden (behaviour 8.7)."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from ochat_site.dialects.ochat1.events import Notifications
from sessions_app.events import DurableEvent
from sessions_app.ledger import StoredEvent
from sessions_app.views import FULL, TRANSCRIPT, View
from tests.golden.contract import EXAMPLES, Example, writing

AT = datetime(2026, 11, 30, 8, 0, 1, tzinfo=UTC)
DURABLE = [each for each in EXAMPLES if each.definition == "SessionEventNotification" and each.valid]
LIVE = [each for each in EXAMPLES if each.definition == "SessionLiveEventNotification" and each.valid]
VIEWS = [
    View(security_read=security, grant_manage=grants, message_send=sending)
    for security in (True, False)
    for grants in (True, False)
    for sending in (True, False)
]


class _Notification(msgspec.Struct):
    method: str
    params: DurableEvent


class _Raw(msgspec.Struct):
    params: msgspec.Raw


def stored(example: Example) -> StoredEvent:
    event = msgspec.json.decode(example.text, type=_Notification).params
    payload = bytes(event.payload)
    return StoredEvent(event.session_id, event.sequence, event.revision, AT, event.kind, payload, None)


def file(example: Example) -> str:
    return example.file.removesuffix(".json")


WHOLE = [each for each in DURABLE if msgspec.json.decode(each.text)["params"].get("visibility") is None]


# A replacement snapshot is cut to its reader, whoever that is.
PLAIN = [each for each in WHOLE if b"replacement_snapshot" not in each.text]


@pytest.mark.parametrize("example", PLAIN, ids=file)
def test_whoever_sees_all_gets_the_payload_as_it_is_stored(example: Example) -> None:
    event = stored(example)
    frame = Notifications().encode_event(event, FULL)
    told = msgspec.json.decode(frame, type=_Notification)

    assert bytes(told.params.payload) == event.payload.replace(b"\n", b" ")
    assert told.params.visibility is msgspec.UNSET
    assert b"\n" not in frame


@pytest.mark.parametrize("example", WHOLE, ids=file)
def test_every_view_of_an_event_is_a_valid_notification(example: Example) -> None:
    for view in VIEWS:
        told = msgspec.json.decode(Notifications().encode_event(stored(example), view))
        assert not list(writing("SessionEventNotification").iter_errors(told))
        assert view.security_read or told["params"]["visibility"] in ("redacted", "hidden")


@pytest.mark.parametrize("example", LIVE, ids=file)
def test_a_live_event_passes_through(example: Example) -> None:
    event = bytes(msgspec.json.decode(example.text, type=_Raw).params)
    frame = Notifications().encode_live(event)

    assert msgspec.json.decode(frame) == msgspec.json.decode(example.text)
    assert b"\n" not in frame


def test_who_reads_transcripts_alone_sees_no_tool_output() -> None:
    example = next(each for each in WHOLE if each.file == "event.history.appended.json")
    told = msgspec.json.decode(Notifications().encode_event(stored(example), TRANSCRIPT))["params"]

    assert told["visibility"] == "redacted"
    for entry in told["payload"]:
        hidden = entry["kind"] in ("tool_call", "tool_output", "other")
        assert (entry["redacted"], entry["payload"] == {}) == (hidden, hidden)
