"""The screen for pipes and the screen for people."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyte
import pytest
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from ochat_site.terminal.screen import LINES_AHEAD, PlainScreen, clean
from ochat_site.terminal.tty import TtyScreen
from tests.support.waiting import eventually


class Terminal(io.StringIO):
    """Takes what is written and says that it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_nothing_that_is_said_can_steer_a_terminal() -> None:
    assert clean("a\x1b[2Jb\x07\x9bc\x7f\r\n\td\u00e9") == "a\ufffd[2Jb\ufffd\ufffdc\ufffd\n\td\u00e9"


# Pipes


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with suppress(OSError):
            os.close(descriptor)


def test_answers_and_everything_else_go_apart() -> None:
    output, errors = io.StringIO(), io.StringIO()
    screen = PlainScreen(output, errors, 0)
    screen.show_state("working")
    screen.say("Good ")
    screen.say("day.\x1b")
    screen.note("clock {}\x1b", "tool")
    screen.end_line()
    screen.table(("a", "b"), [("1", "2")])
    assert output.getvalue() == "Good day.\x1b\n"
    assert errors.getvalue() == "→ clock {}\ufffd\na\tb\n1\t2\n"


def test_a_terminal_behind_a_pipe_is_not_steered_either() -> None:
    output = Terminal()
    PlainScreen(output, io.StringIO(), 0).say("\x1b")
    assert output.getvalue() == "\ufffd"


async def test_lines_of_a_pipe_come_as_they_come(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    screen = PlainScreen(io.StringIO(), io.StringIO(), reading)
    os.write(writing, b"one\ntw")
    assert await screen.read_line() == "one"
    waiting = asyncio.create_task(screen.read_line())
    await asyncio.sleep(0)
    waiting.cancel()
    os.write(writing, "ö\nthree".encode())
    assert await screen.read_line() == "twö"
    os.close(writing)
    assert [await screen.read_line() for _ in range(3)] == ["three", None, None]


async def test_a_file_is_read_to_its_end_but_not_all_at_once(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(10 * LINES_AHEAD)]
    (tmp_path / "input").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with (tmp_path / "input").open("rb") as file:
        screen = PlainScreen(io.StringIO(), io.StringIO(), file.fileno())
        read = []
        while (line := await screen.read_line()) is not None:
            read.append(line)
    assert read == lines


async def test_a_terminal_that_hangs_up_is_an_end(pipe: tuple[int, int]) -> None:
    reading, _ = pipe
    os.close(reading)
    assert await PlainScreen(io.StringIO(), io.StringIO(), reading).read_line() is None


async def test_the_signal_interrupts_a_pipe(pipe: tuple[int, int]) -> None:
    interrupted = asyncio.Event()
    PlainScreen(io.StringIO(), io.StringIO(), pipe[0]).on_interrupt(interrupted.set)
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await interrupted.wait()
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


# People


class Tty:
    """A terminal of 80 columns that a test types on and looks at."""

    def __init__(self, keys: PipeInput) -> None:
        self.keys = keys
        self.written = Terminal()
        size = Size(rows=24, columns=80)
        output = Vt100_Output(self.written, lambda: size, term="xterm", enable_cpr=False)
        self.screen = TtyScreen(input=keys, output=output)

    @property
    def rows(self) -> list[str]:
        """What is to be seen, what has scrolled away included, row by row."""
        display = pyte.HistoryScreen(80, 24, history=1000)
        display.set_mode(pyte.modes.LNM)
        pyte.Stream(display).feed(self.written.getvalue())
        above = ["".join(row[column].data for column in range(80)) for row in display.history.top]
        return [row.rstrip() for row in [*above, *display.display]]

    async def until(self, row: str) -> None:
        """Wait until a row is shown."""
        await eventually(lambda: row in self.rows, f"the row {row!r} is shown", seconds=5)


@pytest.fixture
def tty() -> Iterator[Tty]:
    with create_pipe_input() as keys:
        yield Tty(keys)


async def test_a_typed_line_is_taken_and_stands_above(tty: Tty) -> None:
    tty.keys.send_text("hello\r")
    assert await tty.screen.read_line() == "hello"
    assert "> hello" in tty.rows


async def test_an_empty_line_is_taken_and_leaves_no_trace(tty: Tty) -> None:
    tty.keys.send_text("\r")
    assert await tty.screen.read_line() == ""


async def test_ctrl_d_ends_the_input(tty: Tty) -> None:
    tty.keys.send_text("\x04")
    assert await tty.screen.read_line() is None


async def test_ctrl_c_clears_what_is_typed_and_then_interrupts(tty: Tty) -> None:
    interrupted: list[str] = []
    tty.screen.on_interrupt(lambda: interrupted.append("!"))
    tty.keys.send_text("half\x03\x03whole\r")
    assert await tty.screen.read_line() == "whole"
    assert interrupted == ["!"]


async def test_ctrl_c_ends_the_input_where_nothing_can_be_interrupted(tty: Tty) -> None:
    tty.keys.send_text("\x03")
    assert await tty.screen.read_line() is None


async def test_reading_can_be_given_up_and_begun_again(tty: Tty) -> None:
    reading = asyncio.create_task(tty.screen.read_line())
    await tty.until(">")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    tty.keys.send_text("hello\r")
    assert await tty.screen.read_line() == "hello"


async def test_an_answer_streams_while_somebody_types(tty: Tty) -> None:
    reading = asyncio.create_task(tty.screen.read_line())
    tty.screen.show_state("working")
    await tty.until("working >")
    tty.screen.say("Good ")
    tty.screen.say("day\nand ")
    await tty.until("and")
    tty.keys.send_text("hel")
    await tty.until("working > hel")
    tty.screen.note("clock {}", "tool")
    tty.screen.say("good night.")
    tty.screen.end_line()
    tty.screen.end_line()
    await tty.until("and good night.")
    tty.keys.send_text("lo\r")
    assert await reading == "hello"
    assert [row for row in tty.rows if row] == ["Good day", "→ clock {}", "and good night.", "> hello"]


async def test_rows_are_broken_between_words_and_never_longer_than_the_terminal(tty: Tty) -> None:
    words = "The quick brown fox jumps over the lazy dog. " * 8 + "x" * 200 + " 漢字" * 60
    for letter in words:
        tty.screen.say(letter)
    tty.screen.end_line()
    rows = [row for row in tty.rows if row]
    assert rows[0] == "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the"
    assert "".join("".join(rows).split()) == "".join(words.split())


async def test_what_is_said_cannot_steer_the_terminal(tty: Tty) -> None:
    tty.screen.say("a\x1b[31mb\n")
    tty.screen.note("c\x1b[31md")
    tty.screen.table(("e",), [("f\x1b[31m",)])
    assert [row for row in tty.rows if row] == ["a\ufffd[31mb", "· c\ufffd[31md", "e", "f\ufffd[31m"]


async def test_tables_fit_the_terminal(tty: Tty) -> None:
    tty.screen.table(("name", "what"), [("long", "word " * 40)])
    header, row = (row for row in tty.rows if row)
    assert header == "name  what"
    assert row.endswith("…")
