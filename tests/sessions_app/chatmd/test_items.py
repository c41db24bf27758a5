"""What elements become in a history (behaviour 17.5, wire 6)."""

from __future__ import annotations

import json

import pytest

from sessions_app.chatmd.elements import Doc, Img
from sessions_app.chatmd.items import Item, Parts, Unresolved, helpers, to_items, user_message
from sessions_app.chatmd.lexer import Place
from sessions_app.chatmd.parser import read_document
from sessions_app.chatmd.tree import parse_document
from sessions_app.records.items import InputImage, InputText, classify_item

DOC = Doc(src="d", local=True, place=Place(1))
PARTS: Parts = {
    DOC: InputText(text="document"),
    Img(src="i", local=True, place=Place(1)): InputImage(
        image_url="data:image/png;base64,AA==", detail="auto"
    ),
}


def items(source: str) -> tuple[Item, ...]:
    return to_items(read_document(parse_document(source)).turns, PARTS)


def payload(source: str) -> object:
    """Return the decoded payload of the only item, having checked it against its role and kind."""
    (item,) = items(source)
    assert classify_item(item.payload) == (item.role, item.kind)
    return json.loads(bytes(item.payload))


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_messages_to_the_model_keep_their_exact_role(role: str) -> None:
    assert payload(f'<{role}>a<doc src="d" local/><img src="i" local/></{role}>') == {
        "type": "message",
        "role": role,
        "content": [
            {"type": "input_text", "text": "a"},
            {"type": "input_text", "text": "document"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        ],
    }


def test_the_outer_role_of_a_developer_is_system() -> None:
    assert [item.role for item in items("<system>a</system><developer>b</developer><user>c</user>")] == [
        "system",
        "system",
        "user",
    ]


def test_an_assistant_with_an_id_is_an_answer() -> None:
    answer = {
        "type": "message",
        "role": "assistant",
        "id": "m",
        "status": "completed",
        "content": [
            {
                "type": "output_text",
                "text": 'a document<img src="data:image/png;base64,AA=="/>',
                "annotations": [],
            }
        ],
    }
    assert payload('<assistant id="m">a <doc src="d" local/><img src="i" local/></assistant>') == answer
    assert payload('<msg role="assistant" id="m" status="incomplete"/>') == {
        **answer,
        "status": "incomplete",
        "content": [{"type": "output_text", "text": "", "annotations": []}],
    }


def test_an_assistant_without_an_id_is_a_message_with_one_text() -> None:
    assert payload('<assistant>a <doc src="d" local/></assistant>') == {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "input_text", "text": "a document"}],
    }


def test_calls_and_outputs() -> None:
    assert payload(
        '<tool_call function_name="f" tool_call_id="c" id="i">RAW|{"a":"<b>"}|RAW</tool_call>'
    ) == {
        "type": "function_call",
        "name": "f",
        "call_id": "c",
        "id": "i",
        "arguments": '{"a":"<b>"}',
    }
    assert payload('<tool_call type="custom_tool_call" function_name="f" tool_call_id="c">x</tool_call>') == {
        "type": "custom_tool_call",
        "name": "f",
        "call_id": "c",
        "input": "x",
    }
    assert payload('<tool_response tool_call_id="c">a <doc src="d" local/></tool_response>') == {
        "type": "function_call_output",
        "call_id": "c",
        "output": "a document",
    }
    assert payload(
        '<tool_response type="custom_tool_call" tool_call_id="c">a<img src="i" local/></tool_response>'
    ) == {
        "type": "custom_tool_call_output",
        "call_id": "c",
        "output": [
            {"type": "input_text", "text": "a"},
            {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        ],
    }


def test_reasoning() -> None:
    assert payload('<reasoning id="r"><summary>a</summary></reasoning>') == {
        "type": "reasoning",
        "id": "r",
        "summary": [{"type": "summary_text", "text": "a"}],
    }
    assert payload('<reasoning id="r" status="completed"/>') == {
        "type": "reasoning",
        "id": "r",
        "status": "completed",
        "summary": [],
    }


def test_a_helper_without_a_part_is_told_with_its_place() -> None:
    with pytest.raises(Unresolved) as caught:
        items('\n<user><doc src="https://example.org/x"/></user>')
    assert caught.value.helper == Doc(src="https://example.org/x", place=Place(2))
    assert str(caught.value) == "line 2: <doc src='https://example.org/x'> is not resolved"


def test_helpers_are_found_in_order_and_data_uris_need_none() -> None:
    source = '<user><img src="data:image/png;base64,AA=="/><doc src="d" local/></user><reasoning id="r"/>'
    turns = read_document(parse_document(source)).turns
    assert list(helpers(turns)) == [DOC]
    assert json.loads(bytes(to_items(turns, PARTS)[0].payload))["content"][0]["image_url"].startswith("data:")


def test_a_user_message_of_given_parts() -> None:
    item = user_message([InputText(text="a")])
    assert (item.role, item.kind) == ("user", "message")
    assert (
        bytes(item.payload)
        == b'{"type":"message","role":"user","content":[{"type":"input_text","text":"a"}]}'
    )
