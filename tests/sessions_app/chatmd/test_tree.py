"""How elements nest (behaviour 17.1)."""

from __future__ import annotations

import pytest

from sessions_app.chatmd.lexer import ChatMDError, Text
from sessions_app.chatmd.tree import MAX_DEPTH, MAX_TOKENS, Node, parse_body, parse_document


def nested(depth: int) -> str:
    return "<user>" * depth + "</user>" * depth


def test_elements_keep_their_tags_as_written() -> None:
    (user,) = parse_document("\n<user id='a'>x<doc\nsrc='y'/></user >\n")
    assert (user.name, dict(user.attributes), user.place.line) == ("user", {"id": "a"}, 2)
    assert (user.opening, user.closing) == ("<user id='a'>", "</user >")
    text, doc = user.children
    assert isinstance(text, Text)
    assert text.text == "x"
    assert isinstance(doc, Node)
    assert (doc.opening, doc.closing, doc.children) == ("<doc\nsrc='y'/>", "", ())


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("<user>", 1, "<user> is never closed"),
        ("<user>\n<agent src='x'>\n</user>", 3, "</user> stands where <agent> of line 2 should be closed"),
        ("\n</user>", 2, "</user> closes nothing"),
        ("<user></user>\n\n  words here", 3, "text outside of every element: 'words'"),
        ("<User></User>", 1, "text outside of every element: '<User></User>'"),
        ("RAW||RAW", 1, "text outside of every element"),
        (nested(MAX_DEPTH + 1), 1, "nested deeper"),
        ("<user/>" * (MAX_TOKENS + 1), 1, "more than 100000 tags and texts"),
    ],
)
def test_errors_name_line_and_cause(source: str, line: int, message: str) -> None:
    with pytest.raises(ChatMDError) as caught:
        parse_document(source)
    assert message in caught.value.message
    assert caught.value.line == line


def test_the_deepest_nesting_allowed_parses() -> None:
    assert len(parse_document(nested(MAX_DEPTH))) == 1


def test_comments_and_whitespace_may_stand_at_the_top() -> None:
    assert parse_document(" \r\n<!-- why -->\t") == ()


def test_a_body_may_hold_text() -> None:
    first, second = parse_body("words <doc src='x'/>")
    assert isinstance(first, Text)
    assert isinstance(second, Node)
