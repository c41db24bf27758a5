"""ChatMD text into tokens (behaviour 17.1).

Owns: the closed tag set, attributes, RAW blocks and comments, both ways. Does not own: how tags nest (`tree`)
or what they mean (`parser`). The time taken grows with the length of the text alone, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

TAGS = frozenset(
    {
        *("config", "tool", "system", "developer", "user", "assistant", "msg"),
        *("tool_call", "tool_response", "reasoning", "summary", "import", "doc", "img", "agent"),
        *("script", "shell_access", "moderator_runtime", "authoring_context", "authoring_help"),
    }
)
TOOL_TAGS = TAGS | {"read", "write"}
"""Inside `tool` two more tags are known; everywhere else they are text, because prose uses them."""

_SHOWN = 80
"""Characters of foreign text that an error quotes."""

RAW_START = "RAW|"
RAW_END = "|RAW"


def _marks(tags: frozenset[str]) -> re.Pattern[str]:
    """Return what ends a run of text: a RAW block, a comment or a known tag. `<` before anything else is text."""
    names = "|".join(sorted(tags))
    return re.compile(rf"RAW\||<!--|<(?P<close>/?)(?P<name>{names})(?=[\s/>]|\Z)")


_MARKS, _TOOL_MARKS = _marks(TAGS), _marks(TOOL_TAGS)
_END = re.compile(r"\s*+(/?+)>")
_ATTRIBUTE = re.compile(r"\s*+([A-Za-z_][A-Za-z0-9_:.-]*+)(\s*+=\s*+)?+")
_QUOTED = {
    # Possessive, so that a missing quote costs one pass and no memory for ways back.
    '"': re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL),
    "'": re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL),
}
_ESCAPE = re.compile(r"""\\(["'\\])|&(amp|lt|gt|quot|apos);""")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


class Place(NamedTuple):
    """Where something stands: a line, counted from 1, and the file when the text came from one."""

    line: int
    file: str = ""

    def __str__(self) -> str:
        return f"{self.file} line {self.line}" if self.file else f"line {self.line}"


class ChatMDError(Exception):
    """The text is not ChatMD, or says what cannot be done. One line, naming the place."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(f"{place}: {message}")
        self.message = message
        self.place = place

    @property
    def line(self) -> int:
        """The line it happened in, counted from 1."""
        return self.place.line


class Text(Struct, frozen=True):
    """Text as it stands, or the content of a RAW block."""

    text: str
    place: Place
    raw: bool = False


class Open(Struct, frozen=True):
    """A known start tag, or a whole element without content when it is `empty` (`<doc/>`)."""

    name: str
    attributes: Mapping[str, str]
    """Decoded values; a flag attribute has the value ""."""
    source: str
    """The tag as written, for places where it is only text."""
    empty: bool
    place: Place


class Close(Struct, frozen=True):
    """A known end tag."""

    name: str
    source: str
    place: Place


Token = Text | Open | Close


def tokens(source: str, file: str = "") -> Iterator[Token]:
    """Yield the tokens of `source`; `file` names it in places.

    Text comes in pieces: several Text tokens may follow each other, and comments leave nothing. Raises
    ChatMDError for an unclosed RAW block, comment, tag or quote and for a malformed tag or attribute.
    """
    return _Lexer(source, file).run()


class _Lexer:
    """One pass over one text; `_position` only moves forward."""

    def __init__(self, source: str, file: str) -> None:
        self._source = source
        self._file = file
        self._position = 0
        self._line = 1
        self._line_position = 0
        self._marks = _MARKS

    def run(self) -> Iterator[Token]:
        while mark := self._marks.search(self._source, self._position):
            if mark.start() > self._position:
                yield self._text(mark.start())
            if mark["name"] is None:
                if mark.group() == RAW_START:
                    yield self._raw()
                else:
                    self._skip_comment()
            else:
                yield self._close(mark["name"]) if mark["close"] else self._open(mark["name"])
        if self._position < len(self._source):
            yield self._text(len(self._source))

    def _place(self, position: int) -> Place:
        """Return the place of a position; they never go back, so all calls together read the text once."""
        self._line += self._source.count("\n", self._line_position, position)
        self._line_position = position
        return Place(self._line, self._file)

    def _text(self, end: int) -> Text:
        start, self._position = self._position, end
        return Text(self._source[start:end], self._place(start))

    def _raw(self) -> Text:
        place = self._place(self._position)
        start = self._position + len(RAW_START)
        end = self._source.find(RAW_END, start)
        if end < 0:
            raise ChatMDError(f"{RAW_START} is never closed by {RAW_END}", place)
        self._position = end + len(RAW_END)
        return Text(self._source[start:end], place, raw=True)

    def _skip_comment(self) -> None:
        end = self._source.find("-->", self._position + len("<!--"))
        if end < 0:
            raise ChatMDError("<!-- is never closed by -->", self._place(self._position))
        self._position = end + len("-->")

    def _open(self, name: str) -> Open:
        start = self._position
        place = self._place(start)
        attributes, position = self._attributes(name, start + 1 + len(name))
        end = _END.match(self._source, position)
        if end is None:
            raise self._malformed(name, position, place)
        empty, self._position = end[1] == "/", end.end()
        if name == "tool" and not empty:
            self._marks = _TOOL_MARKS
        return Open(name, attributes, self._source[start : end.end()], empty, place)

    def _close(self, name: str) -> Close:
        start = self._position
        place = self._place(start)
        end = _END.match(self._source, start + 2 + len(name))
        if end is None or end[1]:
            raise ChatMDError(f"the end tag </{name}> is malformed", place)
        self._position = end.end()
        if name == "tool":
            self._marks = _MARKS
        return Close(name, self._source[start : end.end()], place)

    def _malformed(self, name: str, position: int, tag: Place) -> ChatMDError:
        rest = self._source[position:].lstrip()
        if not rest:
            return ChatMDError(f"the tag <{name} is never closed by >", tag)
        place = self._place(len(self._source) - len(rest))
        return ChatMDError(f"{rest[0]!r} has no meaning in the tag <{name}>", place)

    def _attributes(self, name: str, position: int) -> tuple[dict[str, str], int]:
        """Return the attributes from `position` on and where they end."""
        found: dict[str, str] = {}
        while attribute := _ATTRIBUTE.match(self._source, position):
            key = attribute[1]
            if key in found:
                place = self._place(attribute.start(1))
                raise ChatMDError(f"<{name}> has the attribute {key} twice", place)
            found[key], position = "", attribute.end()
            if attribute[2]:
                found[key], position = self._value(name, key, position)
        return found, position

    def _value(self, name: str, key: str, position: int) -> tuple[str, int]:
        quote = self._source[position : position + 1]
        if quote not in _QUOTED:
            raise ChatMDError(f"the value of {key} in <{name}> needs quotes", self._place(position))
        quoted = _QUOTED[quote].match(self._source, position)
        if quoted is None:
            raise ChatMDError(f"the quote around {key} in <{name}> is never closed", self._place(position))
        return _decoded(quoted[1]), quoted.end()


def _decoded(value: str) -> str:
    """Return an attribute value with its escapes and entities replaced; other backslashes and `&` stay."""
    return _ESCAPE.sub(lambda match: match[1] or _ENTITIES[match[2]], value)


def shown(text: str) -> str:
    """Return `text` as an error quotes it: on one line and not long."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def quoted(value: str) -> str:
    """Return `value` as a quoted attribute value that reads back as itself."""
    escaped = value.replace("\\", "\\\\").replace("&", "&amp;").replace('"', "&quot;")
    return '"' + escaped.replace("<", "&lt;").replace(">", "&gt;") + '"'


def raw_block(text: str) -> str:
    """Return `text` in RAW blocks that read back as itself.

    The terminator cannot be escaped, so each one inside the text is cut between its bar and its letters, and
    the two halves stand in two blocks that follow each other without a gap.
    """
    cut = "|" + RAW_END + RAW_START + "RAW"
    return RAW_START + text.replace(RAW_END, cut) + RAW_END
