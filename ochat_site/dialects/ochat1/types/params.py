"""Params of the methods, one struct per `…Params` of the protocol's schema."""

from __future__ import annotations

from typing import Annotated, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from sessions_app import limits
from sessions_app.errors import IncompatibleProtocol
from sessions_app.records import (
    AttachmentId,
    AttachmentMode,
    AuditLevel,
    BlobId,
    Cursor,
    DeletePolicy,
    DesiredState,
    EventEncoding,
    ExportFormat,
    FeatureName,
    GrantId,
    GrantState,
    HistoryId,
    HistoryWindowRequest,
    IdempotencyKey,
    Int62NonNeg,
    Int62Pos,
    Int64NonNeg,
    JobId,
    JobKind,
    MessageContent,
    NonBlankText,
    NonEmptyString,
    OperationId,
    PageLimit,
    PermissionChoice,
    PermissionId,
    PermissionState,
    PrincipalId,
    PromptDefinitionId,
    PromptRevisionId,
    RebuildPromptChoice,
    ScheduleDue,
    ScheduleId,
    ScheduleMisfire,
    SessionId,
    SessionSpec,
    StopMode,
    StringMap,
    WorkspaceAccess,
    WorkspaceDefinitionId,
    WorkspaceKind,
    check_cursor,
    check_history_id,
    check_unique,
)


class SessionParams(Struct, frozen=True, kw_only=True):
    """Params that name a session."""

    session_id: SessionId


class AttachedParams(SessionParams, frozen=True, kw_only=True):
    """Params that come through an attachment."""

    attachment_id: AttachmentId


class WriteParams(AttachedParams, frozen=True, kw_only=True):
    """Params of a mutation through an attachment."""

    idempotency_key: IdempotencyKey


class PageRequest(Struct, frozen=True, kw_only=True):
    """Params of a list."""

    limit: PageLimit
    cursor: Cursor | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_cursor(self.cursor)


class Version(Struct, frozen=True, kw_only=True, order=True):
    """A protocol version."""

    major: Int62NonNeg
    minor: Int62NonNeg


PROTOCOL_VERSION = Version(major=1, minor=0)


class Implementation(Struct, frozen=True, kw_only=True):
    """The name and version of a program."""

    name: NonEmptyString
    version: NonEmptyString


class InitializeParams(Struct, frozen=True, kw_only=True):
    """Params of `protocol.initialize`. A range without version 1.0 is refused with IncompatibleProtocol."""

    implementation: Implementation
    protocol_min: Version
    protocol_max: Version
    features: tuple[FeatureName, ...]
    event_encodings: tuple[EventEncoding, ...]
    max_inbound_event_bytes: Int62Pos
    client_instance_id: NonEmptyString | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_unique(self.features, "feature")
        check_unique(self.event_encodings, "event encoding")
        if "json" not in self.event_encodings:
            raise ValueError("event_encodings must hold json")
        if self.protocol_min > self.protocol_max:
            raise ValueError("protocol_min is above protocol_max")
        if (
            self.protocol_min.major != self.protocol_max.major
            or not self.protocol_min <= PROTOCOL_VERSION <= self.protocol_max
        ):
            raise IncompatibleProtocol("this server speaks protocol version 1.0 only")


class PingParams(Struct, frozen=True, kw_only=True):
    """Params of `protocol.ping`; `payload` is free JSON and comes back as it is."""

    payload: Raw | UnsetType = UNSET


class ServerInfoParams(Struct, frozen=True, kw_only=True):
    """Params of `server.info`: none."""


class HealthParams(Struct, frozen=True, kw_only=True):
    """Params of `server.health`."""

    include_details: bool = False


class PromptListParams(PageRequest, frozen=True, kw_only=True):
    """Params of `prompt.list`."""

    enabled: bool | UnsetType = UNSET
    available: bool | UnsetType = UNSET


class PromptGetParams(Struct, frozen=True, kw_only=True):
    """Params of `prompt.get`."""

    prompt_id: PromptDefinitionId


class WorkspaceListParams(PageRequest, frozen=True, kw_only=True):
    """Params of `workspace.list`."""

    kind: WorkspaceKind | UnsetType = UNSET
    access: WorkspaceAccess | UnsetType = UNSET
    available: bool | UnsetType = UNSET


class WorkspaceGetParams(Struct, frozen=True, kw_only=True):
    """Params of `workspace.get`."""

    workspace_id: WorkspaceDefinitionId


class BlobReadParams(AttachedParams, frozen=True, kw_only=True):
    """Params of `blob.read`."""

    blob_id: BlobId
    offset: Int64NonNeg
    max_bytes: Annotated[int, Meta(ge=1, le=limits.MAX_BLOB_CHUNK_BYTES)]


class SessionCreateParams(Struct, frozen=True, kw_only=True):
    """Params of `session.create`."""

    spec: SessionSpec
    requested_mode: AttachmentMode | UnsetType = UNSET
    subscribe: bool
    idempotency_key: IdempotencyKey

    def __post_init__(self) -> None:
        if self.subscribe and self.requested_mode is UNSET:
            raise ValueError("subscribe needs a requested_mode")


class SessionListParams(PageRequest, frozen=True, kw_only=True):
    """Params of `session.list`; `labels` are those that a session must have."""

    desired_state: DesiredState | UnsetType = UNSET
    prompt_id: PromptDefinitionId | UnsetType = UNSET
    workspace_id: WorkspaceDefinitionId | UnsetType = UNSET
    owner_principal_id: PrincipalId | UnsetType = UNSET
    labels: StringMap = msgspec.field(default_factory=dict)


class SessionGetParams(SessionParams, frozen=True, kw_only=True):
    """Params of `session.get`."""

    history: HistoryWindowRequest | UnsetType = UNSET


