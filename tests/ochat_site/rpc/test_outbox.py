"""What may wait for a client's socket, what is dropped, and what ends the connection (behaviour 1.4)."""

import asyncio

import pytest

from ochat_site.rpc.outbox import Frame, Outbox
from sessions_app import limits
from tests.support.feed_doubles import FakeSocket, settle


class Overflow:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def full_outbox() -> tuple[FakeSocket, Outbox, Overflow]:
    """Return an outbox whose socket has taken nothing of its first frame."""
    overflow = Overflow()
    socket = FakeSocket(full_at=8, reads=False)
    outbox = Outbox(socket, overflow)
    socket.receiver = outbox
    outbox.answer(Frame(b"the first one"))
    return socket, outbox, overflow


def test_a_frame_is_prepared_once_for_all_sockets_of_a_transport() -> None:
    asked: list[bytes] = []

    def framing(body: bytes) -> bytes:
        asked.append(body)
        return b"<" + body + b">"

    frame = Frame(b"x")

    assert frame.form(framing) is frame.form(framing)
    assert asked == [b"x"]


async def test_an_idle_socket_is_handed_everything_in_order() -> None:
    socket = FakeSocket()
    outbox = Outbox(socket, Overflow())

    outbox.answer(Frame(b"1"))
    assert outbox.offer_durable(Frame(b"2"))
    outbox.offer_live(Frame(b"3"))

    assert socket.sent == [b"1", b"2", b"3"]


async def test_a_full_socket_is_offered_no_durable_event_and_answers_wait() -> None:
    socket, outbox, overflow = full_outbox()

    assert not outbox.offer_durable(Frame(b"durable"))
    outbox.answer(Frame(b"answer"))
    assert socket.sent == [b"the first one"]
    socket.take()

    assert socket.sent == [b"the first one", b"answer"]
    assert outbox.offer_durable(Frame(b"durable"))
    assert overflow.count == 0


async def test_nothing_passes_what_waits() -> None:
    socket, outbox, _ = full_outbox()
    outbox.answer(Frame(bytes(9)))
    outbox.answer(Frame(b"second"))

    socket.take()  # The first waiting answer fills the socket again.
    assert not outbox.offer_durable(Frame(b"durable"))
    socket.take()

    assert socket.sent[1:] == [bytes(9), b"second"]


@pytest.mark.parametrize(
    ("frames", "size"), [(limits.MAX_OUTBOX_FRAMES, 1), (20, limits.MIB)], ids=["frames", "bytes"]
)
async def test_an_answer_that_does_not_fit_ends_the_connection(frames: int, size: int) -> None:
    _, outbox, overflow = full_outbox()
    for _ in range(frames):
        outbox.answer(Frame(bytes(size)))
    assert overflow.count == 0

    outbox.answer(Frame(b"x"))

    assert overflow.count == 1


async def test_live_events_make_room_for_an_answer() -> None:
    socket, outbox, overflow = full_outbox()
    outbox.answer(Frame(b"earlier answer"))
    for _ in range(2 * limits.MAX_OUTBOX_FRAMES):
        outbox.offer_live(Frame(b"live"))

    outbox.answer(Frame(b"answer"))
    for _ in range(3):
        socket.take()

    assert overflow.count == 0
    assert socket.sent[1:] == [b"earlier answer", b"answer"]


async def test_the_largest_answer_always_fits_an_empty_queue() -> None:
    _, outbox, overflow = full_outbox()

    outbox.answer(Frame(bytes(limits.MAX_FRAME_BYTES)))

    assert overflow.count == 0


async def test_who_waits_for_the_socket_takes_turns() -> None:
    socket, outbox, _ = full_outbox()
    served: list[str] = []

    async def send(name: str) -> None:
        for _ in range(4):
            await outbox.until_open()
            while not outbox.offer_durable(Frame(bytes(9))):
                await outbox.until_open()
            served.append(name)

    tasks = [asyncio.create_task(send(name)) for name in "abc"]
    for _ in range(12):
        await settle()
        socket.take()
    await asyncio.wait(tasks, timeout=10)

    assert len(served) == 12
    assert {"a", "b", "c"} == set(served[:5])


async def test_closing_lets_every_waiter_go() -> None:
    socket, outbox, _ = full_outbox()
    waiter = asyncio.create_task(outbox.until_open())
    await settle()

    outbox.close()
    async with asyncio.timeout(10):
        await waiter
    outbox.answer(Frame(b"x"))
    outbox.offer_live(Frame(b"x"))

    assert not outbox.offer_durable(Frame(b"x"))
    assert socket.sent == [b"the first one"]
