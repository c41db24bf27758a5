"""A reply told in OpenAI's terms, for the providers that speak otherwise.

Owns numbering the items of a reply, their ids, and the stream events and finished items that OpenAI would
have sent; of its events only those that add something. Does not own what the provider said (the adapters).
Ids begin as OpenAI's do, so that a session may go on there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from sessions_app import records
from sessions_app.encoding import encode
from sessions_app.ids import new_id
from sessions_app.runtime.models.items import SealedReasoning, call_of, unsealed
from sessions_app.runtime.models.port import (
    Completed,
    ItemDone,
    ItemStarted,
    ModelEvent,
    ModelRequest,
    StreamEvent,
    ToolSpec,
    Usage,
)

_WRAPPED = b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}'
"""The arguments of a custom tool where a provider knows functions only: its input as their one member."""


class _Wrapper(Struct, frozen=True):
    input: str


_read_wrapper = msgspec.json.Decoder(_Wrapper).decode


def parameters(tool: ToolSpec) -> Raw:
    """Return the encoded schema of a tool's arguments, for a provider that knows functions only."""
    return Raw(tool.parameters if tool.kind == "function" else _WRAPPED)


def wrap(text: str) -> str:
    """Return the input of a custom tool as a function's arguments."""
    return encode(_Wrapper(text)).decode()


def unwrap(arguments: str) -> str:
    """Return the input inside a function's arguments; arguments in any other form are taken for the input."""
    try:
        return _read_wrapper(arguments).input
    except msgspec.DecodeError:
        return arguments


class OpenItem:
    """One output item while it is written: begin it, add to it, end it.

    `item` makes the item from its text, None at its beginning; `delta` makes the event that adds to it. With
    `translate` nothing is streamed before the end, since only the whole can be told in OpenAI's terms.
    """

    def __init__(
        self,
        index: int,
        item_id: str,
        item: Callable[[str | None], records.ProviderItem],
        delta: Callable[[str], Struct],
        translate: Callable[[str], str] | None = None,
    ) -> None:
        self._index = index
        self.id = item_id
        self._item = item
        self._delta = delta
        self._translate = translate
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        """What was added so far."""
        return "".join(self._parts)

    def begin(self) -> Iterator[ModelEvent]:
        """Yield that the item begins."""
        item = self._item(None)
        yield ItemStarted(self._index, str(item.__struct_config__.tag), self.id)
        yield self._whole("response.output_item.added", item)

    def add(self, delta: str) -> Iterator[ModelEvent]:
        """Yield that the item goes on."""
        self._parts.append(delta)
        if self._translate is None:
            yield self._more(delta)

    def end(self, **seal: Any) -> Iterator[ModelEvent]:
        """Yield that the item is finished; `seal` sets further members of it (`SealedReasoning`)."""
        text = self.text
        if self._translate is not None:
            text = self._translate(text)
            yield self._more(text)
        item = msgspec.structs.replace(self._item(text), **seal)
        yield self._whole("response.output_item.done", item)
        yield ItemDone(self._index, encode(item), call_of(item))

    def _more(self, delta: str) -> StreamEvent:
        event = self._delta(delta)
        return StreamEvent(
            encode(event), self._index, delta if isinstance(event, records.StreamTextDelta) else ""
        )

    def _whole(
        self,
        kind: Literal["response.output_item.added", "response.output_item.done"],
        item: records.ProviderItem,
    ) -> StreamEvent:
        encoded = Raw(encode(unsealed(item)))
        event = records.StreamItemEvent(type=kind, item=encoded, output_index=self._index)
        return StreamEvent(encode(event), self._index)


class ReplyWriter:
    """Writes one reply: items are numbered in the order in which they are opened."""

    def __init__(self, model: str, request: ModelRequest) -> None:
        self._custom = {tool.name for tool in request.tools if tool.kind == "custom"}
        self._response = {"id": Raw(encode(new_id("resp"))), "model": Raw(encode(model))}
        self._numbers = count()

    def begin(self) -> StreamEvent:
        """Return the event that the reply begins."""
        return self._event("response.created", "in_progress")

    def end(self, usage: Usage, *, truncated: bool = False) -> Iterator[ModelEvent]:
        """Yield that the reply is complete."""
        if truncated:
            yield self._event("response.incomplete", "incomplete")
        else:
            yield self._event("response.completed", "completed")
        yield Completed(usage, truncated)

    def message(self) -> OpenItem:
        """Open an output message."""
        return _message(next(self._numbers), new_id("msg"))

    def reasoning(self) -> OpenItem:
        """Open a reasoning item."""
        return _reasoning(next(self._numbers), new_id("rs"))

    def call(self, name: str, call_id: str) -> OpenItem:
        """Open a call of the tool `name`."""
        if name in self._custom:
            return _custom_call(next(self._numbers), new_id("ctc"), name, call_id)
        return _function_call(next(self._numbers), new_id("fc"), name, call_id)

    def _event(
        self, kind: Literal["response.created", "response.completed", "response.incomplete"], status: str
    ) -> StreamEvent:
        response = {**self._response, "status": Raw(encode(status))}
        return StreamEvent(encode(records.StreamResponse(type=kind, response=response)))


def _message(index: int, item_id: str) -> OpenItem:
    def item(text: str | None) -> records.ProviderItem:
        part = records.OutputText(annotations=(), text=text or "", type="output_text")
        return records.OutputMessageItem(
            role="assistant",
            id=item_id,
            content=() if text is None else (part,),
            status="in_progress" if text is None else "completed",
        )

    def delta(text: str) -> Struct:
        return records.StreamTextDelta(
            type="response.output_text.delta",
            content_index=0,
            delta=text,
            item_id=item_id,
            output_index=index,
        )

    return OpenItem(index, item_id, item, delta)


def _reasoning(index: int, item_id: str) -> OpenItem:
    def item(text: str | None) -> records.ProviderItem:
        summary = (records.ReasoningSummary(text=text, type="summary_text"),) if text else ()
        return SealedReasoning(summary=summary, id=item_id)

    def delta(text: str) -> Struct:
        return records.StreamReasoningDelta(
            type="response.reasoning_summary_text.delta",
            summary_index=0,
            delta=text,
            item_id=item_id,
            output_index=index,
        )

    return OpenItem(index, item_id, item, delta)


def _function_call(index: int, item_id: str, name: str, call_id: str) -> OpenItem:
    def item(text: str | None) -> records.ProviderItem:
        arguments, status = ("", "in_progress") if text is None else (text or "{}", "completed")
        return records.FunctionCallItem(
            name=name, arguments=arguments, call_id=call_id, id=item_id, status=status
        )

    def delta(text: str) -> Struct:
        return records.StreamCallDelta(
            type="response.function_call_arguments.delta", delta=text, item_id=item_id, output_index=index
        )

    return OpenItem(index, item_id, item, delta)


def _custom_call(index: int, item_id: str, name: str, call_id: str) -> OpenItem:
    def item(text: str | None) -> records.ProviderItem:
        return records.CustomToolCallItem(name=name, input=text or "", call_id=call_id, id=item_id)

    def delta(text: str) -> Struct:
        return records.StreamCallDelta(
            type="response.custom_tool_call_input.delta", delta=text, item_id=item_id, output_index=index
        )

    return OpenItem(index, item_id, item, delta, translate=unwrap)
