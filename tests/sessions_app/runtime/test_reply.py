"""One reply as it arrives, folded into entries, calls and the text that a crash must not lose."""

from __future__ import annotations

import itertools

import pytest

from sessions_app.commands.operations import StreamedItem
from sessions_app.encoding import encode
from sessions_app.errors import ResourceLimit
from sessions_app.limits import MAX_ENTRY_BYTES
from sessions_app.records import FunctionCallItem, OutputMessageItem, OutputText, ReasoningItem
from sessions_app.runtime.models.port import Completed, ItemDone, ItemStarted, StreamEvent, ToolCall, Usage
from sessions_app.runtime.reply import Reply
from tests.support.world import shown


@pytest.fixture
def reply() -> Reply:
    """A reply whose entries are numbered from 10."""
    return Reply(itertools.count(10).__next__)


def message(text: str) -> bytes:
    part = OutputText(annotations=(), text=text, type="output_text")
    return encode(OutputMessageItem(role="assistant", id="msg_1", content=(part,), status="completed"))


def said(reply: Reply, index: int, text: str) -> None:
    """Let a whole message arrive."""
    reply.take(ItemStarted(index, "message", f"msg_{index}"))
    reply.take(StreamEvent(b"{}", index, text))
    reply.take(ItemDone(index, message(text)))


def thought(reply: Reply, index: int) -> None:
    """Let a whole reasoning item arrive."""
    reply.take(ItemStarted(index, "reasoning", f"rs_{index}"))
    reply.take(ItemDone(index, encode(ReasoningItem(summary=(), id=f"rs_{index}"))))


def called(reply: Reply, index: int) -> None:
    """Let a whole call arrive."""
    reply.take(ItemStarted(index, "function_call", f"fc_{index}"))
    item = FunctionCallItem(name="read", arguments="{}", call_id=f"call_{index}")
    reply.take(ItemDone(index, encode(item), ToolCall(f"call_{index}", "read", "{}", "function")))


def finished(reply: Reply) -> list[tuple[int | None, str]]:
    return [(entry.number, shown(entry.payload)) for entry in reply.finished]


def test_items_are_numbered_as_they_start_and_stand_as_they_end(reply: Reply) -> None:
    reply.take(ItemStarted(0, "message", "msg_0"))
    reply.take(ItemStarted(1, "message", "msg_1"))
    assert reply.take(StreamEvent(b"{}", 0, "a")) == 10
    assert reply.take(StreamEvent(b"{}", 1, "b")) == 11
    reply.take(ItemDone(1, message("b")))
    reply.take(ItemDone(0, message("a")))
    reply.take(Completed(Usage()))
    assert finished(reply) == [(11, "assistant: b"), (10, "assistant: a")]


def test_events_of_no_item_belong_to_no_entry(reply: Reply) -> None:
    assert reply.take(StreamEvent(b"{}")) is None
    assert reply.take(StreamEvent(b"{}", 7, "lost")) is None
    assert reply.unsaved() == []


def test_an_item_that_was_not_announced_gets_a_number_too(reply: Reply) -> None:
    reply.take(ItemDone(0, message("a")))
    assert finished(reply) == [(10, "assistant: a")]


def test_only_what_stands_before_the_first_call_may_be_said(reply: Reply) -> None:
    said(reply, 0, "a")
    called(reply, 1)
    said(reply, 2, "b")
    assert [entry.number for entry in reply.sayable()] == [10]
    assert [(call.call_id, call.name) for call in reply.calls] == [("call_1", "read")]
    reply.committed(1)
    assert reply.sayable() == []
    assert [entry.number for entry in reply.finished] == [11, 12]


def test_reasoning_waits_for_what_it_led_to(reply: Reply) -> None:
    thought(reply, 0)
    assert reply.sayable() == []
    said(reply, 1, "a")
    thought(reply, 2)
    assert [entry.number for entry in reply.sayable()] == [10, 11]


def test_text_is_unsaved_until_its_entry_is_in_history(reply: Reply) -> None:
    said(reply, 0, "a")
    called(reply, 1)
    said(reply, 2, "b")
    reply.take(ItemStarted(3, "message", "msg_3"))
    reply.take(StreamEvent(b"{}", 3, "c"))
    reply.take(StreamEvent(b"{}", 3, "d"))
    assert [item.text for item in reply.unsaved()] == ["a", "b", "cd"]
    reply.committed(1)
    assert reply.unsaved() == [StreamedItem(12, "msg_2", "b"), StreamedItem(13, "msg_3", "cd")]
    reply.committed(2)
    assert [item.text for item in reply.unsaved()] == ["cd"]


def test_only_text_counts_as_a_change(reply: Reply) -> None:
    reply.take(ItemStarted(0, "message", "msg_0"))
    reply.take(StreamEvent(b"{}", 0))
    assert not reply.changed
    reply.take(StreamEvent(b"{}", 0, "a"))
    assert reply.changed


def test_the_text_of_an_item_that_is_refused_is_kept(reply: Reply) -> None:
    reply.take(ItemStarted(0, "message", "msg_0"))
    reply.take(StreamEvent(b"{}", 0, "a"))
    with pytest.raises(ResourceLimit):
        reply.take(ItemDone(0, message("a" * MAX_ENTRY_BYTES)))
    assert reply.finished == []
    assert reply.unsaved() == [StreamedItem(10, "msg_0", "a")]


def test_an_item_of_no_known_kind_is_refused(reply: Reply) -> None:
    with pytest.raises(ValueError, match="provider item"):
        reply.take(ItemDone(0, b'{"type":"surprise"}'))
