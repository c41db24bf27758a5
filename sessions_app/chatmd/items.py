"""Typed elements into history items (behaviour 17.5).

Owns: the mapping, encoded. Does not own: how a helper becomes content. That takes files, the network or a
model, so the caller finds what `helpers` names, and hands the parts in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import UNSET, Raw, Struct

from sessions_app.chatmd.elements import (
    Body,
    Helper,
    Img,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResponse,
    Turn,
)
from sessions_app.chatmd.lexer import ChatMDError, quoted, shown
from sessions_app.encoding import encode
from sessions_app.records.enums import HistoryEntryKind, HistoryRole
from sessions_app.records.items import (
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputImage,
    InputMessageItem,
    InputText,
    OutputMessageItem,
    OutputText,
    ReasoningItem,
    ReasoningSummary,
    ToolOutput,
    ToolOutputPart,
    ToolOutputPartInputImage,
    ToolOutputPartInputText,
)

Part = InputText | InputImage
Parts = Mapping[Helper, Part]
"""What helpers became."""


class Item(Struct, frozen=True, kw_only=True):
    """A history entry in the making: all but its id and provenance."""

    role: HistoryRole
    kind: HistoryEntryKind
    payload: Raw
    """The encoded item."""


class Unresolved(ChatMDError):
    """A helper stands in the text and no part was handed in for it."""

    def __init__(self, helper: Helper) -> None:
        super().__init__(f"{named(helper)} is not resolved", helper.place)
        self.helper = helper


def helpers(turns: Iterable[Turn]) -> Iterator[Helper]:
    """Yield the helpers that need a part, in order. An image that is a data URI brings its own."""
    for turn in turns:
        if not isinstance(turn, Reasoning):
            yield from (part for part in turn.body if not isinstance(part, Text) and not _is_inline(part))


def named(helper: Helper) -> str:
    """Return what a helper is called in an error."""
    return f"<{type(helper).__name__.lower()} src={shown(helper.src)}>"


def to_items(turns: Iterable[Turn], parts: Parts) -> tuple[Item, ...]:
    """Return the items of `turns`, in order. Raises Unresolved for a helper without a part."""
    return tuple(_item(turn, parts) for turn in turns)


def user_message(content: Sequence[Part]) -> Item:
    """Return a user's message of these parts."""
    return _made("user", "message", InputMessageItem(role="user", content=tuple(content)))


def image_tag(url: str) -> str:
    """Return an image as ChatMD writes it; also how it stands where only text can (arguments, answers)."""
    return f"<img src={quoted(url)}/>"


def _item(turn: Turn, parts: Parts) -> Item:
    match turn:
        case Message():
            return _message(turn, parts)
        case ToolCall():
            return _tool_call(turn, _flat(turn.body, parts))
        case ToolResponse():
            kind = CustomToolCallOutputItem if turn.custom else FunctionCallOutputItem
            return _made("tool", "tool_output", kind(output=_output(turn.body, parts), call_id=turn.call_id))
        case Reasoning():
            summary = tuple(ReasoningSummary(text=part.text, type=part.type) for part in turn.summaries)
            item = ReasoningItem(summary=summary, id=turn.id, status=turn.status or UNSET)
            return _made("assistant", "reasoning", item)


def _message(message: Message, parts: Parts) -> Item:
    """Return a message. What an assistant said is one text, and a model's answer when it has an id."""
    if message.role == "assistant" and message.id is not None:
        text = OutputText(annotations=(), text=_flat(message.body, parts), type="output_text")
        status = message.status or "completed"
        answer = OutputMessageItem(role="assistant", id=message.id, content=(text,), status=status)
        return _made("assistant", "message", answer)
    content = tuple(_part(part, parts) for part in message.body)
    if message.role == "assistant":
        content = (InputText(text=_flat(message.body, parts)),)
    role: HistoryRole = "system" if message.role == "developer" else message.role
    return _made(role, "message", InputMessageItem(role=message.role, content=content))


def _tool_call(call: ToolCall, text: str) -> Item:
    item_id = call.id or UNSET
    item = (
        CustomToolCallItem(name=call.name, input=text, call_id=call.call_id, id=item_id)
        if call.custom
        else FunctionCallItem(name=call.name, arguments=text, call_id=call.call_id, id=item_id)
    )
    return _made("assistant", "tool_call", item)


def _output(body: Body, parts: Parts) -> ToolOutput:
    """Return an output: plain text, or parts as soon as there is an image."""
    content = [_part(part, parts) for part in body]
    if all(isinstance(part, InputText) for part in content):
        return _flat(body, parts)
    return tuple(_output_part(part) for part in content)


def _output_part(part: Part) -> ToolOutputPart:
    if isinstance(part, InputText):
        return ToolOutputPartInputText(text=part.text)
    return ToolOutputPartInputImage(image_url=part.image_url, detail="auto")


def _part(part: Text | Helper, parts: Parts) -> Part:
    if isinstance(part, Text):
        return InputText(text=part.text)
    if _is_inline(part):
        return InputImage(image_url=part.src, detail="auto")
    if part not in parts:
        raise Unresolved(part)
    return parts[part]


def _flat(body: Body, parts: Parts) -> str:
    content = (_part(part, parts) for part in body)
    return "".join(
        part.text if isinstance(part, InputText) else image_tag(part.image_url) for part in content
    )


def _is_inline(part: Helper) -> bool:
    return isinstance(part, Img) and not part.local and part.src.startswith("data:")


def _made(role: HistoryRole, kind: HistoryEntryKind, item: Struct) -> Item:
    return Item(role=role, kind=kind, payload=Raw(encode(item)))
