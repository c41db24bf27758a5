"""In which line of a TOML text each key stands.

The reader of the standard library keeps no positions, and a catalog that is refused must say where. Owns nothing
of TOML's rules: it is asked only about text that `tomllib` has read, so it may trust every bracket and quote.
"""

from __future__ import annotations

import re
import tomllib
from itertools import count

Path = tuple[str | int, ...]
"""Keys and, in arrays, positions from 0, from the top of the document down."""

_BLANK = re.compile(r"(?:\s|#[^\n]*)*+")
_SPACE = re.compile(r"[ \t]*+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]++")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:\\.|[^"\\])*+"'
    r"|'[^']*+'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]*+")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line, counted from 1, of every key, table and array element of a valid TOML text."""
    return _Scanner(text.replace("\r\n", "\n")).run()


class _Scanner:
    """One pass over one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._lines: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}
        """How many tables each array of tables has so far."""

    def run(self) -> dict[Path, int]:
        table: Path = ()
        while not self._at_end():
            line = self._line()
            if self._take("[["):
                table = self._array_table(self._keys())
                self._take("]]")
            elif self._take("["):
                table = self._within((), self._keys())
                self._take("]")
            else:
                self._pair(table)
                continue
            self._note(table, line)
        return self._lines

    def _at_end(self) -> bool:
        self._skip(_BLANK)
        return self._position == len(self._text)

    def _line(self) -> int:
        return self._text.count("\n", 0, self._position) + 1

    def _note(self, path: Path, line: int) -> None:
        """Note where a path, and what it is inside of, was first named."""
        for end in range(1, len(path) + 1):
            self._lines.setdefault(path[:end], line)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._position)
        if found is None:
            return ""
        self._position = found.end()
        return found.group()

    def _take(self, sign: str) -> bool:
        self._skip(_SPACE)
        if not self._text.startswith(sign, self._position):
            return False
        self._position += len(sign)
        return True

    def _within(self, path: Path, keys: list[str]) -> Path:
        """Return where `keys` lead; an array of tables stands for its last table."""
        for key in keys:
            path = (*path, key)
            if path in self._sizes:
                path = (*path, self._sizes[path] - 1)
        return path

    def _array_table(self, keys: list[str]) -> Path:
        array = (*self._within((), keys[:-1]), keys[-1])
        self._sizes[array] = self._sizes.get(array, 0) + 1
        return (*array, self._sizes[array] - 1)

    def _keys(self) -> list[str]:
        keys = [self._key()]
        while self._take("."):
            keys.append(self._key())
        return keys

    def _key(self) -> str:
        self._skip(_SPACE)
        bare = self._skip(_BARE_KEY)
        if bare:
            return bare
        quoted: str = tomllib.loads(f"key = {self._skip(_STRING)}")["key"]
        return quoted

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = (*table, *self._keys())
        self._note(path, line)
        self._take("=")
        self._value(path)

    def _value(self, path: Path) -> None:
        if self._take("["):
            for position in count():
                self._skip(_BLANK)
                if self._take("]"):
                    return
                self._note((*path, position), self._line())
                self._value((*path, position))
                self._skip(_BLANK)
                self._take(",")
        elif self._take("{"):
            while not self._take("}"):
                self._pair(path)
                self._take(",")
        elif not self._skip(_STRING):
            self._skip(_SCALAR)
