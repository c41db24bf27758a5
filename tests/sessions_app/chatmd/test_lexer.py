"""Lexical rules (behaviour 17.1)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessions_app.chatmd.lexer import (
    TAGS,
    ChatMDError,
    Close,
    Open,
    Place,
    Text,
    quoted,
    raw_block,
    shown,
    tokens,
)

# Text that looks like ChatMD reaches more of the lexer than arbitrary text.
SIGNS = (
    "<",
    ">",
    "/>",
    "</",
    '"',
    "'",
    "\\",
    "=",
    "&lt;",
    "&",
    "|",
    "RAW",
    "RAW|",
    "|RAW",
    "<!--",
    "-->",
    "\n",
)
STARTS = tuple(f"<{tag}" for tag in sorted(TAGS))
ENDS = tuple(f"</{tag}>" for tag in sorted(TAGS))
FRAGMENTS = st.sampled_from((*SIGNS, *STARTS, *ENDS, "<b>", "src", " ", "é", "\0"))
CHATMD_LIKE = st.lists(FRAGMENTS | st.text(max_size=5), max_size=40).map("".join)


def kinds(source: str) -> list[str]:
    """Name each token: its text, `<name>`, `<name/>` or `</name>`."""
    names = []
    for token in tokens(source):
        match token:
            case Text():
                names.append(token.text)
            case Open():
                names.append(f"<{token.name}/>" if token.empty else f"<{token.name}>")
            case Close():
                names.append(f"</{token.name}>")
    return names


def text_of(source: str) -> str:
    """Return the text tokens of `source`, put together."""
    return "".join(token.text for token in tokens(source) if isinstance(token, Text))


def attributes(source: str) -> dict[str, str]:
    """Return the attributes of the only tag in `source`."""
    (tag,) = tokens(source)
    assert isinstance(tag, Open)
    return dict(tag.attributes)


def test_known_tags_are_tokens_and_unknown_ones_text() -> None:
    assert kinds("<user>a</user>") == ["<user>", "a", "</user>"]
    assert kinds('<doc src="x"/>') == ["<doc/>"]
    assert text_of("a <b>c</b> <User> <users> 1 < 2 << 3 </nothing>") == (
        "a <b>c</b> <User> <users> 1 < 2 << 3 </nothing>"
    )


def test_read_and_write_are_known_inside_a_tool_only() -> None:
    inside = kinds('<tool name="t"><read id="a" path="b"/></tool><user><read></user>')
    assert inside == ["<tool>", "<read/>", "</tool>", "<user>", "<read>", "</user>"]


def test_comments_leave_nothing() -> None:
    assert kinds("a<!-- <user> RAW| -->b") == ["a", "b"]


def test_raw_blocks_are_verbatim() -> None:
    (block,) = tokens("RAW| <user> <!-- &lt; |R |RAW")
    assert block == Text(" <user> <!-- &lt; |R ", Place(1), raw=True)
    assert kinds("beforeRAW|x|RAWafter") == ["before", "x", "after"]


def test_attributes_have_quotes_escapes_entities_and_flags() -> None:
    assert attributes("""<doc a="1" b='2' local c = "x>y"/>""") == {
        "a": "1",
        "b": "2",
        "local": "",
        "c": "x>y",
    }
    assert attributes(r"""<doc a="\"\\\d" b='\''/>""") == {"a": r'"\\d', "b": "'"}
    assert attributes('<doc a="&amp;lt; &lt;&gt;&quot;&apos; &nbsp; & ;"/>') == {"a": "&lt; <>\"' &nbsp; & ;"}


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("\nRAW| x", 2, "never closed by |RAW"),
        ("\n\n<!-- x", 3, "never closed by -->"),
        ('<user>\n<doc src="x', 2, "the quote around src in <doc> is never closed"),
        ("<doc src='x\"/>", 1, "never closed"),
        ("<user", 1, "<user is never closed by >"),
        ('\n<doc src="x" ', 2, "<doc is never closed by >"),
        ("<doc src=x/>", 1, "the value of src in <doc> needs quotes"),
        ('<doc\n src="x"\n src="y"/>', 3, "the attribute src twice"),
        ('<doc\n"x"/>', 2, "'\"' has no meaning"),
        ("<doc <user>", 1, "'<' has no meaning"),
        ("</user x>", 1, "</user> is malformed"),
        ("</user/>", 1, "</user> is malformed"),
    ],
)
def test_errors_name_line_and_cause(source: str, line: int, message: str) -> None:
    with pytest.raises(ChatMDError) as caught:
        list(tokens(source))
    assert caught.value.line == line
    assert message in caught.value.message
    assert str(caught.value) == f"line {line}: {caught.value.message}"


def test_places_name_the_file() -> None:
    with pytest.raises(ChatMDError, match=r"^a\.chatmd line 1: "):
        list(tokens("RAW|", "a.chatmd"))


def test_shown_text_is_short_and_on_one_line() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert len(shown("x" * 1000)) < 100


@given(st.text())
@example("|RAW")
@example("|RAW|RAW|RAW|")
@example("RAW||RAW")
@example("a|RA")
def test_raw_blocks_read_back_as_their_text(text: str) -> None:
    found = list(tokens(raw_block(text)))
    assert all(isinstance(token, Text) and token.raw for token in found)
    assert text_of(raw_block(text)) == text


@given(st.text(alphabet="RAW|x"))
def test_raw_blocks_survive_what_looks_like_their_ends(text: str) -> None:
    assert text_of(f"{raw_block(text)}{raw_block(text)}") == text + text


@given(st.text())
@example("\\")
@example("\\\"'&lt;")
def test_quoted_values_read_back_as_themselves(value: str) -> None:
    assert attributes(f"<doc src={quoted(value)}/>") == {"src": value}


@given(CHATMD_LIKE | st.text())
def test_any_text_gives_tokens_or_an_error_with_a_line_of_it(source: str) -> None:
    try:
        found = list(tokens(source))
    except ChatMDError as error:
        assert 1 <= error.line <= source.count("\n") + 1
        assert "\n" not in str(error)
    else:
        lines = [token.place.line for token in found]
        assert lines == sorted(lines)


@pytest.mark.parametrize(
    "unit",
    [
        "<a ",
        "<user ",
        "<!--x-->",
        "RAW||RAW",
        '<doc a="\\',
        "</",
        "<user/>",
        "&",
        "\n<",
        '<doc a="\\"',
        "<doc a ",
    ],
)
def test_hostile_text_of_megabytes_is_read_once(unit: str) -> None:
    """Work that grew with the square of this text would not end within the time a test has."""
    with suppress(ChatMDError):
        assert sum(1 for _ in tokens(unit * (2_000_000 // len(unit)) + "end")) > 0
