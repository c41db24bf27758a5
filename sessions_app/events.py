"""Durable and live events (wire 9, 10, behaviour 8.1, 8.5).

Owns: the two event records, the payload of every kind, and `Extra`, what the log keeps beside a payload.
Does not own: appending and reading the log (`sessions_app.ledger`), what a reader may see of an event
(`sessions_app.projection`), and how a dialect writes it. Knows no Django.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from sessions_app.records import (
    AgentPageKind,
    Attachment,
    DesiredState,
    DurableEventKind,
    Error,
    EventVisibility,
    Grant,
    HistoryEntry,
    HistoryId,
    HistoryWindow,
    IdempotencyKey,
    Int64NonNeg,
    Job,
    ObservedState,
    Operation,
    OperationId,
    Permission,
    PrincipalId,
    PromptDefinitionId,
    PromptRevisionId,
    RecoverableEventKind,
    Schedule,
    Session,
    SessionId,
    Snapshot,
    Timestamp,
    ToolCallKind,
    ToolOutcome,
    ToolOutput,
    ToolProgressChannel,
    ToolProgressUpdate,
    Workspace,
    check_history_id,
)

EventKind = DurableEventKind
LiveEventKind = RecoverableEventKind


class DurableEvent(Struct, frozen=True, kw_only=True):
    """One row of a session's log as one reader sees it; `payload` is encoded, `{}` when hidden.

    `visibility` is written only when something may be missing: `redacted` or `hidden`.
    """

    session_id: SessionId
    sequence: Int64NonNeg
    revision: Int64NonNeg
    timestamp: Timestamp
    kind: EventKind
    payload: Raw
    visibility: EventVisibility | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.visibility == "hidden" and bytes(self.payload) != b"{}":
            raise ValueError("a hidden event has the payload {}")


class LifecycleChange(Struct, frozen=True, kw_only=True):
    """What is wanted of a session, and what is seen."""

    desired_state: DesiredState
    observed_state: ObservedState


class SessionUpdatedPayload(Session, frozen=True, kw_only=True):
    """The summary, and after an administrative change a snapshot that replaces the reader's whole view."""

    replacement_snapshot: Snapshot | UnsetType = UNSET

    @classmethod
    def of(cls, session: Session, replacement: Snapshot | UnsetType = UNSET) -> SessionUpdatedPayload:
        """Return the payload for a summary."""
        return cls(**msgspec.structs.asdict(session), replacement_snapshot=replacement)


class ModeratorOverlayPayload(Struct, frozen=True, kw_only=True):
    """What a moderator lays over the history; a member left out clears the reader's value."""

    halted: bool
    effective_history: HistoryWindow | UnsetType = UNSET
    halt_reason: str | UnsetType = UNSET


class ModeratorNotificationPayload(Struct, frozen=True, kw_only=True):
    """A notice, or why a session or an operation ends: exactly one of the three."""

    message: str | UnsetType = UNSET
    end_session_reason: str | UnsetType = UNSET
    cancellation_reason: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if [self.message, self.end_session_reason, self.cancellation_reason].count(UNSET) != 2:
            raise ValueError("a moderator notification says exactly one thing")


class PromptUpgrade(Struct, frozen=True, kw_only=True):
    """The session's prompt moved to another revision."""

    prompt_id: PromptDefinitionId
    previous_revision: PromptRevisionId
    current_revision: PromptRevisionId


OwnerChangedPayload = Attachment | None
HistoryEntryList = tuple[HistoryEntry, ...]
DurablePayload = (
    Session
    | LifecycleChange
    | SessionUpdatedPayload
    | OwnerChangedPayload
    | HistoryEntry
    | HistoryEntryList
    | HistoryWindow
    | ModeratorOverlayPayload
    | ModeratorNotificationPayload
    | Permission
    | Grant
    | Operation
    | Job
    | Schedule
    | PromptUpgrade
    | Workspace
    | Error
)

PAYLOADS: Mapping[EventKind, Any] = MappingProxyType(
    {
        "session.created": Session,
        "session.state_changed": LifecycleChange,
        "session.updated": SessionUpdatedPayload,
        "attachment.owner_changed": OwnerChangedPayload,
        "history.message_deferred": HistoryEntry,
        "history.appended": HistoryEntryList,
        "history.replaced": HistoryWindow,
        "moderator.overlay_changed": ModeratorOverlayPayload,
        "moderator.notification": ModeratorNotificationPayload,
        "permission.requested": Permission,
        "permission.resolved": Permission,
        "grant.created": Grant,
        "grant.revoked": Grant,
        "operation.started": Operation,
        "operation.completed": Operation,
        "operation.failed": Operation,
        "operation.cancelled": Operation,
        "operation.interrupted": Operation,
        "job.state_changed": Job,
        "schedule.created": Schedule,
        "schedule.state_changed": Schedule,
        "schedule.cancelled": Schedule,
        "prompt.upgraded": PromptUpgrade,
        "workspace.state_changed": Workspace,
        "session.error": Error,
    }
)
"""The payload type of every durable kind, total over `EventKind`."""

_payload_readers = {kind: msgspec.json.Decoder(shape) for kind, shape in PAYLOADS.items()}


