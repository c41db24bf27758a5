"""Results of the methods that are no records by themselves, one struct per `…Result` and `…Page` of the
schema.
"""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType

from ochat_site.dialects.ochat1.types.params import Implementation, Version
from sessions_app.events import DurableEvent
from sessions_app.records import (
    Attachment,
    AuditRecord,
    BlobMetadata,
    Cursor,
    FeatureName,
    Grant,
    HealthStatus,
    HistoryId,
    Int62NonNeg,
    Int62Pos,
    Int64NonNeg,
    Job,
    MessageDisposition,
    NonEmptyString,
    OperationId,
    OwnerLease,
    Permission,
    Principal,
    Prompt,
    Schedule,
    ServerId,
    Session,
    SessionId,
    Snapshot,
    Timestamp,
    Workspace,
    check_cursor,
    check_history_id,
    check_unique,
)

T = TypeVar("T")


class Page(Struct, Generic[T], frozen=True, kw_only=True):
    """A part of a list; without `next_cursor` it is the last."""

    items: tuple[T, ...]
    next_cursor: Cursor | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_cursor(self.next_cursor)


class MutationResult(Struct, frozen=True, kw_only=True):
    """Where the session stands after a mutation."""

    revision: Int64NonNeg
    latest_event_sequence: Int64NonNeg


class Limits(Struct, frozen=True, kw_only=True):
    """What the server takes."""

    max_request_bytes: Int62Pos
    max_event_bytes: Int62Pos
    max_page_size: Int62Pos
    max_attachments_per_connection: Int62Pos


class EventRetention(Struct, frozen=True, kw_only=True):
    """How long events can be replayed."""

    minimum_age_ms: Int62NonNeg
    maximum_events: Int62Pos
    oldest_replayable_sequence: Int64NonNeg | UnsetType = UNSET


class Timing(Struct, frozen=True, kw_only=True):
    """When a client should do what; an owner renews before its lease ends."""

    heartbeat_interval_ms: Int62Pos
    owner_lease_duration_ms: Int62Pos
    owner_renew_after_ms: Int62Pos
    disconnect_grace_default_ms: Int62NonNeg

    def __post_init__(self) -> None:
        if self.owner_renew_after_ms >= self.owner_lease_duration_ms:
            raise ValueError("renewal must precede expiry")


class InitializeResult(Struct, frozen=True, kw_only=True):
    """Result of `protocol.initialize`."""

    protocol_name: NonEmptyString
    selected_version: Version
    implementation: Implementation
    server_id: ServerId
    enabled_features: tuple[FeatureName, ...]
    principal: Principal
    limits: Limits
    event_retention: EventRetention
    timing: Timing
    server_time: Timestamp

    def __post_init__(self) -> None:
        check_unique(self.enabled_features, "feature")


class PingResult(Struct, frozen=True, kw_only=True):
    """Result of `protocol.ping`."""

    payload: Raw | UnsetType = UNSET
    server_time: Timestamp
    ready: bool
    draining: bool


class ServerInfoResult(Struct, frozen=True, kw_only=True):
    """Result of `server.info`."""

    server_id: ServerId
    implementation: Implementation
    protocol_version: Version
    features: tuple[str, ...]
    transports: tuple[str, ...]
    limits: Limits
    unsafe_development_auth: bool


class HealthComponent(Struct, frozen=True, kw_only=True):
    """How one part of the server is doing."""

    name: NonEmptyString
    status: HealthStatus
    message: str | UnsetType = UNSET


class HealthResult(Struct, frozen=True, kw_only=True):
    """Result of `server.health`."""

    status: HealthStatus
    ready: bool
    draining: bool
    checked_at: Timestamp
    components: tuple[HealthComponent, ...]


class BlobUploadResult(Struct, frozen=True, kw_only=True):
    """Answer to `POST /v1/blobs`: the metadata by which a message may name the blob until it expires (behaviour 13)."""

    blob: BlobMetadata
    allowed_use: NonEmptyString
    expires_at: Timestamp


class ConnectionClosedResult(Struct, frozen=True, kw_only=True):
    """Answer to `DELETE /v1/connection` (behaviour 1.4)."""

    closed: Literal[True] = True


class SessionMutationResult(MutationResult, frozen=True, kw_only=True):
    """Result of most session mutations."""

    session: Session


class AttachReplayCurrent(Struct, frozen=True, kw_only=True, tag_field="type", tag="current"):
    """The client has everything; legal, and never sent."""


class AttachReplayEvents(Struct, frozen=True, kw_only=True, tag_field="type", tag="events"):
    """The events that the client lacks."""

    events: tuple[DurableEvent, ...]


class AttachReplaySnapshot(Struct, frozen=True, kw_only=True, tag_field="type", tag="snapshot"):
    """Everything anew."""

    snapshot: Snapshot


AttachReplay = AttachReplayCurrent | AttachReplayEvents | AttachReplaySnapshot


class AttachResult(Struct, frozen=True, kw_only=True):
    """Result of `session.attach`."""

    attachment: Attachment
    replay: AttachReplay
    latest_event_sequence: Int64NonNeg
    reclaim_token: str | UnsetType = UNSET


class SessionCreateResult(MutationResult, frozen=True, kw_only=True):
    """Result of `session.create`."""

    session: Session
    attachment: AttachResult | UnsetType = UNSET


class SessionRenewOwnerResult(MutationResult, frozen=True, kw_only=True):
    """Result of `session.renew_owner`."""

    owner_lease: OwnerLease


class SendMessageResult(MutationResult, frozen=True, kw_only=True):
    """Result of `session.send_message`; an operation exactly when the message started one."""

    history_id: HistoryId
    disposition: MessageDisposition
    operation_id: OperationId | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_history_id(self.history_id)
        if (self.operation_id is UNSET) == (self.disposition == "started"):
            raise ValueError("operation_id belongs to a message that started one")


class SessionExportResult(Struct, frozen=True, kw_only=True):
    """Result of `session.export`."""

    blob: BlobMetadata
    session_revision: Int64NonNeg
    latest_event_sequence: Int64NonNeg


class SessionDeleteResult(Struct, frozen=True, kw_only=True):
    """Result of `session.delete`."""

    session_id: SessionId
    deleted_at: Timestamp
    archive: BlobMetadata | UnsetType = UNSET


class PermissionRespondResult(MutationResult, frozen=True, kw_only=True):
    """Result of `permission.respond`."""

    permission: Permission


class GrantRevokeResult(MutationResult, frozen=True, kw_only=True):
    """Result of `grant.revoke`."""

    grant: Grant


class JobCancelResult(MutationResult, frozen=True, kw_only=True):
    """Result of `job.cancel`."""

    job: Job


class ScheduleMutationResult(MutationResult, frozen=True, kw_only=True):
    """Result of `schedule.create` and `schedule.cancel`."""

    schedule: Schedule


PromptPage = Page[Prompt]
WorkspacePage = Page[Workspace]
SessionPage = Page[Session]
PermissionPage = Page[Permission]
GrantPage = Page[Grant]
AuditPage = Page[AuditRecord]
JobPage = Page[Job]
SchedulePage = Page[Schedule]
