"""Where imports expand and what they may reach (behaviour 17.3, 3.1)."""

from __future__ import annotations

import pytest

from sessions_app.chatmd.elements import Message, Text
from sessions_app.chatmd.imports import MAX_IMPORTS, SourceError, expand
from sessions_app.chatmd.lexer import ChatMDError
from sessions_app.chatmd.parser import read_document
from sessions_app.chatmd.tree import MAX_DEPTH
from sessions_app.limits import MAX_PROMPT_BYTES


def expanded(**sources: str | bytes) -> tuple[str, ...]:
    """Expand the source `root` among `sources` (`__` stands for `/`) and return the texts of its messages."""
    files = {
        name.replace("__", "/"): text if isinstance(text, bytes) else text.encode()
        for name, text in sources.items()
    }

    def read(path: str) -> bytes:
        if path not in files:
            raise SourceError("does not exist")
        return files[path]

    turns = read_document(expand("root", read)).turns
    return tuple(
        "".join(part.text for part in turn.body if isinstance(part, Text))
        for turn in turns
        if isinstance(turn, Message)
    )


def refusal(**sources: str | bytes) -> str:
    with pytest.raises(ChatMDError) as caught:
        expanded(**sources)
    return str(caught.value)


def test_at_the_top_an_import_brings_elements() -> None:
    assert expanded(root='<import src="a"/><user>2</user>', a="<system>1</system>") == ("1", "2")


def test_inside_a_message_it_brings_text() -> None:
    assert expanded(root='<user>1 <import src="a"/> 3</user>', a="2 <b>") == ("1 2 <b> 3",)


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_it_expands_in_the_long_form_too(role: str) -> None:
    assert expanded(root=f'<msg role="{role}"><import src="a"/></msg>', a="in") == ("in",)


@pytest.mark.parametrize(
    "literal",
    [
        '<assistant><import src="a"/></assistant>',
        '<msg role="assistant"><import src="a"/></msg>',
        '<user><summary><import src="a"/></summary></user>',
    ],
)
def test_elsewhere_it_is_text(literal: str) -> None:
    (text,) = expanded(root=literal, a="in")
    assert '<import src="a"/>' in text


def test_paths_start_at_the_importing_file() -> None:
    assert expanded(
        root='<import src="sub/a"/>',
        sub__a='<import src="../b"/><import src="./b"/>',
        b="<user>above</user>",
        sub__b="<user>beside</user>",
    ) == ("above", "beside")


def test_a_source_may_be_imported_twice_but_not_by_itself() -> None:
    assert expanded(root='<import src="a"/><import src="a"/>', a="<user>x</user>") == ("x", "x")
    assert refusal(root='<import src="a"/>', a='\n<import src="root"/>') == "a line 2: 'root' imports itself"


@pytest.mark.parametrize("src", ["/etc/passwd", "../a", "sub/../../a", "..", "sub\\\\a"])
def test_paths_stay_below_the_folder(src: str) -> None:
    assert "is not below the prompt's folder" in refusal(root=f'<import src="{src}"/>')


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ('<import src="none"/>', "root line 1: 'none' does not exist"),
        ("<import/>", "root line 1: <import> needs the attribute src"),
        ('<import src="a" once/>', "root line 1: <import> has no attribute once"),
        ('<import src="a">b</import>', "root line 1: <import> cannot have content"),
        ('<import src="a" namespace="1"/>', "root line 1: '1' is no namespace"),
        (
            '<import src="a" namespace="n"/><import src="b" namespace="n"/>',
            "root line 1: the namespace 'n' is taken",
        ),
    ],
)
def test_errors_name_file_and_line(tag: str, message: str) -> None:
    assert refusal(root=tag, a="", b="").startswith(message)
    assert refusal(root=f"<user>{tag}</user>", a="", b="").startswith(message)


def test_errors_in_an_imported_file_name_that_file() -> None:
    assert refusal(root='<import src="a"/>', a="\nwords").startswith("a line 2: text outside")
    assert "'a' is not UTF-8 text" in refusal(root='<import src="a"/>', a=b"\xff")


def test_namespaces_may_repeat_where_they_are_not_siblings() -> None:
    one = '<import src="b" namespace="n"/>'
    assert expanded(root=f'<import src="a" namespace="n"/><user>{one}</user>', a=one, b="") == ("",)


def test_files_that_import_each_other_often_end_at_a_bound() -> None:
    doubling = {f"a{n}": f'<import src="a{n + 1}"/>' * 2 for n in range(30)}
    assert f"more than {MAX_IMPORTS} imports" in refusal(root='<import src="a0"/>', **doubling, a30="")


def test_depth_and_size_end_at_a_bound() -> None:
    chain = {f"a{n}": f'<import src="a{n + 1}"/>' for n in range(MAX_DEPTH + 1)}
    assert "imports are nested deeper" in refusal(root='<import src="a0"/>', **chain)
    agents = "<agent src='x'>" * 20 + '<import src="a"/>' + "</agent>" * 20
    assert "elements are nested deeper" in refusal(
        root=f"<user>{agents}</user>", a=agents.replace('"a"', '"b"')
    )
    third = " " * (MAX_PROMPT_BYTES // 3)
    assert "expands to more than" in refusal(root='<import src="a"/>' * 3, a=third)