def read_payload(event: DurableEvent) -> DurablePayload:
    """Return the payload of an event that is not hidden.

    Raises ValueError when it is not of its kind's type, or when a replacement snapshot is not of the event's own
    session and positions.
    """
    payload: DurablePayload = _payload_readers[event.kind].decode(event.payload)
    if isinstance(payload, SessionUpdatedPayload) and payload.replacement_snapshot is not UNSET:
        snapshot = payload.replacement_snapshot
        anchor = (snapshot.session.id, snapshot.revision, snapshot.latest_event_sequence)
        if anchor != (event.session_id, event.revision, event.sequence):
            raise ValueError("a replacement snapshot must stand where its event stands")
    return payload


class Tokens(Struct, frozen=True, kw_only=True):
    """How many tokens of each sort were used."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


class Usage(Struct, frozen=True, kw_only=True):
    """What an operation used; `cost` is US dollars as a decimal string, None where the price is unknown."""

    tokens: Tokens
    cost: str | None = None


class Extra(Struct, frozen=True, kw_only=True):
    """What the log keeps beside a payload, for dialects that tell more than Ochat does."""

    message_ids: tuple[HistoryId, ...] = ()
    idempotency_key: IdempotencyKey | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    actor: PrincipalId | UnsetType = UNSET


class LiveEvent(Struct, frozen=True, kw_only=True):
    """One live event; `payload` is encoded.

    `operation_sequence` counts from 1 per operation; `anchor_sequence` is the newest durable sequence that
    the worker knew, and no reader gets the event before it.
    """

    session_id: SessionId
    operation_id: OperationId
    operation_sequence: Int64NonNeg
    anchor_sequence: Int64NonNeg
    timestamp: Timestamp
    kind: LiveEventKind
    payload: Raw


class SourcedStreamPayload(Struct, frozen=True, kw_only=True):
    """A provider stream event (encoded) and where it belongs; what is unknown is written as null."""

    entry_id: HistoryId | None
    invocation_id: str | None
    parent_call_id: str | None
    event: Raw

    def __post_init__(self) -> None:
        if self.entry_id is not None:
            check_history_id(self.entry_id)


class HistoryCorrelatedStreamPayload(Struct, frozen=True, kw_only=True):
    """The same for clients that know entries only."""

    entry_id: HistoryId
    source: str | None
    event: Raw

    def __post_init__(self) -> None:
        check_history_id(self.entry_id)


class ToolStartedPayload(Struct, frozen=True, kw_only=True):
    """A tool starts; `payload` is the text of its arguments, as its policy lets it be shown."""

    call_id: str
    name: str
    kind: ToolCallKind
    payload: str
    agent_page_kind: AgentPageKind | None


class ToolProgress(Struct, frozen=True, kw_only=True):
    """More, or other, output of a running tool."""

    channel: ToolProgressChannel
    update: ToolProgressUpdate
    text: str


class ToolProgressPayload(Struct, frozen=True, kw_only=True):
    """A tool goes on."""

    call_id: str
    progress: ToolProgress


class ToolFinishedPayload(Struct, frozen=True, kw_only=True):
    """A tool is done."""

    call_id: str
    outcome: ToolOutcome
    output: ToolOutput | None


class ToolTraceToolStarted(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_started"):
    """A call inside a call starts."""

    call_id: str
    name: str
    kind: ToolCallKind
    payload: str


class ToolTraceToolProgress(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_progress"):
    """A call inside a call goes on."""

    call_id: str
    progress: ToolProgress


class ToolTraceToolFinished(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_finished"):
    """A call inside a call is done."""

    call_id: str
    outcome: ToolOutcome
    output: ToolOutput | None


ToolTrace = ToolTraceToolStarted | ToolTraceToolProgress | ToolTraceToolFinished


class ToolTracePayload(Struct, frozen=True, kw_only=True):
    """Something happens inside the call `call_id`."""

    call_id: str
    trace: ToolTrace


LivePayload = (
    Raw
    | SourcedStreamPayload
    | HistoryCorrelatedStreamPayload
    | ToolStartedPayload
    | ToolProgressPayload
    | ToolTracePayload
    | ToolFinishedPayload
)

LIVE_PAYLOADS: Mapping[LiveEventKind, type[LivePayload]] = MappingProxyType(
    {
        "provider.stream": Raw,
        "sourced.stream": SourcedStreamPayload,
        "history.correlated_stream": HistoryCorrelatedStreamPayload,
        "tool.started": ToolStartedPayload,
        "tool.progress": ToolProgressPayload,
        "tool.trace": ToolTracePayload,
        "tool.finished": ToolFinishedPayload,
        "agent.call_classified": Raw,
        "agent.call_progress": Raw,
        "activity": Raw,
        "compaction.progress": Raw,
    }
)
"""The payload type of every live kind, total over `LiveEventKind`; `Raw` is free JSON, which nothing
produces.
"""

_live_payload_readers = {kind: msgspec.json.Decoder(shape) for kind, shape in LIVE_PAYLOADS.items()}


def read_live_payload(event: LiveEvent) -> LivePayload:
    """Return the payload of a live event. Raises ValueError when it is not of its kind's type."""
    payload: LivePayload = _live_payload_readers[event.kind].decode(event.payload)
    return payload