class SessionAttachParams(SessionParams, frozen=True, kw_only=True):
    """Params of `session.attach`."""

    requested_mode: AttachmentMode
    subscribe: bool
    after_sequence: Int64NonNeg | UnsetType = UNSET
    reclaim_token: str | UnsetType = UNSET
    idempotency_key: IdempotencyKey

    def __post_init__(self) -> None:
        if (
            self.reclaim_token is not UNSET
            and len(self.reclaim_token.encode()) > limits.MAX_RECLAIM_TOKEN_BYTES
        ):
            raise ValueError("a reclaim token holds at most 512 bytes")


class SessionDetachParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.detach`."""


class SessionRenewOwnerParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.renew_owner`."""

    lease_generation: Int64NonNeg


class SessionStartParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.start`."""

    queue_if_limited: bool


class SessionStopParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.stop`."""

    mode: StopMode


class SessionCancelOperationParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.cancel_operation`."""

    operation_id: OperationId


class SessionSendMessageParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.send_message`: exactly one of content and text.

    `text` is a short form that is only read. It becomes plain content at once, so both forms have one digest
    and one encoding.
    """

    content: MessageContent | UnsetType = UNSET
    text: NonBlankText | UnsetType = UNSET

    def __post_init__(self) -> None:
        if (self.content is UNSET) == (self.text is UNSET):
            raise ValueError("exactly one of content and text")
        if self.text is not UNSET:
            content = MessageContent(kind="plain_text", text=self.text, attachments=())
            msgspec.structs.force_setattr(self, "content", content)
            msgspec.structs.force_setattr(self, "text", UNSET)

    @property
    def message(self) -> MessageContent:
        """The content, in whichever form it came."""
        return cast("MessageContent", self.content)  # __post_init__ has set it


class SessionCompactParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.compact`."""

    expected_revision: Int64NonNeg | UnsetType = UNSET


class SessionDeleteHistoryParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.delete_history`."""

    history_id: HistoryId
    expected_revision: Int64NonNeg

    def __post_init__(self) -> None:
        check_history_id(self.history_id)


class SessionExportParams(AttachedParams, frozen=True, kw_only=True):
    """Params of `session.export`."""

    format: ExportFormat
    revision: Int64NonNeg | UnsetType = UNSET
    history: HistoryWindowRequest | UnsetType = UNSET


class SessionResetParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.reset`."""

    expected_revision: Int64NonNeg
    keep_history: bool
    keep_tasks: bool
    keep_cache: bool
    keep_workspace: bool
    keep_grants: bool
    keep_labels: bool


class SessionRebuildParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.rebuild`."""

    expected_revision: Int64NonNeg
    prompt_choice: RebuildPromptChoice


class SessionUpgradePromptParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.upgrade_prompt`."""

    expected_revision: Int64NonNeg
    target_revision: PromptRevisionId
    allow_migration: bool


class SessionDeleteParams(WriteParams, frozen=True, kw_only=True):
    """Params of `session.delete`. The command compares the confirmation, after revision and state (behaviour
    9).
    """

    expected_revision: Int64NonNeg
    policy: DeletePolicy
    confirmation: NonEmptyString


class PermissionListParams(PageRequest, frozen=True, kw_only=True):
    """Params of `permission.list`."""

    session_id: SessionId
    state: PermissionState | UnsetType = UNSET


class PermissionRespondParams(WriteParams, frozen=True, kw_only=True):
    """Params of `permission.respond`."""

    permission_id: PermissionId
    permission_generation: Int62NonNeg
    choice: PermissionChoice
    reason: str | UnsetType = UNSET


class GrantListParams(PageRequest, frozen=True, kw_only=True):
    """Params of `grant.list`."""

    session_id: SessionId | UnsetType = UNSET
    principal_id: PrincipalId | UnsetType = UNSET
    state: GrantState | UnsetType = UNSET


class GrantRevokeParams(WriteParams, frozen=True, kw_only=True):
    """Params of `grant.revoke`."""

    grant_id: GrantId
    reason: NonEmptyString


class AuditReadParams(PageRequest, frozen=True, kw_only=True):
    """Params of `audit.read`."""

    session_id: SessionId | UnsetType = UNSET
    principal_id: PrincipalId | UnsetType = UNSET
    minimum_level: AuditLevel | UnsetType = UNSET
    name_prefix: str | UnsetType = UNSET


class JobListParams(PageRequest, frozen=True, kw_only=True):
    """Params of `job.list`; any string is taken as a status."""

    session_id: SessionId
    status: str | UnsetType = UNSET
    kind: JobKind | UnsetType = UNSET


class JobGetParams(SessionParams, frozen=True, kw_only=True):
    """Params of `job.get`."""

    job_id: JobId


class JobCancelParams(WriteParams, frozen=True, kw_only=True):
    """Params of `job.cancel`."""

    job_id: JobId


class ScheduleListParams(PageRequest, frozen=True, kw_only=True):
    """Params of `schedule.list`; any string is taken as a status."""

    session_id: SessionId
    status: str | UnsetType = UNSET


class ScheduleGetParams(SessionParams, frozen=True, kw_only=True):
    """Params of `schedule.get`."""

    schedule_id: ScheduleId


class ScheduleCreateParams(WriteParams, frozen=True, kw_only=True):
    """Params of `schedule.create`; `payload` is free JSON."""

    payload: Raw
    due: ScheduleDue
    misfire: ScheduleMisfire


class ScheduleCancelParams(WriteParams, frozen=True, kw_only=True):
    """Params of `schedule.cancel`."""

    schedule_id: ScheduleId
