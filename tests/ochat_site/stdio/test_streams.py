"""Standard streams as a socket: pipes and files, ends and slow readers (behaviour 1.4)."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from ochat_site.rpc.outbox import Closing, Frame
from ochat_site.stdio.streams import Streams
from ochat_site.transports.lines import FULL_BYTES
from sessions_app.limits import MAX_FRAME_BYTES
from tests.support.waiting import eventually


class Told:
    """A receiver that keeps what it is told."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.says: list[str] = []

    def received(self, body: bytes) -> None:
        self.bodies.append(body)

    def drained(self) -> None:
        self.says.append("drained")

    def ended(self) -> None:
        self.says.append("ended")

    def lost(self) -> None:
        self.says.append("lost")


class Pipes:
    """Streams between two pipes, and what the client has of them."""

    def __init__(self) -> None:
        source, self.input = os.pipe()
        self.output, sink = os.pipe()
        self.streams = Streams(source, sink)
        self.told = Told()

    def end_input(self) -> None:
        os.close(self.input)
        self.input = -1

    def stop_reading(self) -> None:
        os.close(self.output)
        self.output = -1

    async def read(self) -> bytes:
        return await asyncio.to_thread(os.read, self.output, 2**20)


@pytest.fixture
async def pipes() -> AsyncIterator[Pipes]:
    made = Pipes()
    yield made
    made.streams.close(Closing.ENDED)
    for descriptor in (made.input, made.output):
        with suppress(OSError):
            os.close(descriptor)


async def test_lines_come_in_and_go_out(pipes: Pipes) -> None:
    pipes.streams.listen(pipes.told)
    os.write(pipes.input, b"one\ntw")
    os.write(pipes.input, b"o\n\nthree")
    pipes.end_input()
    await eventually(lambda: pipes.told.says == ["ended"], "the end of the input")
    pipes.streams.send(Frame(b"answer"))

    assert pipes.told.bodies == [b"one", b"two", b"", b"three"]
    assert await pipes.read() == b"answer\n"


async def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"one\ntwo\n")
    source = os.open(tmp_path / "in", os.O_RDONLY)
    sink = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    streams, told = Streams(source, sink), Told()
    streams.listen(told)
    await eventually(lambda: told.says == ["ended"], "the end of the file")
    streams.send(Frame(b"answer"))
    streams.close(Closing.ENDED)
    await streams.closed.wait()

    assert told.bodies == [b"one", b"two"]
    assert (tmp_path / "out").read_bytes() == b"answer\n"


async def test_a_reader_that_is_gone_is_noticed_without_writing(pipes: Pipes) -> None:
    pipes.streams.listen(pipes.told)
    pipes.stop_reading()

    await eventually(lambda: pipes.told.says == ["lost"], "nobody reads")
    assert pipes.streams.closed.is_set()
    pipes.streams.send(Frame(b"late"))
    assert pipes.streams.buffered() == 0


async def test_what_is_not_read_waits_and_is_told_of_once_it_is(pipes: Pipes) -> None:
    pipes.streams.listen(pipes.told)
    size = 4 * FULL_BYTES
    pipes.streams.send(Frame(bytes(size - 1)))
    assert pipes.streams.is_full()
    assert pipes.told.says == []

    received = 0
    while received < size:
        received += len(await pipes.read())
    await eventually(lambda: pipes.told.says == ["drained"], "it is no longer full")
    assert not pipes.streams.is_full()
    assert (pipes.streams.taken(), pipes.streams.buffered()) == (size, 0)


async def test_it_closes_behind_what_waits(pipes: Pipes) -> None:
    pipes.streams.listen(pipes.told)
    pipes.streams.send(Frame(bytes(2 * FULL_BYTES - 1)))
    pipes.streams.close(Closing.ENDED)
    received = b""
    while data := await pipes.read():
        received += data

    assert len(received) == 2 * FULL_BYTES
    await pipes.streams.closed.wait()


async def test_nothing_is_read_while_reading_is_paused(pipes: Pipes) -> None:
    pipes.streams.pause_reading()
    pipes.streams.listen(pipes.told)
    os.write(pipes.input, b"one\n")
    pipes.streams.send(Frame(b"answer"))
    assert await pipes.read() == b"answer\n"
    assert pipes.told.bodies == []

    pipes.streams.resume_reading()
    await eventually(lambda: pipes.told.bodies == [b"one"], "the line")


async def test_reading_stops_at_a_line_that_is_too_long(pipes: Pipes) -> None:
    pipes.streams.listen(pipes.told)
    with suppress(BlockingIOError):
        os.set_blocking(pipes.input, False)
        for _ in range(MAX_FRAME_BYTES // 2**16 + 2):
            while not await _written(pipes.input, bytes(2**16)):
                await asyncio.sleep(0.001)
                if pipes.told.says:
                    break
            if pipes.told.says:
                break

    assert pipes.told.says == ["ended"]
    assert pipes.told.bodies == []


async def _written(descriptor: int, data: bytes) -> bool:
    try:
        return bool(os.write(descriptor, data))
    except BlockingIOError:
        return False


async def test_it_ends_when_it_is_told_to(pipes: Pipes) -> None:
    pipes.streams.listen(pipes.told)
    pipes.streams.end()
    pipes.streams.end()

    assert pipes.told.says == ["ended"]
