"""History entries as ChatMD (behaviour 9.3, 17.6).

Owns: the element each entry becomes, such that reading it again gives the same texts. Does not own: which
entries are exported and what the reader may see of them. Config, tools and server state have no place in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import UnsetType

from sessions_app.chatmd.items import image_tag
from sessions_app.chatmd.lexer import quoted, raw_block
from sessions_app.records.history import HistoryEntry
from sessions_app.records.items import (
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    ImageUrl,
    InputImage,
    InputMessageItem,
    InputText,
    OutputMessageItem,
    ReasoningItem,
    ToolOutput,
    ToolOutputPart,
    ToolOutputPartInputText,
    WebSearchCallItem,
    decode_item,
)

REDACTED = "[Tool content redacted]"
HISTORY_ID = "ochat-history-id"
"""Tells which entry an element was; readers of ChatMD pass it over."""

_CUSTOM = "custom_tool_call"
_Attributes = Mapping[str, str | UnsetType]
_NONE: _Attributes = MappingProxyType({})


def export_entry(entry: HistoryEntry) -> str:
    """Return `entry` as one element and a line end.

    Raises ValueError when the payload of an entry that is not redacted is no provider item.
    """
    name, attributes, body = ("assistant", _NONE, REDACTED) if entry.redacted else _element(entry)
    tag = "".join(f" {key}={quoted(value)}" for key, value in attributes.items() if isinstance(value, str))
    return f"<{name}{tag} {HISTORY_ID}={quoted(entry.id)}>{body}</{name}>\n"


def _element(entry: HistoryEntry) -> tuple[str, _Attributes, str]:
    """Return the name, attributes and body of the element for an entry."""
    match decode_item(entry.payload):
        case InputMessageItem(role=role, content=content):
            parts = [content] if isinstance(content, str) else content
            return "msg", {"role": role}, "".join(_input_part(part) for part in parts)
        case OutputMessageItem() as answer:
            attributes = {"id": answer.id, "status": answer.status}
            return "assistant", attributes, _blocks(part.text for part in answer.content)
        case FunctionCallItem() as call:
            attributes = {"function_name": call.name, "tool_call_id": call.call_id}
            return "tool_call", {**attributes, "id": call.id}, raw_block(call.arguments)
        case CustomToolCallItem() as call:
            attributes = {"type": _CUSTOM, "function_name": call.name, "tool_call_id": call.call_id}
            return "tool_call", {**attributes, "id": call.id}, raw_block(call.input)
        case FunctionCallOutputItem() as output:
            return "tool_response", {"tool_call_id": output.call_id}, _output(output.output)
        case CustomToolCallOutputItem() as output:
            attributes = {"type": _CUSTOM, "tool_call_id": output.call_id}
            return "tool_response", attributes, _output(output.output)
        case ReasoningItem() as reasoning:
            summaries = (
                f"<summary type={quoted(part.type)}>{raw_block(part.text)}</summary>"
                for part in reasoning.summary
            )
            return "reasoning", {"id": reasoning.id, "status": reasoning.status}, "".join(summaries)
        case search:
            kind = "web_search" if isinstance(search, WebSearchCallItem) else "file_search"
            return "msg", {"role": "assistant", "id": search.id}, kind


def _blocks(texts: Iterable[str]) -> str:
    return "".join(raw_block(text) for text in texts)


def _input_part(part: str | InputText | InputImage) -> str:
    if isinstance(part, InputImage):
        return image_tag(part.image_url)
    return raw_block(part if isinstance(part, str) else part.text)


def _output(output: ToolOutput) -> str:
    return raw_block(output) if isinstance(output, str) else "".join(_output_part(part) for part in output)


def _output_part(part: ToolOutputPart) -> str:
    if isinstance(part, ToolOutputPartInputText):
        return raw_block(part.text)
    return image_tag(part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url)
