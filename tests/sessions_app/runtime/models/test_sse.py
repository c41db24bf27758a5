"""Server-sent events are found wherever the chunks are cut."""

import pytest

from sessions_app.runtime.models import sse

STREAM = (
    b": hello\n\nevent: a\ndata: one\n\n"
    b"data: two\r\nid: 7\r\n\r\ndata: three\ndata:four\n\nevent: empty\n\ndata: last\n\n"
)
EVENTS = [b"one", b"two", b"three\nfour", b"last"]


@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_events_are_the_same_however_the_stream_is_cut(size: int) -> None:
    decoder = sse.EventDecoder()
    chunks = (STREAM[start : start + size] for start in range(0, len(STREAM), size))
    assert [event for chunk in chunks for event in decoder.feed(chunk)] == EVENTS


def test_an_event_that_was_not_ended_is_none() -> None:
    assert sse.EventDecoder().feed(b"data: one\n\ndata: two\n") == [b"one"]


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 100)
    decoder = sse.EventDecoder()
    decoder.feed(b"data: " + b"x" * 90)
    with pytest.raises(sse.EventTooLargeError):
        decoder.feed(b"x" * 10)
