"""Provider stream events: what a live event hands on while the model speaks (wire 10).

Owns: the shapes that the client reads, by type. Types that are not listed here pass unread, so live payloads
carry a stream event encoded; these structs serve to build the ones we make and to check the ones we hand on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Raw, Struct

from sessions_app.records.items import Annotation, StreamItem, decode_item


class StreamItemEvent(Struct, frozen=True, kw_only=True):
    """An item begins or ends; `item` is an encoded `StreamItem`."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    item: Raw
    output_index: int


class StreamTextDelta(Struct, frozen=True, kw_only=True):
    """More text of an answer or of a refusal."""

    type: Literal["response.output_text.delta", "response.refusal.delta"]
    content_index: int
    delta: str
    item_id: str
    output_index: int


class StreamTextDone(Struct, frozen=True, kw_only=True):
    """The whole text of an answer."""

    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    item_id: str
    output_index: int


class StreamRefusalDone(Struct, frozen=True, kw_only=True):
    """The whole text of a refusal."""

    type: Literal["response.refusal.done"]
    content_index: int
    refusal: str
    item_id: str
    output_index: int


class StreamReasoningDelta(Struct, frozen=True, kw_only=True):
    """More text of a reasoning summary."""

    type: Literal["response.reasoning_summary_text.delta"]
    summary_index: int
    delta: str
    item_id: str
    output_index: int


class StreamCallDelta(Struct, frozen=True, kw_only=True):
    """More of what a tool is called with."""

    type: Literal["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"]
    delta: str
    item_id: str
    output_index: int


class StreamArgumentsDone(Struct, frozen=True, kw_only=True):
    """The whole arguments of a function call."""

    type: Literal["response.function_call_arguments.done"]
    arguments: str
    item_id: str
    output_index: int


class StreamInputDone(Struct, frozen=True, kw_only=True):
    """The whole input of a custom tool call."""

    type: Literal["response.custom_tool_call_input.done"]
    input: str
    item_id: str
    output_index: int


class StreamResponse(Struct, frozen=True, kw_only=True):
    """The response as a whole begins, goes on or ends."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: dict[str, Raw]


class _Part(Struct, frozen=True):
    type: Raw


class StreamContentPart(Struct, frozen=True, kw_only=True):
    """A part of an item begins or ends; nothing but its type is looked at."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    item_id: str
    output_index: int
    part: _Part


class StreamAnnotationAdded(Struct, frozen=True, kw_only=True):
    """An answer gets an annotation."""

    type: Literal["response.output_text.annotation.added"]
    annotation: Annotation
    annotation_index: int
    content_index: int
    item_id: str
    output_index: int


class StreamSearch(Struct, frozen=True, kw_only=True):
    """A search of the provider goes on; its item id is a number in the client's codec."""

    type: Literal[
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.file_search_call.completed",
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
    ]
    item_id: int
    output_index: int


class StreamError(Struct, frozen=True, kw_only=True):
    """The provider failed."""

    type: Literal["error"]
    message: str
    code: str | None
    param: str | None


ProviderStreamEvent = (
    StreamItemEvent
    | StreamTextDelta
    | StreamTextDone
    | StreamRefusalDone
    | StreamReasoningDelta
    | StreamCallDelta
    | StreamArgumentsDone
    | StreamInputDone
    | StreamResponse
    | StreamContentPart
    | StreamAnnotationAdded
    | StreamSearch
    | StreamError
)

STREAM_EVENTS: Mapping[str, type[ProviderStreamEvent]] = MappingProxyType(
    {
        kind: shape
        for shape in get_args(ProviderStreamEvent)
        for kind in get_args(get_type_hints(shape)["type"])
    }
)
"""The shape of each listed type."""


class _Type(Struct, frozen=True):
    type: Any = None


_read_type = msgspec.json.Decoder(_Type).decode
_readers = {kind: msgspec.json.Decoder(shape) for kind, shape in STREAM_EVENTS.items()}


def check_stream_event(event: Raw | bytes) -> None:
    """Refuse (ValueError) an encoded stream event that the client would not take; an unlisted type passes."""
    kind = _read_type(event).type
    reader = _readers.get(kind) if isinstance(kind, str) else None
    if reader is None:
        return
    shape = reader.decode(event)
    if isinstance(shape, StreamItemEvent) and type(decode_item(shape.item)) not in get_args(StreamItem):
        raise ValueError("an item of this type is not streamed")
