"""The stream of an Anthropic message.

Owns reading its events as a reply. Does not own the request (`anthropic`) or how a reply is told (`compose`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from sessions_app.runtime.models.compose import OpenItem, ReplyWriter
from sessions_app.runtime.models.failures import ProviderError, broken_off, failure, from_stream
from sessions_app.runtime.models.items import AnthropicSeal, is_object
from sessions_app.runtime.models.port import ModelEvent, Usage

_TRUNCATED = {"max_tokens", "model_context_window_exceeded"}


class _Block(Struct, frozen=True):
    type: str
    id: str = ""
    name: str = ""
    text: str = ""
    data: str = ""


class _Delta(Struct, frozen=True):
    """What a block or, at the end, the message gains."""

    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    signature: str = ""
    stop_reason: str | None = None


class _Usage(Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(Struct, frozen=True):
    usage: _Usage = _Usage()


class _Event(Struct, frozen=True):
    type: str
    index: int = -1
    content_block: _Block | None = None
    delta: _Delta = _Delta()
    message: _Message | None = None
    usage: _Usage | None = None
    error: ProviderError | None = None


_read_event = msgspec.json.Decoder(_Event).decode


class MessageReader:
    """Turns the events of one message into those of the port."""

    def __init__(self, reply: ReplyWriter) -> None:
        self._reply = reply
        self._open: dict[int, OpenItem] = {}
        self._seals: dict[int, AnthropicSeal] = {}
        self._calls: set[int] = set()
        self._stop: str | None = None
        self._counts = _Usage()

    def read(self, data: bytes) -> Iterator[ModelEvent]:
        """Yield what an event means, given its data. Raises ModelError when it says that the provider
        failed."""
        try:
            event = _read_event(data)
        except msgspec.DecodeError:
            raise broken_off("sent what is no event") from None
        match event.type:
            case "message_start" if event.message is not None:
                self._count(event.message.usage)
            case "content_block_start" if event.content_block is not None:
                yield from self._start(event.index, event.content_block)
            case "content_block_delta":
                yield from self._add(event.index, event.delta)
            case "content_block_stop":
                yield from self._finish(event.index)
            case "message_delta":
                self._stop = event.delta.stop_reason or self._stop
                self._count(event.usage or _Usage())
            case "error":
                raise from_stream(event.error or ProviderError())

    def end(self) -> Iterator[ModelEvent]:
        """Yield the end of the reply. Raises ModelError when the provider did not end it or refused to go
        on."""
        if self._stop is None:
            raise broken_off("ended the reply")
        truncated = self._stop in _TRUNCATED
        if not truncated:
            yield from self._release()
        if self._stop == "refusal":
            raise failure("provider_refused", (self._stop,))
        yield from self._reply.end(self._usage(), truncated=truncated)

    def _start(self, index: int, block: _Block) -> Iterator[ModelEvent]:
        yield from self._release()
        match block.type:
            case "text":
                item = self._reply.message()
            case "thinking" | "redacted_thinking":
                item = self._reply.reasoning()
                if block.data:
                    self._seals[index] = AnthropicSeal(redacted=block.data)
            case "tool_use":
                item = self._reply.call(block.name, block.id)
                self._calls.add(index)
            case _:
                return  # A tool of the provider, which is never asked for.
        self._open[index] = item
        yield from item.begin()
        if block.text:
            yield from item.add(block.text)

    def _add(self, index: int, delta: _Delta) -> Iterator[ModelEvent]:
        if index not in self._open:
            return
        if text := delta.text or delta.thinking or delta.partial_json:
            yield from self._open[index].add(text)
        if delta.signature:
            self._seals[index] = AnthropicSeal(signature=delta.signature)

    def _finish(self, index: int) -> Iterator[ModelEvent]:
        item = self._open.get(index)
        if item is None or (index in self._calls and item.text and not is_object(item.text)):
            return  # Maybe cut off: the end of the message tells.
        del self._open[index]
        yield from item.end(**({"anthropic": self._seals[index]} if index in self._seals else {}))

    def _release(self) -> Iterator[ModelEvent]:
        """End the call that was held: something follows it, so it was not cut off."""
        for item in self._open.values():
            yield from item.end()
        self._open.clear()

    def _count(self, usage: _Usage) -> None:
        """Take the counts of `usage` that are there: the last event repeats some and leaves out others."""
        told = {name: number for name, number in msgspec.structs.asdict(usage).items() if number is not None}
        self._counts = msgspec.structs.replace(self._counts, **told)

    def _usage(self) -> Usage:
        read = self._counts.cache_read_input_tokens or 0
        written = self._counts.cache_creation_input_tokens or 0
        fresh = self._counts.input_tokens or 0
        return Usage(
            fresh + read + written, self._counts.output_tokens or 0, cache_read=read, cache_write=written
        )
