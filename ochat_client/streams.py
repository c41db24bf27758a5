"""Text that a model is still saying, put together from live events (wire 10).

Owns: the parts of one streamed entry. Does not own: when a stream begins to count and when it is dropped
(`projection`).
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw, Struct

Voice = Literal["text", "reasoning"]


class _Spoken(Struct, frozen=True):
    """The members of a provider stream event that carry text; others are skipped."""

    type: str
    delta: str = ""
    text: str = ""
    content_index: int = 0
    summary_index: int = 0


class Said(Struct, frozen=True):
    """What one stream event adds: `text` to a voice, or, when it is `whole`, all of a part so far."""

    voice: Voice
    part: int
    text: str
    whole: bool = False


_read = msgspec.json.Decoder(_Spoken).decode


def said(event: Raw) -> Said | None:
    """Return what an encoded provider stream event says in words, or None: most types say nothing."""
    try:
        spoken = _read(event)
    except msgspec.DecodeError:
        return None  # Types that we do not list pass unread, whatever they hold (wire 10).
    match spoken.type:
        case "response.output_text.delta" | "response.refusal.delta":
            return Said("text", spoken.content_index, spoken.delta)
        case "response.output_text.done":
            return Said("text", spoken.content_index, spoken.text, whole=True)
        case "response.reasoning_summary_text.delta":
            return Said("reasoning", spoken.summary_index, spoken.delta)
        case _:
            return None


class Stream:
    """An entry on its way. Nothing rests on it: the entry itself replaces it."""

    def __init__(self, operation_id: str, entry_id: str | None, parent_call_id: str | None) -> None:
        """Begin empty."""
        self.operation_id = operation_id
        self.entry_id = entry_id
        """The id that the entry will have, where the server tells it."""
        self.parent_call_id = parent_call_id
        """The call of an agent inside of which this is said, if it is."""
        self.has_gap = False
        """Some of it was not received."""
        self._parts: dict[tuple[Voice, int], list[str]] = {}

    def add(self, piece: Said) -> None:
        """Take what an event says."""
        if piece.whole:
            self._parts[piece.voice, piece.part] = [piece.text]
        else:
            self._parts.setdefault((piece.voice, piece.part), []).append(piece.text)

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._joined("text")

    @property
    def reasoning(self) -> str:
        """The reasoning summary so far, its parts a blank line apart."""
        return self._joined("reasoning", "\n\n")

    def _joined(self, voice: Voice, between: str = "") -> str:
        parts = sorted(key for key in self._parts if key[0] == voice)
        return between.join("".join(self._parts[part]) for part in parts)
