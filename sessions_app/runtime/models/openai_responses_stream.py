"""The stream of an OpenAI response, reduced to what history and live readers take.

Owns reading events leniently, since servers that only resemble OpenAI leave members out, and writing them
exactly as wire 6 and 10 shape them. Does not own the request (`openai_responses`) or the framing (`sse`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec
import structlog
from msgspec import UNSET, Raw, UnsetType

from sessions_app import records
from sessions_app.encoding import encode
from sessions_app.runtime.models.failures import ProviderError, broken_off, failure, from_stream
from sessions_app.runtime.models.items import SealedReasoning, call_of, unsealed
from sessions_app.runtime.models.port import Completed, ItemDone, ItemStarted, ModelEvent, StreamEvent, Usage

log = structlog.get_logger(__name__)

_REDUCED = (
    records.StreamTextDelta,
    records.StreamTextDone,
    records.StreamRefusalDone,
    records.StreamReasoningDelta,
    records.StreamCallDelta,
    records.StreamArgumentsDone,
    records.StreamInputDone,
)
_SHAPES = {kind: shape for kind, shape in records.STREAM_EVENTS.items() if shape in _REDUCED}
_LIFECYCLE = {kind for kind, shape in records.STREAM_EVENTS.items() if shape is records.StreamResponse}
_SEARCHES = (records.WebSearchCallItem, records.FileSearchCallItem)
_REPEATS = {"response.in_progress", "response.content_part.added", "response.content_part.done"}
"""Not handed on: they say what the events around them say, and every event costs every reader."""


class _Annotation(msgspec.Struct, frozen=True):
    type: str
    url: str = ""
    file_id: str = ""
    filename: str = ""
    index: int = 0
    start_index: int = 0


class _Part(msgspec.Struct, frozen=True):
    """A part of an answer, a refusal, or a paragraph of reasoning."""

    text: str = ""
    refusal: str = ""
    annotations: tuple[_Annotation, ...] | None = None


class _Item(msgspec.Struct, frozen=True):
    type: str
    id: str = ""
    status: str | None = None
    phase: str | None = None
    content: tuple[_Part, ...] | None = None
    summary: tuple[_Part, ...] | None = None
    encrypted_content: str | None = None
    name: str = ""
    call_id: str = ""
    arguments: str = ""
    input: str = ""
    queries: tuple[str, ...] | None = None


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    reason: str | None = None


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: _Details = _Details()
    output_tokens_details: _Details = _Details()


class _Response(msgspec.Struct, frozen=True):
    """What is read of the response object, which repeats tools, instructions and the whole output."""

    id: Raw = Raw(b'""')
    model: Raw = Raw(b'""')
    status: Raw = Raw(b'""')
    usage: _Usage | None = None
    error: ProviderError | None = None
    incomplete_details: _Details | None = None


class _Event(msgspec.Struct, frozen=True):
    """The members of every event that is reduced; those of its type are then taken by name."""

    type: str
    output_index: int = -1
    content_index: int = 0
    summary_index: int = 0
    item_id: str = ""
    delta: str = ""
    text: str = ""
    refusal: str = ""
    arguments: str = ""
    input: str = ""
    item: _Item | None = None
    response: _Response | None = None


class _Head(msgspec.Struct, frozen=True):
    type: str
    output_index: int = -1
    response: Raw | UnsetType = UNSET


class _Error(ProviderError):
    """An error event: the error object is the event itself or, on some servers, a member of it."""

    error: ProviderError | None = None


_read_head = msgspec.json.Decoder(_Head).decode
_read_event = msgspec.json.Decoder(_Event).decode
_read_error = msgspec.json.Decoder(_Error).decode


class ResponseReader:
    """Turns the events of one response into those of the port."""

    def __init__(self) -> None:
        self.completed = False
        self._kept: set[int] = set()  # The output items that history has a place for.

    def read(self, data: bytes) -> Iterator[ModelEvent]:
        """Yield what an event means, given its data. Raises ModelError when it says that the provider
        failed."""
        if data == b"[DONE]":  # Sent by servers that resemble OpenAI; OpenAI ends with response.completed.
            return
        try:
            yield from self._read(data, _read_head(data))
        except msgspec.DecodeError:
            raise broken_off("sent what is no event") from None

    def _read(self, data: bytes, head: _Head) -> Iterator[ModelEvent]:
        kind = head.type
        if (shape := _SHAPES.get(kind)) is not None:
            event = _read_event(data)
            payload = encode(msgspec.convert(event, shape, from_attributes=True))
            text = event.delta if shape is records.StreamTextDelta else ""
            yield StreamEvent(payload, self._item(head), text)
        elif kind == "response.output_item.added":
            yield from self._added(_read_event(data))
        elif kind == "response.output_item.done":
            yield from self._done(_read_event(data))
        elif kind in _LIFECYCLE:
            yield from self._lifecycle(_read_event(data))
        elif kind == "error":
            error = _read_error(data)
            raise from_stream(error.error or error)
        elif head.response is UNSET and kind not in _REPEATS and _passes(data):
            yield StreamEvent(data, self._item(head))

    def _item(self, head: _Head) -> int | None:
        return head.output_index if head.output_index in self._kept else None

    def _added(self, event: _Event) -> Iterator[ModelEvent]:
        if event.item is None:
            return
        item = _reduce(event.item)
        if item is None:
            log.warning("model_item_skipped", type=event.item.type)
            return
        self._kept.add(event.output_index)
        yield ItemStarted(event.output_index, event.item.type, event.item.id)
        yield from _live("response.output_item.added", event.output_index, item)

    def _done(self, event: _Event) -> Iterator[ModelEvent]:
        if event.output_index not in self._kept or event.item is None:
            return
        item = _reduce(event.item)
        if item is None or (event.item.status == "incomplete" and call_of(item)):
            return
        yield from _live("response.output_item.done", event.output_index, item)
        yield ItemDone(event.output_index, encode(item), call_of(item))

    def _lifecycle(self, event: _Event) -> Iterator[ModelEvent]:
        response = event.response or _Response()
        if event.type == "response.failed":
            raise from_stream(response.error or ProviderError())
        reason = response.incomplete_details and response.incomplete_details.reason
        if reason == "content_filter":
            raise failure("provider_refused", (reason,))
        if event.type in _REPEATS:
            return
        members = {"id": response.id, "model": response.model, "status": response.status}
        yield StreamEvent(
            encode(msgspec.convert({"type": event.type, "response": members}, records.StreamResponse))
        )
        if event.type in ("response.completed", "response.incomplete"):
            self.completed = True
            yield Completed(_usage(response.usage or _Usage()), truncated=event.type == "response.incomplete")


def _passes(data: bytes) -> bool:
    """Say whether an event may be handed on as it came: its type is unlisted or it has the listed shape."""
    try:
        records.check_stream_event(data)
    except ValueError:
        return False
    return True


def _live(
    kind: Literal["response.output_item.added", "response.output_item.done"],
    index: int,
    item: records.ProviderItem,
) -> Iterator[StreamEvent]:
    if not isinstance(item, _SEARCHES):  # The client's codec refuses a search in a stream.
        shape = records.StreamItemEvent(type=kind, item=Raw(encode(unsealed(item))), output_index=index)
        yield StreamEvent(encode(shape), index)


def _reduce(item: _Item) -> records.ProviderItem | None:
    """Return the item in the shape of wire 6, None when it has none there."""
    match item.type:
        case "message":
            content = tuple(_text(part) for part in item.content or ())
            return records.OutputMessageItem(
                role="assistant",
                id=item.id,
                content=content,
                status=item.status or "completed",
                phase=item.phase or UNSET,
            )
        case "reasoning":
            # Open models send their reasoning itself, as `content`, instead of a summary of it.
            paragraphs = tuple(part.text for part in item.summary or item.content or ())
            return SealedReasoning(
                summary=tuple(
                    records.ReasoningSummary(text=text, type="summary_text") for text in paragraphs
                ),
                id=item.id,
                status=item.status or UNSET,
                encrypted_content=item.encrypted_content or UNSET,
            )
        case "function_call":
            return records.FunctionCallItem(
                name=item.name,
                arguments=item.arguments,
                call_id=item.call_id,
                id=item.id or UNSET,
                status=item.status or UNSET,
            )
        case "custom_tool_call":
            return records.CustomToolCallItem(
                name=item.name, input=item.input, call_id=item.call_id, id=item.id or UNSET
            )
        case "web_search_call":
            return records.WebSearchCallItem(id=item.id, status=item.status or "completed")
        case "file_search_call":
            queries = item.queries or ()
            return records.FileSearchCallItem(
                id=item.id, status=item.status or "completed", queries=queries, results=None
            )
        case _:
            return None


def _text(part: _Part) -> records.OutputText:
    annotations = (_annotation(annotation) for annotation in part.annotations or ())
    return records.OutputText(
        annotations=tuple(annotation for annotation in annotations if annotation is not None),
        text=part.text or part.refusal,
        type="output_text",
    )


def _annotation(annotation: _Annotation) -> records.Annotation | None:
    match annotation.type:
        case "url_citation":
            return records.AnnotationUrlCitation(index=annotation.start_index, url=annotation.url)
        case "file_citation":
            return records.AnnotationFileCitation(
                title=annotation.filename,
                start_index=annotation.index,
                end_index=annotation.index,
                file_id=annotation.file_id,
            )
        case _:
            return None


def _usage(usage: _Usage) -> Usage:
    return Usage(
        input=usage.input_tokens,
        output=usage.output_tokens,
        cache_read=usage.input_tokens_details.cached_tokens or 0,
        reasoning=usage.output_tokens_details.reasoning_tokens or 0,
    )
