"""What a client may send as ChatMD (behaviour 6.1, 17.3)."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_app.chatmd.lexer import ChatMDError
from sessions_app.chatmd.message import HelperRefused, user_item


def content(text: str) -> list[dict[str, str]]:
    item = user_item(text)
    assert (item.role, item.kind) == ("user", "message")
    message = json.loads(bytes(item.payload))
    assert (message["type"], message["role"]) == ("message", "user")
    parts: list[dict[str, str]] = message["content"]
    return parts


def one_text(text: str) -> str:
    (part,) = content(text)
    assert part["type"] == "input_text"
    return part["text"]


def test_the_first_user_element_counts_alone() -> None:
    assert one_text("<user>a</user><system>b</system>") == "a"
    assert one_text('<system>b</system><user>a</user><user>c</user><tool nonsense="x"/>') == "a"


def test_plain_words_are_wrapped() -> None:
    assert one_text("plain words, 1 < 2") == "plain words, 1 < 2"
    assert one_text(" keeps its space ") == " keeps its space "
    assert one_text("\n <user>a</user>") == "a"


def test_an_import_is_literal_text() -> None:
    assert one_text('<user><import src="secret.md"/></user>') == '<import src="secret.md"/>'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<system>only</system>", "there is no <user> element"),
        ('<msg role="user">a</msg>', "there is no <user> element"),
        ("<import src='a'/>", "there is no <user> element"),
        ("<user>unclosed", "<user> is never closed"),
        ("words with a <system> tag", "</user> stands where <system> of line 1 should be closed"),
        ("<b>words</b>", "text outside of every element"),
        ("<user> \n </user>", "the <user> element is empty"),
        ("<user/>", "the <user> element is empty"),
    ],
)
def test_what_cannot_be_converted_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ChatMDError) as caught:
        user_item(text)
    assert message in caught.value.message
    assert caught.value.line == 1


@pytest.mark.parametrize(
    "helper", ['<doc src="a" local/>', '<img src="https://x"/>', '<agent src="p">a</agent>']
)
def test_helpers_that_need_fetching_are_refused_by_type(helper: str) -> None:
    with pytest.raises(HelperRefused, match="cannot be used in a message"):
        user_item(f"<user>see {helper}</user>")


def test_an_image_that_is_there_needs_no_fetching() -> None:
    text, image = content('<user>see <img src="data:image/png;base64,AA=="/></user>')
    assert text == {"type": "input_text", "text": "see "}
    assert image == {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}


@given(st.text() | st.text(alphabet='<>/user ab"=|RAW').map("<user>{}</user>".format))
def test_any_text_becomes_a_message_or_an_error(text: str) -> None:
    with suppress(ChatMDError):
        user_item(text)
