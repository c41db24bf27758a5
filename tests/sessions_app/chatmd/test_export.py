"""History as ChatMD and back (behaviour 9.3, 17.6)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from sessions_app.chatmd.export import export_entry
from sessions_app.chatmd.items import Item, to_items
from sessions_app.chatmd.parser import read_document
from sessions_app.chatmd.tree import parse_document
from sessions_app.records.history import HistoryEntry, HistoryProvenanceCanonical
from sessions_app.records.items import classify_item

DATA_URI = "data:image/png;base64,AA=="


def entry(payload: dict[str, Any], *, number: int = 0, redacted: bool = False) -> HistoryEntry:
    encoded = Raw(msgspec.json.encode(payload))
    role, kind = classify_item(encoded)
    return HistoryEntry(
        id=f"5:ses_x:{number}",
        role=role,
        kind=kind,
        payload=Raw(b"{}") if redacted else encoded,
        provenance=HistoryProvenanceCanonical(),
        redacted=redacted,
    )


def read_back(text: str) -> tuple[Item, ...]:
    return to_items(read_document(parse_document(text)).turns, {})


def runs(content: str | Iterable[dict[str, Any]]) -> list[str]:
    """Return content as it reads: neighbouring texts as one, images by their address."""
    parts = [{"text": content}] if isinstance(content, str) else content
    found: list[str] = []
    for is_image, group in groupby(parts, key=lambda part: "image_url" in part):
        run = [part["image_url" if is_image else "text"] for part in group]
        found.extend(run if is_image else ["".join(run)])
    return [run for run in found if run]


def reading(payload: dict[str, Any]) -> dict[str, Any]:
    """Return what must survive: everything but where one text ends and the next begins."""
    return {key: runs(value) if key in {"content", "output"} else value for key, value in payload.items()}


TEXTS = st.text() | st.text(alphabet='RAW|<>&"\\\n userdoc/=-!')
NAMES = st.text(min_size=1).filter(str.strip)
INPUT_PARTS = st.fixed_dictionaries({"type": st.just("input_text"), "text": TEXTS}) | st.just(
    {"type": "input_image", "image_url": DATA_URI, "detail": "auto"}
)
OUTPUTS = TEXTS | st.lists(INPUT_PARTS, min_size=1)
ITEMS = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("message"),
            "role": st.sampled_from(["user", "system", "developer"]),
            "content": st.lists(INPUT_PARTS),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("message"),
            "role": st.just("assistant"),
            "content": st.tuples(st.fixed_dictionaries({"type": st.just("input_text"), "text": TEXTS})),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("message"),
            "role": st.just("assistant"),
            "id": st.text(),
            "status": st.sampled_from(["completed", "incomplete"]),
            "content": st.tuples(
                st.fixed_dictionaries(
                    {"annotations": st.just([]), "type": st.just("output_text"), "text": TEXTS}
                )
            ),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("reasoning"),
            "id": NAMES,
            "summary": st.lists(st.fixed_dictionaries({"type": st.just("summary_text"), "text": TEXTS})),
        }
    ),
    st.fixed_dictionaries(
        {"type": st.just("function_call"), "name": NAMES, "call_id": NAMES, "arguments": TEXTS},
        optional={"id": NAMES},
    ),
    st.fixed_dictionaries(
        {"type": st.just("custom_tool_call"), "name": NAMES, "call_id": NAMES, "input": TEXTS},
        optional={"id": NAMES},
    ),
    st.fixed_dictionaries({"type": st.just("function_call_output"), "call_id": NAMES, "output": OUTPUTS}),
    st.fixed_dictionaries({"type": st.just("custom_tool_call_output"), "call_id": NAMES, "output": OUTPUTS}),
)


@given(st.lists(ITEMS, max_size=5))
def test_what_is_exported_reads_back_the_same(payloads: list[dict[str, Any]]) -> None:
    text = "".join(export_entry(entry(payload, number=number)) for number, payload in enumerate(payloads))
    back = read_back(text)
    assert [reading(json.loads(bytes(item.payload))) for item in back] == [reading(each) for each in payloads]


def test_the_form_of_each_element() -> None:
    message = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a|RAWb"}]}
    assert export_entry(entry(message)) == (
        '<msg role="developer" ochat-history-id="5:ses_x:0">RAW|a||RAWRAW|RAWb|RAW</msg>\n'
    )
    call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}", "id": "i"}
    assert export_entry(entry(call)) == (
        '<tool_call function_name="f" tool_call_id="c" id="i" ochat-history-id="5:ses_x:0">RAW|{}|RAW</tool_call>\n'
    )
    reasoning = {
        "type": "reasoning",
        "id": "r",
        "status": "completed",
        "summary": [{"type": "summary_text", "text": "t"}],
    }
    assert export_entry(entry(reasoning)) == (
        '<reasoning id="r" status="completed" ochat-history-id="5:ses_x:0">'
        '<summary type="summary_text">RAW|t|RAW</summary></reasoning>\n'
    )


def test_strings_and_long_addresses_are_read_too() -> None:
    message = {"type": "message", "role": "user", "content": ["a", {"type": "input_text", "text": "b"}]}
    assert "RAW|a|RAWRAW|b|RAW" in export_entry(entry(message))
    assert "RAW|a|RAW" in export_entry(entry({**message, "content": "a"}))
    output = {"type": "function_call_output", "call_id": "c"}
    image = {"type": "input_image", "image_url": {"url": DATA_URI}}
    assert f'<img src="{DATA_URI}"/>' in export_entry(entry({**output, "output": [image]}))


def test_searches_leave_their_name() -> None:
    web = {"type": "web_search_call", "id": "s", "status": "completed"}
    files: dict[str, Any] = {
        "type": "file_search_call",
        "id": "s",
        "status": "completed",
        "queries": [],
        "results": None,
    }
    for payload, name in ((web, "web_search"), (files, "file_search")):
        assert export_entry(entry(payload)) == (
            f'<msg role="assistant" id="s" ochat-history-id="5:ses_x:0">{name}</msg>\n'
        )


def test_redacted_entries_show_nothing_of_themselves() -> None:
    call = {"type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}
    assert export_entry(entry(call, redacted=True)) == (
        '<assistant ochat-history-id="5:ses_x:0">[Tool content redacted]</assistant>\n'
    )


def test_a_payload_that_is_no_item_is_an_error() -> None:
    with pytest.raises(ValueError, match="provider item"):
        export_entry(
            msgspec.structs.replace(
                entry({"type": "reasoning", "id": "r", "summary": []}), payload=Raw(b"{}")
            )
        )
