"""Provider items: what the payload of a history entry holds (wire 6).

Owns: the shapes of items and which role and kind of entry each one makes. Does not own: the entry around it
(`history`), and the streamed form (`stream`). Items are carried encoded; these structs are for checking them
and for reading single members, so a history is never decoded as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from sessions_app.records.enums import HistoryEntryKind, HistoryRole


class InputText(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text", forbid_unknown_fields=True
):
    """Text in a message to the model."""

    text: str


class InputImage(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_image"):
    """An image in a message to the model: a data URI, an address, or `blob:<blob id>`."""

    image_url: str
    detail: str


class InputMessageItem(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="message", forbid_unknown_fields=True
):
    """A message to the model; strings stand for texts and are only read."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | tuple[str | InputText | InputImage, ...]


class AnnotationFileCitation(Struct, frozen=True, kw_only=True, tag_field="type", tag="file_citation"):
    """A place in a file that an answer rests on."""

    title: str
    start_index: int
    end_index: int
    file_id: str


class AnnotationUrlCitation(Struct, frozen=True, kw_only=True, tag_field="type", tag="url_citation"):
    """A page that an answer rests on."""

    index: int
    url: str


Annotation = AnnotationFileCitation | AnnotationUrlCitation


class OutputText(Struct, frozen=True, kw_only=True):
    """Text of an answer; `type` is written `output_text` and read as any string."""

    annotations: tuple[Annotation, ...]
    text: str
    type: str


class OutputMessageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """An answer of the model: role assistant, with id or status present."""

    role: Literal["assistant"]
    id: str
    content: tuple[OutputText, ...]
    status: str
    phase: str | UnsetType = UNSET


class ReasoningSummary(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One paragraph of a reasoning summary; `type` is written `summary_text` and read as any string."""

    text: str
    type: str


class ReasoningItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model thought."""

    summary: tuple[ReasoningSummary, ...]
    id: str
    status: str | UnsetType = UNSET


class FunctionCallItem(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call", forbid_unknown_fields=True
):
    """A call of a tool; `arguments` is JSON text."""

    name: str
    arguments: str
    call_id: str
    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET


class CustomToolCallItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a tool that takes plain text."""

    name: str
    input: str
    call_id: str
    id: str | UnsetType = UNSET


class ToolOutputPartInputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    """Text in the output of a tool."""

    text: str


class ImageUrl(Struct, frozen=True, kw_only=True):
    """An image address in the long form, which is only read."""

    url: str


class ToolOutputPartInputImage(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_image"):
    """An image in the output of a tool; an object as address and null as detail are only read."""

    image_url: str | ImageUrl
    detail: Literal["high", "low", "auto"] | UnsetType | None = UNSET


ToolOutputPart = ToolOutputPartInputText | ToolOutputPartInputImage
ToolOutput = str | tuple[ToolOutputPart, ...]


class FunctionCallOutputItem(
    Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="function_call_output",
    forbid_unknown_fields=True,
):
    """What a tool answered."""

    output: ToolOutput
    call_id: str
    id: str | UnsetType = UNSET
    status: str | UnsetType = UNSET


class CustomToolCallOutputItem(
    Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="custom_tool_call_output",
    forbid_unknown_fields=True,
):
    """What a tool that takes plain text answered."""

    output: ToolOutput
    call_id: str
    id: str | UnsetType = UNSET


class WebSearchCallItem(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="web_search_call", forbid_unknown_fields=True
):
    """A search that the provider ran on the web."""

    id: str
    status: str


class FileSearchResult(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One find of a file search."""

    attributes: dict[str, str] | None
    file_id: str
    filename: str
    score: int
    text: str


class FileSearchCallItem(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="file_search_call", forbid_unknown_fields=True
):
    """A search that the provider ran in files."""

    id: str
    status: str
    queries: tuple[str, ...]
    results: tuple[FileSearchResult, ...] | None


ProviderItem = (
    InputMessageItem
    | OutputMessageItem
    | ReasoningItem
    | FunctionCallItem
    | CustomToolCallItem
    | FunctionCallOutputItem
    | CustomToolCallOutputItem
    | WebSearchCallItem
    | FileSearchCallItem
)
StreamItem = InputMessageItem | OutputMessageItem | ReasoningItem | FunctionCallItem | CustomToolCallItem
"""The items that a provider streams: no outputs of tools and no searches."""


class _Head(Struct, frozen=True):
    """What tells items apart: the type, and for messages the role and whether id or status is there."""

    type: str
    role: str | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    status: Raw | UnsetType = UNSET


_read_head = msgspec.json.Decoder(_Head).decode
_read_answer = msgspec.json.Decoder(OutputMessageItem).decode
_readers: Mapping[str, msgspec.json.Decoder[Any]] = MappingProxyType(
    {
        "message": msgspec.json.Decoder(InputMessageItem),
        "reasoning": msgspec.json.Decoder(ReasoningItem),
        "function_call": msgspec.json.Decoder(FunctionCallItem),
        "custom_tool_call": msgspec.json.Decoder(CustomToolCallItem),
        "function_call_output": msgspec.json.Decoder(FunctionCallOutputItem),
        "custom_tool_call_output": msgspec.json.Decoder(CustomToolCallOutputItem),
        "web_search_call": msgspec.json.Decoder(WebSearchCallItem),
        "file_search_call": msgspec.json.Decoder(FileSearchCallItem),
    }
)


def decode_item(payload: Raw | bytes) -> ProviderItem:
    """Return the item that `payload` encodes. Raises ValueError when it is none of wire 6."""
    try:
        head = _read_head(payload)
        if head.type == "message" and head.role == "assistant" and (head.id, head.status) != (UNSET, UNSET):
            return _read_answer(payload)
        item: ProviderItem = _readers[head.type].decode(payload)
    except (msgspec.DecodeError, KeyError, RecursionError):
        raise ValueError("the payload of a history entry must be a provider item") from None
    return item


def classify_item(payload: Raw | bytes) -> tuple[HistoryRole, HistoryEntryKind]:
    """Return the role and kind of the entry that carries an item (wire 6). Raises ValueError like
    `decode_item`.
    """
    match decode_item(payload):
        case InputMessageItem(role="system" | "developer"):
            return "system", "message"
        case InputMessageItem(role="user"):
            return "user", "message"
        case InputMessageItem() | OutputMessageItem():
            return "assistant", "message"
        case ReasoningItem():
            return "assistant", "reasoning"
        case FunctionCallItem() | CustomToolCallItem():
            return "assistant", "tool_call"
        case FunctionCallOutputItem() | CustomToolCallOutputItem():
            return "tool", "tool_output"
        case WebSearchCallItem() | FileSearchCallItem():
            return "assistant", "other"
