"""The screen of an interactive terminal: a prompt that stays at the bottom while everything else goes by above it.

Owns: rows, styles, keys. An answer that streams is shown as part of the prompt until a row of it is full, then moves
above; so typing and streaming do not disturb each other. Only styles that show on light and dark grounds are used.
"""

from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import Callable, Sequence

from prompt_toolkit import PromptSession, print_formatted_text
from prompt_toolkit.formatted_text import ANSI, FormattedText
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ochat_site.terminal.screen import MARKS, NoteKind, clean

STYLES: dict[NoteKind, str] = {
    "info": "dim",
    "tool": "dim",
    "user": "bold",
    "warning": "magenta",
    "error": "bold red",
}


class TtyScreen:
    """See `Screen`. Ctrl-C clears what is typed; on an empty line it interrupts. Ctrl-D ends the input."""

    streams = True

    def __init__(self, *, input: Input | None = None, output: Output | None = None) -> None:
        """Take over the terminal whenever a line is asked for; `input` and `output` stand in for it in tests."""
        self._interrupt: Callable[[], None] = self._end_input
        self._partial = ""
        self._state = ""
        self._prompt: PromptSession[str] = PromptSession(
            message=self._message,
            style=Style.from_dict({"state": "italic", "mark": "bold"}),
            key_bindings=self._keys(),
            erase_when_done=True,
            input=input,
            output=output or _output(),
        )

    def say(self, text: str) -> None:
        """Show more of an answer: full rows above, the rest in front of the prompt."""
        *rows, self._partial = (self._partial + clean(text)).split("\n")
        for row in rows:
            self._print(Text(row))
        width = self._width()
        while cell_len(self._partial) > width:
            end = _fitting(self._partial, width)
            self._print(Text(self._partial[:end].rstrip(" ")))
            self._partial = self._partial[end:]
        self._prompt.app.invalidate()

    def end_line(self) -> None:
        """Move what is left of the answer above."""
        if self._partial:
            row, self._partial = self._partial, ""
            self._print(Text(row))

    def note(self, text: str, kind: NoteKind = "info") -> None:
        """Show lines in the style of their kind."""
        self._print(Text(f"{MARKS[kind]} {clean(text)}", STYLES[kind]))

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show rows in columns, the last one cut where the terminal ends."""
        table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
        for title in header:
            table.add_column(title, no_wrap=True, ratio=1 if title is header[-1] else None)
        for row in rows:
            table.add_row(*(Text(clean(cell)) for cell in row))
        self._print(table)

    def show_state(self, state: str) -> None:
        """Show it in the prompt, unless nothing goes on."""
        self._state = "" if state == "idle" else f"{state} "
        self._prompt.app.invalidate()

    def on_interrupt(self, act: Callable[[], None]) -> None:
        """Take the key over, and the signal that it makes while the prompt is being drawn anew; before, it ends the input."""
        self._interrupt = act
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, act)

    async def read_line(self) -> str | None:
        """Return what is typed; the line then stands above."""
        try:
            line = await self._prompt.prompt_async(handle_sigint=False)
        except EOFError:
            return None
        if line.strip():
            self.note(line, "user")
        return line

    def _end_input(self) -> None:
        self._prompt.app.exit(exception=EOFError())

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                self._interrupt()

        return keys

    def _message(self) -> FormattedText:
        partial = f"{self._partial}\n" if self._partial else ""
        return FormattedText(
            [("", partial), ("class:state", self._state), ("class:mark", f"{MARKS['user']} ")]
        )

    def _print(self, what: RenderableType) -> None:
        rendered = io.StringIO()
        Console(
            file=rendered, force_terminal=True, color_system="standard", width=self._width(), highlight=False
        ).print(what)
        print_formatted_text(ANSI(rendered.getvalue()), end="", output=self._prompt.output)

    def _width(self) -> int:
        return self._prompt.output.get_size().columns


def _output() -> Output:
    output = create_output()
    if isinstance(output, Vt100_Output):
        output.enable_cpr = (
            False  # Nothing here needs to know where the cursor is, and not every terminal can tell.
        )
    return output


def _fitting(text: str, width: int) -> int:
    """Return how much of `text`, which is wider than `width` cells, makes a row: up to a space if there is one."""
    end = width
    while cell_len(text[:end]) > width:
        end -= 1
    return text.rfind(" ", 0, end + 1) + 1 or max(end, 1)
