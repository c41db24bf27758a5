"""Framing and closing codes of the WebSocket (behaviour 1.4); what is about sockets is in `test_server`."""

import pytest
from websockets.frames import Frame as WireFrame
from websockets.frames import Opcode

from ochat_site.rpc.outbox import Closing, Frame
from ochat_site.transports.websocket import CLOSE_CODES, WebSocketSocket, text_message
from sessions_app import limits


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, limits.MAX_FRAME_BYTES])
def test_a_message_is_framed_as_another_library_frames_it(size: int) -> None:
    body = b"x" * size

    assert text_message(body) == WireFrame(Opcode.TEXT, body).serialize(mask=False)


class Raw:
    """A raw socket that keeps what it is told."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed: list[int] = []

    def listen(self, receiver: object) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self, code: int) -> None:
        self.closed.append(code)

    def is_full(self) -> bool:
        return False

    def buffered(self) -> int:
        return 0

    def taken(self) -> int:
        return 0


def test_one_prepared_frame_serves_every_socket() -> None:
    raws = [Raw() for _ in range(3)]
    frame = Frame(b"event")

    for raw in raws:
        WebSocketSocket(raw).send(frame)

    assert raws[0].written == [text_message(b"event")]
    assert len({id(raw.written[0]) for raw in raws}) == 1


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Closing.SLOW, 4408),
        (Closing.DRAINING, 1012),
        (Closing.CREDENTIAL_ENDED, 4401),
        (Closing.ENDED, 1000),
        (Closing.FAILED, 1011),
    ],
)
def test_every_reason_has_its_code(reason: Closing, code: int) -> None:
    raw = Raw()
    WebSocketSocket(raw).close(reason)

    assert raw.closed == [code]
    assert CLOSE_CODES.keys() == set(Closing)
