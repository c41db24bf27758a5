"""What an entry may be: role, kind, size, the key of calls, what is cut and how (behaviour 6.1, 6.5, wire 6)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_app import history, limits
from sessions_app.encoding import encode
from sessions_app.errors import ResourceLimit
from sessions_app.records import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputImage,
    InputMessageItem,
    InputText,
    OutputMessageItem,
    ToolOutputPartInputImage,
    ToolOutputPartInputText,
)

LIMIT = limits.MAX_ENTRY_BYTES


def test_role_and_kind_are_those_of_the_payload() -> None:
    entry = history.entry_of(history.call_item("function", "c", "tool", "{}"), number=7)
    assert (entry.role, entry.kind, entry.call_key, entry.number) == (
        "assistant",
        "tool_call",
        "function:c",
        7,
    )
    assert history.user_message("hello").call_key == ""


@pytest.mark.parametrize("payload", [b"{}", b"[]", b'{"type":"message"}', b'{"type":"unheard_of"}'])
def test_what_is_no_item_is_no_entry(payload: bytes) -> None:
    with pytest.raises(ValueError, match="provider item"):
        history.entry_of(payload)


def test_an_entry_has_at_most_4_mib() -> None:
    """6.1: "One encoded history entry is at most 4 MiB… `resource_limit`, not retryable"."""
    room = LIMIT - history.ENTRY_OVERHEAD - len(history.user_message("").payload)
    assert history.user_message("x" * room).size == LIMIT
    with pytest.raises(ResourceLimit) as refused:
        history.user_message("x" * (room + 1))
    assert not refused.value.retryable


def test_a_call_and_its_output_have_one_key() -> None:
    """9.1: call and output belong together, families apart."""
    function = history.call_item("function", "c", "tool", "{}")
    custom = history.call_item("custom", "c", "tool", "text")
    for call in (function, custom):
        output = history.output_of(call, "done")
        assert history.call_key_of(output) == history.call_key_of(call)
    assert history.call_key_of(function) != history.call_key_of(custom)


@given(st.text())
def test_every_call_id_has_a_key_that_any_index_takes(call_id: str) -> None:
    key = history.call_key_of(history.call_item("function", call_id, "tool", "{}"))
    assert "\0" not in key
    assert len(key) <= history.LONGEST_PLAIN_CALL_ID + len("function:")
    assert key == history.call_key_of(history.output_item("function", call_id, "done"))


def test_long_call_ids_are_told_apart() -> None:
    one, two = (history.call_item("function", "x" * 1000 + end, "tool", "{}") for end in "ab")
    assert history.call_key_of(one) != history.call_key_of(two)


def test_parts_stand_behind_the_text() -> None:
    """6.1: "Each adds one content part"; a string stands for a text part (wire 6)."""
    image = InputImage(image_url="data:,x", detail="auto")
    for payload in (
        history.user_message("hello").payload,
        encode(InputMessageItem(role="user", content="hello")),
    ):
        item = msgspec.json.decode(history.with_parts(payload, [image]).payload, type=InputMessageItem)
        assert item.content == (InputText(text="hello"), image)


def test_incomplete_text_says_so() -> None:
    """6.5: "as an assistant entry with ID and status `incomplete`"."""
    entry = history.incomplete_message("msg_1", "half", 5)
    item = msgspec.json.decode(entry.payload, type=OutputMessageItem)
    assert (entry.role, entry.kind, entry.number) == ("assistant", "message", 5)
    assert (item.id, item.status, item.content[0].text if hasattr(item.content[0], "text") else "") == (
        "msg_1",
        "incomplete",
        "half",
    )


@pytest.mark.parametrize("character", ["x", "é", "\\", "☃", "\0"])
def test_too_much_incomplete_text_is_cut(character: str) -> None:
    entry = history.incomplete_message("msg_1", character * LIMIT, None)
    assert LIMIT - 8 * history.ENTRY_OVERHEAD < entry.size <= LIMIT


@pytest.mark.parametrize("character", ["x", "é", '"', "☃", "\0"])
def test_a_long_output_is_cut_to_what_fits(character: str) -> None:
    """6.1: "a tool output is cut and says so in words"."""
    encoded = history.output_item("function", "c", character * LIMIT)
    output = msgspec.json.decode(encoded, type=FunctionCallOutputItem).output
    assert isinstance(output, str)
    assert output.endswith(history.CUT_NOTE)
    assert LIMIT - 8 * history.ENTRY_OVERHEAD < history.entry_of(encoded).size <= LIMIT


def test_an_output_that_fits_is_whole() -> None:
    room = LIMIT - history.ENTRY_OVERHEAD - len(history.output_item("function", "c", ""))
    assert history.entry_of(history.output_item("function", "c", "x" * room)).size == LIMIT
    whole = msgspec.json.decode(history.output_item("function", "c", "x" * room), type=FunctionCallOutputItem)
    assert whole.output == "x" * room


def test_an_output_of_parts_is_cut_to_its_text() -> None:
    parts = (
        ToolOutputPartInputText(text="first"),
        ToolOutputPartInputImage(image_url="data:," + "x" * LIMIT, detail="auto"),
        ToolOutputPartInputText(text="y" * LIMIT),
    )
    output = msgspec.json.decode(history.output_item("custom", "c", parts)).get("output")
    assert output.startswith("first\n[image]\nyyy")
    assert output.endswith(history.CUT_NOTE)


def test_a_call_item_is_of_its_kind() -> None:
    item = msgspec.json.decode(history.call_item("function", "c", "tool", "{}"), type=FunctionCallItem)
    assert (item.call_id, item.name, item.arguments) == ("c", "tool", "{}")
