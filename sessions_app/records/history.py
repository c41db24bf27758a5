"""History entries and windows (wire 5, 6, behaviour 8.8)."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from sessions_app import limits
from sessions_app.records.base import Cursor, HistoryId, check_cursor, check_history_id
from sessions_app.records.enums import HistoryEntryKind, HistoryRole
from sessions_app.records.items import classify_item

PageLimit = Annotated[int, Meta(ge=1, le=limits.MAX_CODEC_PAGE_SIZE)]
"""What the codec takes; the server clamps to the page size that it announces."""


class HistoryProvenanceCanonical(Struct, frozen=True, kw_only=True, tag_field="type", tag="canonical"):
    """The entry is part of the canonical history."""


class HistoryProvenanceModeratorInserted(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="moderator_inserted"
):
    """A moderator put the entry in."""


class HistoryProvenanceModeratorReplaced(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="moderator_replaced"
):
    """A moderator put the entry in the place of a canonical one."""

    canonical_id: HistoryId

    def __post_init__(self) -> None:
        check_history_id(self.canonical_id)


HistoryProvenance = (
    HistoryProvenanceCanonical | HistoryProvenanceModeratorInserted | HistoryProvenanceModeratorReplaced
)


class HistoryEntry(Struct, frozen=True, kw_only=True):
    """One item of a history. `payload` is the encoded provider item, carried as it is and never encoded
    again.

    Any payload is read; that a producer writes only provider items says `check_entry`.
    """

    id: HistoryId
    role: HistoryRole
    kind: HistoryEntryKind
    payload: Raw
    provenance: HistoryProvenance
    redacted: bool

    def __post_init__(self) -> None:
        check_history_id(self.id)


def check_entry(entry: HistoryEntry) -> None:
    """Refuse (ValueError) an entry that no producer may write.

    The payload is `{}` when redacted, else a provider item whose role and kind are those of the entry.
    """
    if entry.redacted:
        if bytes(entry.payload) != b"{}":
            raise ValueError("a redacted entry has the payload {}")
    elif classify_item(entry.payload) != (entry.role, entry.kind):
        raise ValueError("role and kind of an entry must be those of its payload")


class HistoryWindowRequestTail(Struct, frozen=True, kw_only=True, tag_field="position", tag="tail"):
    """The newest entries."""

    tail_count: PageLimit
    limit: PageLimit
    effective: bool


class HistoryWindowRequestAfter(Struct, frozen=True, kw_only=True, tag_field="position", tag="after"):
    """The entries behind an entry."""

    history_id: HistoryId
    limit: PageLimit
    effective: bool

    def __post_init__(self) -> None:
        check_history_id(self.history_id)


class HistoryWindowRequestBefore(Struct, frozen=True, kw_only=True, tag_field="position", tag="before"):
    """The entries in front of an entry."""

    history_id: HistoryId
    limit: PageLimit
    effective: bool

    def __post_init__(self) -> None:
        check_history_id(self.history_id)


class HistoryWindowRequestCursor(Struct, frozen=True, kw_only=True, tag_field="position", tag="cursor"):
    """The entries where an earlier answer left off."""

    window_cursor: Cursor
    limit: PageLimit
    effective: bool

    def __post_init__(self) -> None:
        check_cursor(self.window_cursor)


HistoryWindowRequest = (
    HistoryWindowRequestTail
    | HistoryWindowRequestAfter
    | HistoryWindowRequestBefore
    | HistoryWindowRequestCursor
)


class HistoryWindow(Struct, frozen=True, kw_only=True):
    """A run of entries; `structurally_complete` only when it reaches both ends. In an event it has no
    cursors.
    """

    entries: tuple[HistoryEntry, ...]
    previous_cursor: Cursor | UnsetType = UNSET
    next_cursor: Cursor | UnsetType = UNSET
    reached_start: bool
    reached_end: bool
    structurally_complete: bool

    def __post_init__(self) -> None:
        check_cursor(self.previous_cursor, self.next_cursor)
