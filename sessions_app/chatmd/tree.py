"""Tokens into nested nodes (behaviour 17.1).

Owns: that tags match and nest to a bounded depth, and that only elements stand at the top of a document.
Does not own: what an element means or where it may stand (`parser`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from sessions_app.chatmd.lexer import RAW_START, ChatMDError, Close, Open, Place, Text, shown, tokens

MAX_DEPTH = 32
"""Elements inside elements. Nothing sensible needs more than four; readers below may recurse this deep."""

MAX_TOKENS = 100_000
"""Tags and runs of text in one source. It keeps what a client's message can cost below a second of work."""


class Node(Struct, frozen=True):
    """A known element, as written."""

    name: str
    attributes: Mapping[str, str]
    children: tuple[Child, ...]
    opening: str
    """The start tag's own text."""
    closing: str
    """The end tag's own text; empty for `<doc/>`."""
    place: Place


Child = Text | Node


@dataclass(slots=True)
class _Frame:
    """An element that is still open."""

    tag: Open
    children: list[Child] = field(default_factory=list)


def parse_document(source: str, file: str = "") -> tuple[Node, ...]:
    """Return the elements of a whole ChatMD text; `file` names it in places.

    Raises ChatMDError for what `tokens` refuses, for tags that do not match, for nesting deeper than
    MAX_DEPTH, for more than MAX_TOKENS and for text outside of every element.
    """
    nodes = []
    for child in parse_body(source, file):
        if isinstance(child, Node):
            nodes.append(child)
        elif child.raw or not child.text.isspace():
            raise _stray(child)
    return tuple(nodes)


def parse_body(source: str, file: str = "") -> tuple[Child, ...]:
    """Return text and elements of what could stand inside an element. Raises as `parse_document`."""
    open_frames: list[_Frame] = []
    top: list[Child] = []
    for number, token in enumerate(tokens(source, file)):
        if number == MAX_TOKENS:
            raise ChatMDError(f"there are more than {MAX_TOKENS} tags and texts", token.place)
        children = open_frames[-1].children if open_frames else top
        match token:
            case Text():
                children.append(token)
            case Open(empty=True):
                children.append(_node(token, (), ""))
            case Open():
                if len(open_frames) == MAX_DEPTH:
                    raise ChatMDError(f"elements are nested deeper than {MAX_DEPTH}", token.place)
                open_frames.append(_Frame(token))
            case Close():
                frame = _matching(open_frames, token)
                outer = open_frames[-1].children if open_frames else top
                outer.append(_node(frame.tag, tuple(frame.children), token.source))
    if open_frames:
        tag = open_frames[-1].tag
        raise ChatMDError(f"<{tag.name}> is never closed", tag.place)
    return tuple(top)


def _node(tag: Open, children: tuple[Child, ...], closing: str) -> Node:
    return Node(tag.name, tag.attributes, children, tag.source, closing, tag.place)


def _matching(open_frames: list[_Frame], close: Close) -> _Frame:
    """Take the innermost open element off, if `close` is its end tag."""
    if not open_frames:
        raise ChatMDError(f"</{close.name}> closes nothing", close.place)
    frame = open_frames.pop()
    if frame.tag.name != close.name:
        opened = f"<{frame.tag.name}> of line {frame.tag.place.line}"
        raise ChatMDError(f"</{close.name}> stands where {opened} should be closed", close.place)
    return frame


def _stray(text: Text) -> ChatMDError:
    stripped = text.text.lstrip()
    blank_lines = text.text[: len(text.text) - len(stripped)].count("\n")
    first = stripped.split(maxsplit=1)[0] if stripped else RAW_START
    place = Place(text.place.line + blank_lines, text.place.file)
    return ChatMDError(f"text outside of every element: {shown(first)}", place)
