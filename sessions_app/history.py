"""The rules of a history: what an entry may be, how calls and outputs pair, how a window is cut.

Owns: making entries ready to store, their size bound, the call/output key, the repair of a history that a call left open.
Pure: no queries. Does not own: appending (`commands.entries`) or reading (`queries`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from sessions_app import images, limits
from sessions_app.encoding import encode
from sessions_app.errors import ResourceLimit
from sessions_app.records import (
    CustomToolCallItem,
    CustomToolCallOutputItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    HistoryEntryKind,
    HistoryRole,
    InputImage,
    InputMessageItem,
    InputText,
    OutputMessageItem,
    OutputText,
    ToolCallKind,
    ToolOutput,
    classify_item,
)

ENTRY_OVERHEAD = 256
"""More than the id, role, kind, provenance and punctuation of one encoded entry take beside its payload."""

PAIRED_KINDS = frozenset({"tool_call", "tool_output"})
"""The kinds that carry a call id."""

LONGEST_PLAIN_CALL_ID = 256
"""Providers' ids are some 30 characters; an index row of PostgreSQL ends at 2.7 kB."""

CUT_NOTE = "\n[The output was cut here: it is longer than a history entry may be.]"


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry that is not in a history yet."""

    role: HistoryRole
    kind: HistoryEntryKind
    payload: bytes
    call_key: str = ""
    number: int | None = None
    """Its history sequence where that was promised before: to a stream, or to a deferred message."""

    @property
    def size(self) -> int:
        """An upper bound of its encoded bytes."""
        return len(self.payload) + ENTRY_OVERHEAD


def entry_of(payload: bytes, number: int | None = None) -> NewEntry:
    """Return the entry for an encoded Responses item, with role and kind of its payload.

    Raises ResourceLimit (not retryable) above 4 MiB encoded (behaviour 6.1), ValueError when it is no item of wire 6. Images
    that are taken out of it when it is stored do not count.
    """
    role, kind = classify_item(msgspec.Raw(payload))
    entry = NewEntry(
        role, kind, payload, call_key_of(payload) if kind in ("tool_call", "tool_output") else "", number
    )
    if not fits(payload):
        raise ResourceLimit("one history entry is at most 4 MiB", retryable=False)
    return entry


ITEM_ROOM = limits.MAX_ENTRY_BYTES - ENTRY_OVERHEAD
"""The bytes that the item of an entry may take."""


def fits(payload: bytes) -> bool:
    """Tell whether an encoded item fits into one entry, without the images that are too large for it."""
    if len(payload) <= ITEM_ROOM:
        return True
    return len(images.lightened(payload, lambda _type, _content: _LONGEST_ADDRESS, ITEM_ROOM)) <= ITEM_ROOM


_LONGEST_ADDRESS = "blob:" + "x" * 96


class _CallReference(msgspec.Struct):
    type: str
    call_id: str

    @property
    def kind(self) -> ToolCallKind:
        return "custom" if self.type.startswith("custom_") else "function"


def call_key_of(payload: bytes) -> str:
    """Return what joins a call with its output: family and call id (behaviour 9.1), or a digest of an id that no index takes."""
    reference = msgspec.json.decode(payload, type=_CallReference)
    call_id = reference.call_id
    if len(call_id) > LONGEST_PLAIN_CALL_ID or "\0" in call_id:
        call_id = sha256(call_id.encode()).hexdigest()
    return f"{reference.kind}:{call_id}"


def output_of(call: bytes, output: ToolOutput) -> bytes:
    """Return the encoded output item for an encoded call item."""
    reference = msgspec.json.decode(call, type=_CallReference)
    return output_item(reference.kind, reference.call_id, output)


def user_message(text: str) -> NewEntry:
    """Return the entry of a plain text message: one text part, exactly as sent (behaviour 6.1)."""
    return entry_of(encode(InputMessageItem(role="user", content=(InputText(text=text),))))


def with_parts(payload: bytes, parts: Sequence[InputText | InputImage]) -> NewEntry:
    """Return the entry of an encoded input message with more content parts behind its own."""
    item = msgspec.json.decode(payload, type=InputMessageItem)
    own = (InputText(text=item.content),) if isinstance(item.content, str) else item.content
    return entry_of(encode(msgspec.structs.replace(item, content=(*own, *parts))))


def incomplete_message(item_id: str, text: str, number: int | None) -> NewEntry:
    """Return streamed text that is in no entry yet as an assistant entry marked incomplete (behaviour 6.5)."""
    room = limits.MAX_ENTRY_BYTES - 4 * ENTRY_OVERHEAD
    item = OutputMessageItem(
        role="assistant",
        id=item_id,
        content=(OutputText(type="output_text", annotations=(), text=_cut(text, room)),),
        status="incomplete",
    )
    return entry_of(encode(item), number)


def output_item(kind: ToolCallKind, call_id: str, output: ToolOutput) -> bytes:
    """Return the encoded output item of a call, cut to what one entry may hold and saying so (behaviour 6.1)."""
    made = FunctionCallOutputItem if kind == "function" else CustomToolCallOutputItem
    encoded = encode(made(call_id=call_id, output=output))
    if fits(encoded):
        return encoded
    text = _text_of(output)
    spare = limits.MAX_ENTRY_BYTES - 2 * ENTRY_OVERHEAD - len(encode(made(call_id=call_id, output=CUT_NOTE)))
    return encode(made(call_id=call_id, output=_cut(text, spare) + CUT_NOTE))


def shown_output(output: ToolOutput) -> ToolOutput:
    """Return an output as a live event tells it: whole up to 256 KiB, else the beginning of its text, saying that it was cut."""
    if len(encode(output)) <= limits.MAX_PAYLOAD_BYTES:
        return output
    return _cut(_text_of(output), limits.MAX_PAYLOAD_BYTES - len(encode(CUT_NOTE))) + CUT_NOTE


def _text_of(output: ToolOutput) -> str:
    if isinstance(output, str):
        return output
    return "\n".join(getattr(part, "text", "[image]") for part in output)


def call_item(kind: ToolCallKind, call_id: str, name: str, arguments: str) -> bytes:
    """Return the encoded item of a call."""
    if kind == "function":
        return encode(FunctionCallItem(name=name, arguments=arguments, call_id=call_id))
    return encode(CustomToolCallItem(name=name, input=arguments, call_id=call_id))


def _cut(text: str, room: int) -> str:
    """Return the longest beginning of `text` that takes at most `room` bytes inside JSON, quotes included."""
    encoded = encode(text)
    if len(encoded) <= room:
        return text
    head = encoded[: room - 1]
    # The cut may have gone through a character: an escape has up to six bytes, UTF-8 up to four.
    for left in range(len(head), len(head) - 6, -1):
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(head[:left] + b'"', type=str)
    raise AssertionError("no character is longer than six bytes")
