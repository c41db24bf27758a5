"""Lines out of pieces (behaviour 1.4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ochat_site.transports.lines import LineIntake, Lines, LineTooLong, line


@given(st.lists(st.binary(max_size=20).filter(lambda body: b"\n" not in body), max_size=20), st.data())
def test_lines_come_out_as_they_went_in_however_they_are_cut(
    bodies: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(map(line, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    lines = Lines()
    assert [body for piece in pieces for body in lines.feed(piece)] == bodies
    assert lines.rest() == b""


def test_a_line_of_the_largest_size_is_taken_and_a_longer_one_is_not() -> None:
    lines = Lines(4)

    assert list(lines.feed(b"1234\n12")) == [b"1234"]
    taken: list[bytes] = []
    with pytest.raises(LineTooLong):
        taken.extend(lines.feed(b"34\n12345\nnever"))
    assert taken == [b"1234"]


def test_a_line_that_never_ends_is_noticed_before_its_end() -> None:
    lines = Lines(4)

    with pytest.raises(LineTooLong):
        list(lines.feed(b"12345"))


class Told:
    """A receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ends = 0

    def received(self, body: bytes) -> None:
        self.bodies.append(body)

    def ended(self) -> None:
        self.ends += 1

    def drained(self) -> None: ...
    def lost(self) -> None: ...


def test_the_end_of_the_stream_ends_the_last_line() -> None:
    told = Told()
    intake = LineIntake(told, "test")

    assert intake.data(b"one\ntwo")
    intake.eof()

    assert (told.bodies, told.ends) == ([b"one", b"two"], 1)


def test_nothing_is_read_behind_a_line_that_is_too_long() -> None:
    told = Told()
    intake = LineIntake(told, "test")

    assert not intake.data(b"one\n" + bytes(16 * 2**20 + 1))
    assert not intake.data(b"two\n")
    intake.eof()

    assert (told.bodies, told.ends) == ([b"one"], 1)
