"""The body of one POST: its calls, how they are run, and the body that answers them (behaviour 1.3, 1.4).

Owns: what of a body is checked before its envelopes, the order and concurrency of a batch, the bound on an answer. Does not own:
envelopes (`envelope`), what a call does (`dispatch`), headers, statuses and connections (`ochat_site.transports.http`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from ochat_site.dialects.ochat1.errors import to_error
from ochat_site.rpc import envelope
from ochat_site.rpc.dispatch import expected
from ochat_site.rpc.envelope import Notification, Request
from sessions_app import limits
from sessions_app.errors import InvalidRequest, ResourceLimit

if TYPE_CHECKING:
    from ochat_site.rpc.context import Client
    from ochat_site.rpc.dispatch import Dispatcher

Call = Request | Notification


@dataclass(frozen=True, slots=True)
class Post:
    """What one body asks for."""

    calls: Sequence[Call]

    @property
    def opens(self) -> bool:
        """Tell whether it may be the first body of a connection."""
        return self.calls[0].method == "protocol.initialize"


def read(body: bytes) -> Post:
    """Return the calls of a body, all of which can be read.

    Raises, in this order, InvalidRequest for what is not UTF-8 or not JSON, ResourceLimit for what is nested too deeply,
    InvalidRequest for an empty batch, ResourceLimit for one of more than 128, InvalidRequest for an element that is no call.
    """
    if envelope.nests_deeper(body, envelope.MAX_NESTING):
        raise ResourceLimit("the body is nested too deeply", retryable=False)
    elements = _elements(body)
    if envelope.nests_deeper(body, limits.MAX_JSON_DEPTH):
        raise ResourceLimit("the body is nested too deeply", retryable=False)
    if not elements:
        raise InvalidRequest("a batch holds at least one call")
    if len(elements) > limits.MAX_BATCH_SIZE:
        raise ResourceLimit(f"a batch holds at most {limits.MAX_BATCH_SIZE} calls", retryable=False)
    return Post([_call(element) for element in elements])


def _elements(body: bytes) -> Sequence[bytes]:
    try:
        body.decode()
        if body.lstrip(b" \t\r\n")[:1] != b"[":
            return [bytes(_read_one(body))]
        return [bytes(element) for element in _read_batch(body)]
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        raise InvalidRequest("a body is one JSON text in UTF-8") from None


_read_one = msgspec.json.Decoder(Raw).decode
_read_batch = msgspec.json.Decoder(list[Raw]).decode


def _call(element: bytes) -> Call:
    call = expected(envelope.decode(element))
    if not call.unique:
        raise InvalidRequest("a member name is repeated")  # over HTTP nowhere in the body (wire 1)
    return call


async def answer(dispatcher: Dispatcher, client: Client, post: Post) -> bytes:
    """Run the calls of a body and return the body that answers them: empty for none, bare for one, else an array.

    A first `protocol.initialize` runs alone; the rest run at most 16 at a time, and their effects in no order. An answer with
    which the whole would exceed 16 MiB is replaced by `resource_limit`: one that had effects is given again for its key.
    """
    answers = _Answers()
    first = 1 if post.opens else 0
    for call in post.calls[:first]:
        answers.take(0, call, await dispatcher.answer(client, call))
    waiting = iter(list(enumerate(post.calls))[first:])

    async def run() -> None:
        for place, call in waiting:
            answers.take(place, call, await dispatcher.answer(client, call))

    runners = min(limits.BATCH_CONCURRENCY, len(post.calls) - first)
    await asyncio.gather(*(run() for _ in range(runners)))
    return answers.body()


class _Answers:
    """The answers of one body, in the order of its calls."""

    def __init__(self) -> None:
        self._frames: dict[int, bytes] = {}
        self._size = 2

    def take(self, place: int, call: Call, frame: bytes | None) -> None:
        if frame is None or isinstance(call, Notification):
            return
        if self._frames and self._size + len(frame) > limits.MAX_FRAME_BYTES:
            refusal = ResourceLimit("the answers of one batch exceed 16 MiB", retryable=False)
            frame = envelope.failure(call.id, to_error(refusal))
        self._frames[place] = frame
        self._size += len(frame) + 1

    def body(self) -> bytes:
        frames = [self._frames[place] for place in sorted(self._frames)]
        return frames[0] if len(frames) == 1 else b"[%b]" % b",".join(frames) if frames else b""
