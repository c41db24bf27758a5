"""Where a conversation is shown: what every screen can do, and the one for pipes.

Owns: plain output. Does not own: what is said (`transcript`), or the screen of an interactive terminal (`tty`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, Protocol, TextIO

NoteKind = Literal["info", "tool", "user", "warning", "error"]

MARKS: dict[NoteKind, str] = {"info": "·", "tool": "→", "user": ">", "warning": "!", "error": "✗"}

LINES_AHEAD = 16
"""So many lines are read before they are asked for; a large file stays where it is."""
READ_BYTES = 65536

_UNSAFE = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"} | {
    ord("\r"): None
}


def clean(text: str) -> str:
    """Return text that cannot steer a terminal: what models and tools say may hold control sequences."""
    return text.translate(_UNSAFE)


class Screen(Protocol):
    """A place for words and a source of lines."""

    streams: bool
    """Whether an answer is shown while it arrives; otherwise only when it is whole."""

    def say(self, text: str) -> None:
        """Show more of an answer."""
        ...

    def end_line(self) -> None:
        """End the answer, if one is being shown."""
        ...

    def note(self, text: str, kind: NoteKind = "info") -> None:
        """Show a line, or a few, about what happens."""
        ...

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show rows of short texts."""
        ...

    def show_state(self, state: str) -> None:
        """Show what goes on, in one or two words, where that is shown all the time."""
        ...

    def on_interrupt(self, act: Callable[[], None]) -> None:
        """Do this at Ctrl-C from now on."""
        ...

    async def read_line(self) -> str | None:
        """Return the next line that is typed, or None when there is no more; may be cancelled and called again."""
        ...


class PlainScreen:
    """Answers on standard output, whole and plain; everything else on standard error."""

    streams = False

    def __init__(self, output: TextIO, errors: TextIO, input: int) -> None:
        """`input` is a file descriptor, which this screen alone reads."""
        self._output = output
        self._errors = errors
        self._input = input
        self._clean = clean if output.isatty() else str
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._ahead = threading.Semaphore(LINES_AHEAD)
        self._reader: threading.Thread | None = None

    @classmethod
    def standard(cls) -> PlainScreen:
        """Return the screen of this process's standard streams."""
        return cls(sys.stdout, sys.stderr, sys.stdin.fileno())

    def say(self, text: str) -> None:
        """Write to standard output."""
        self._output.write(self._clean(text))

    def end_line(self) -> None:
        """End the line and hand it on at once."""
        self._output.write("\n")
        self._output.flush()

    def note(self, text: str, kind: NoteKind = "info") -> None:
        """Write a line to standard error."""
        self._errors.write(f"{MARKS[kind]} {clean(text)}\n")
        self._errors.flush()

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write rows to standard error, parted by tabulators."""
        for row in (header, *rows):
            self._errors.write(clean("\t".join(row)) + "\n")
        self._errors.flush()

    def show_state(self, state: str) -> None:
        """Nothing is shown all the time."""

    def on_interrupt(self, act: Callable[[], None]) -> None:
        """Take the signal over."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, act)

    async def read_line(self) -> str | None:
        """Return a line of the input, a file perhaps, for which no event loop can wait: a thread reads it.

        It reads the descriptor itself, because a thread that still waits in `sys.stdin` when the process ends is fatal.
        """
        if self._reader is None:
            loop = asyncio.get_running_loop()

            def hand_on(line: str | None) -> None:
                self._ahead.acquire()
                loop.call_soon_threadsafe(self._lines.put_nowait, line)

            self._reader = threading.Thread(target=_read_lines, args=(self._input, hand_on), daemon=True)
            self._reader.start()
        line = await self._lines.get()
        self._ahead.release()
        if line is None:
            self._lines.put_nowait(None)
        return line


def _read_lines(descriptor: int, hand_on: Callable[[str | None], None]) -> None:
    rest = b""
    with suppress(RuntimeError):  # The loop is closed: nobody reads any more.
        with suppress(OSError):  # A terminal that hangs up ends with an error instead of nothing.
            while chunk := os.read(descriptor, READ_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    hand_on(line.decode(errors="replace"))
        if rest:
            hand_on(rest.decode(errors="replace"))
        hand_on(None)
