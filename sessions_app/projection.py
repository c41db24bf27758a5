"""What one view sees of an event, a snapshot, an entry (behaviour 8.7, 8.8). Pure, and the only place that decides it.

Owns: full, redacted or hidden for every durable kind, and the redaction of entries. Does not own: who has which view
(`permissions_app.scopes`) or how what is left is encoded (dialects).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET, Raw

from sessions_app.clock import wire_time
from sessions_app.encoding import encode
from sessions_app.events import DurableEvent, ModeratorOverlayPayload, SessionUpdatedPayload
from sessions_app.records import HistoryEntry, HistoryWindow, Snapshot

if TYPE_CHECKING:
    from sessions_app.events import EventKind
    from sessions_app.ledger import StoredEvent
    from sessions_app.records import EventVisibility
    from sessions_app.views import View

T = TypeVar("T")

EMPTY = Raw(b"{}")
REDACTED_KINDS = frozenset({"tool_call", "tool_output", "other"})
"""Entries whose payload needs security.read; reasoning and messages stay (wire 6)."""

_NEEDS_SECURITY = frozenset({"permission.requested", "permission.resolved", "moderator.notification"})
_NEEDS_GRANTS = frozenset({"grant.created", "grant.revoked"})
_NEEDS_SENDING = frozenset(
    {"job.state_changed", "schedule.created", "schedule.state_changed", "schedule.cancelled"}
)


def visibility(kind: EventKind, view: View) -> EventVisibility:
    """Return how much of an event of `kind` a view sees; without security.read nothing is ever full."""
    if kind in _NEEDS_SECURITY:
        return "full" if view.security_read else "hidden"
    if (kind in _NEEDS_GRANTS and not view.grant_manage) or (
        kind in _NEEDS_SENDING and not view.message_send
    ):
        return "hidden"
    return "full" if view.security_read else "redacted"


def project_event(event: StoredEvent, view: View) -> DurableEvent:
    """Return a stored event as a view sees it; sequence, revision, kind and time are everybody's."""
    seen = visibility(event.kind, view)
    return DurableEvent(
        session_id=event.session_id,
        sequence=event.sequence,
        revision=event.revision,
        timestamp=wire_time(event.at),
        kind=event.kind,
        payload=_payload(event, view, seen),
        visibility=UNSET if seen == "full" else seen,
    )


def _payload(event: StoredEvent, view: View, seen: EventVisibility) -> Raw:
    if seen == "hidden":
        return EMPTY
    if event.kind == "session.updated":
        return _updated(event.payload, view)
    rule = _REDACTION.get(event.kind) if seen == "redacted" else None
    return Raw(event.payload) if rule is None else Raw(encode(rule(event.payload)))


def project_entry(entry: HistoryEntry, view: View) -> HistoryEntry:
    """Return an entry as a view sees it: payload `{}` and marked, for calls, outputs and searches without security.read."""
    return entry if view.security_read else _redacted(entry)


def project_window(window: HistoryWindow, view: View) -> HistoryWindow:
    """Return a window as a view sees it; windows are cut before they are redacted (behaviour 12.3)."""
    return window if view.security_read else _redacted_window(window)


def project_snapshot(snapshot: Snapshot, view: View) -> Snapshot:
    """Return a whole snapshot as a view sees it: a list that it may not see is empty, which is no error."""
    effective = snapshot.effective_history
    return msgspec.structs.replace(
        snapshot,
        canonical_history=project_window(snapshot.canonical_history, view),
        effective_history=UNSET if effective is UNSET else project_window(effective, view),
        deferred_entries=tuple(project_entry(entry, view) for entry in snapshot.deferred_entries),
        permissions=_only(snapshot.permissions, allowed=view.security_read),
        active_tool_calls=_only(snapshot.active_tool_calls, allowed=view.security_read),
        active_agent_calls=_only(snapshot.active_agent_calls, allowed=view.security_read),
        grants=_only(snapshot.grants, allowed=view.grant_manage),
        jobs=_only(snapshot.jobs, allowed=view.message_send),
        schedules=_only(snapshot.schedules, allowed=view.message_send),
    )


def _only(items: tuple[T, ...], *, allowed: bool) -> tuple[T, ...]:
    return items if allowed else ()


def _redacted(entry: HistoryEntry) -> HistoryEntry:
    if entry.kind not in REDACTED_KINDS:
        return entry
    return msgspec.structs.replace(entry, payload=EMPTY, redacted=True)


def _redacted_window(window: HistoryWindow) -> HistoryWindow:
    return msgspec.structs.replace(window, entries=tuple(_redacted(entry) for entry in window.entries))


def _overlay(payload: bytes) -> ModeratorOverlayPayload:
    overlay = _read_overlay(payload)
    if overlay.effective_history is UNSET:
        return overlay
    return msgspec.structs.replace(overlay, effective_history=_redacted_window(overlay.effective_history))


def _updated(payload: bytes, view: View) -> Raw:
    """A summary is everybody's; a replacement snapshot in it is projected for every view, the full ones too."""
    if b'"replacement_snapshot"' not in payload:
        return Raw(payload)
    updated = _read_updated(payload)
    if updated.replacement_snapshot is UNSET:
        return Raw(payload)
    shown = project_snapshot(updated.replacement_snapshot, view)
    return Raw(encode(msgspec.structs.replace(updated, replacement_snapshot=shown)))


_read_entry = msgspec.json.Decoder(HistoryEntry).decode
_read_entries = msgspec.json.Decoder(tuple[HistoryEntry, ...]).decode
_read_window = msgspec.json.Decoder(HistoryWindow).decode
_read_overlay = msgspec.json.Decoder(ModeratorOverlayPayload).decode
_read_updated = msgspec.json.Decoder(SessionUpdatedPayload).decode

_REDACTION: Mapping[EventKind, Callable[[bytes], Any]] = MappingProxyType(
    {
        "history.appended": lambda payload: tuple(map(_redacted, _read_entries(payload))),
        "history.message_deferred": lambda payload: _redacted(_read_entry(payload)),
        "history.replaced": lambda payload: _redacted_window(_read_window(payload)),
        "moderator.overlay_changed": _overlay,
    }
)
"""The kinds whose redacted payload differs from the full one."""
