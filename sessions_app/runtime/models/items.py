"""Stored items, as the adapters read and write them.

Owns what a reasoning item carries for its provider. Does not own the shapes of items
(`sessions_app.records`).

Some providers want opaque data back that no item has a member for. It travels in reasoning items, which may
have further members (wire 6: an open record, whose readers skip what they do not know), in a member named
after the adapter that understands it. Every other adapter leaves such an item out, so a session may change
its model at any turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from sessions_app import records
from sessions_app.runtime.models.port import ToolCall


class AnthropicSeal(msgspec.Struct, frozen=True, omit_defaults=True):
    """What Anthropic wants back with its thinking: the signature, or all of a redacted block."""

    signature: str = ""
    redacted: str = ""


class ChatSeal(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chat server wants back: reasoning in the `member` in which it came, or the `extra` that came
    with the call `of`."""

    member: str = ""
    extra: Raw | UnsetType = UNSET
    of: str = ""


class SealedReasoning(records.ReasoningItem, frozen=True, kw_only=True):
    """Reasoning with what its provider wants back.

    `encrypted_content` is OpenAI's own member; `pydantic_ai` is an encoded object of that adapter.
    """

    encrypted_content: str | UnsetType = UNSET
    anthropic: AnthropicSeal | UnsetType = UNSET
    chat: ChatSeal | UnsetType = UNSET
    pydantic_ai: Raw | UnsetType = UNSET


_read_reasoning = msgspec.json.Decoder(SealedReasoning).decode


def read_item(payload: bytes) -> records.ProviderItem:
    """Return the item that `payload` encodes; reasoning with its seals. Raises ValueError when it is none of
    wire 6."""
    item = records.decode_item(payload)
    return _read_reasoning(payload) if isinstance(item, records.ReasoningItem) else item


def unsealed(item: records.ProviderItem) -> records.ProviderItem:
    """Return the item without what only its provider understands: what a live reader gets."""
    if isinstance(item, SealedReasoning):
        return records.ReasoningItem(summary=item.summary, id=item.id, status=item.status)
    return item


def call_of(item: records.ProviderItem) -> ToolCall | None:
    """Return the tool call that `item` is, or None."""
    match item:
        case records.FunctionCallItem():
            return ToolCall(item.call_id, item.name, item.arguments, "function")
        case records.CustomToolCallItem():
            return ToolCall(item.call_id, item.name, item.input, "custom")
        case _:
            return None


Speaker: TypeAlias = Literal["system", "user", "assistant", "tool"]


def runs(items: Sequence[bytes]) -> Iterator[tuple[Speaker, Iterator[records.ProviderItem]]]:
    """Yield a history as its runs of items of one speaker: what other providers call messages.

    A developer speaks as the system. Raises ValueError for a payload that is no item.
    """
    return groupby(map(read_item, items), _speaker)


def _speaker(item: records.ProviderItem) -> Speaker:
    match item:
        case records.FunctionCallOutputItem() | records.CustomToolCallOutputItem():
            return "tool"
        case records.InputMessageItem(role="user"):
            return "user"
        case records.InputMessageItem(role="system" | "developer"):
            return "system"
        case _:
            return "assistant"


class Image(msgspec.Struct, frozen=True):
    """An image in a message or an output: an address or a data URI, and how closely to look at it."""

    url: str
    detail: str


def parts(content: records.ToolOutput | str | Sequence[object]) -> Iterator[str | Image]:
    """Yield the texts and images of a message's content or a tool's output, whichever way it is written."""
    if isinstance(content, str):
        yield content
        return
    for part in content:
        match part:
            case str():
                yield part
            case records.InputText() | records.ToolOutputPartInputText():
                yield part.text
            case records.InputImage():
                yield Image(part.image_url, part.detail)
            case records.ToolOutputPartInputImage():
                url = part.image_url if isinstance(part.image_url, str) else part.image_url.url
                yield Image(url, part.detail if isinstance(part.detail, str) else "auto")


_read_object = msgspec.json.Decoder(dict[str, Raw]).decode


def is_object(text: str) -> bool:
    """Say whether `text` is one complete JSON object, as the arguments of a call must be."""
    try:
        _read_object(text)
    except msgspec.DecodeError:
        return False
    return True
