"""A screen that types what a test says and remembers what it was shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ochat_site.terminal.screen import MARKS, NoteKind
from tests.support.waiting import eventually


class Script:
    """See `Screen`."""

    def __init__(self, *lines: str | None, streams: bool = True) -> None:
        """Type these lines at once; None ends the input, which otherwise stays open."""
        self.streams = streams
        self.shown: list[str] = []
        self.states: list[str] = []
        self.interrupt: Callable[[], None] = lambda: None
        self._line = ""
        self._typed: asyncio.Queue[str | None] = asyncio.Queue()
        for line in lines:
            self.type(line)

    @property
    def text(self) -> str:
        """Everything shown so far, the line that is not finished included."""
        return "\n".join([*self.shown, self._line])

    def type(self, line: str | None) -> None:
        """Type a line."""
        self._typed.put_nowait(line)

    async def until(self, text: str) -> None:
        """Wait until something is shown."""
        await eventually(lambda: text in self.text, f"{text!r} is shown in:\n{self.text}", seconds=5)

    def say(self, text: str) -> None:
        self._line += text

    def end_line(self) -> None:
        self.shown.append(self._line)
        self._line = ""

    def note(self, text: str, kind: NoteKind = "info") -> None:
        self.shown.append(f"{MARKS[kind]} {text}")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.shown.extend("|".join(row) for row in (header, *rows))

    def show_state(self, state: str) -> None:
        self.states.append(state)

    def on_interrupt(self, act: Callable[[], None]) -> None:
        self.interrupt = act

    async def read_line(self) -> str | None:
        return await self._typed.get()
