"""Sessions, operations, attachments and snapshots (wire 7, 11, behaviour 4 to 6, 8.8)."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from sessions_app.records.access import Grant, Permission
from sessions_app.records.base import (
    AttachmentId,
    Error,
    Int62NonNeg,
    Int64NonNeg,
    NonEmptyString,
    OperationId,
    PermissionId,
    PrincipalId,
    PromptDefinitionId,
    PromptRevisionId,
    SessionId,
    StringMap,
    TextNoNul,
    Timestamp,
    WorkspaceDefinitionId,
    WorkspaceInstanceId,
    check_order,
)
from sessions_app.records.enums import (
    AttachmentMode,
    DesiredState,
    ExecutionHost,
    Persistence,
    StopMode,
    TurnStartReason,
)
from sessions_app.records.history import HistoryEntry, HistoryWindow
from sessions_app.records.work import Job, Schedule


class OperationKindTurn(Struct, frozen=True, kw_only=True, tag_field="type", tag="turn"):
    """The model at work."""

    reason: TurnStartReason


class OperationKindCompaction(Struct, frozen=True, kw_only=True, tag_field="type", tag="compaction"):
    """The history being shortened."""


OperationKind = OperationKindTurn | OperationKindCompaction


class OperationStarting(Struct, frozen=True, kw_only=True, tag_field="type", tag="starting"):
    """Committed, and not yet at a worker."""


class OperationRunning(Struct, frozen=True, kw_only=True, tag_field="type", tag="running"):
    """At a worker."""


class OperationCancelling(Struct, frozen=True, kw_only=True, tag_field="type", tag="cancelling"):
    """Told to end."""


class OperationCompleted(Struct, frozen=True, kw_only=True, tag_field="type", tag="completed"):
    """Ended by itself."""


class OperationFailed(Struct, frozen=True, kw_only=True, tag_field="type", tag="failed"):
    """Ended with an error."""

    error: Error


class OperationCancelled(Struct, frozen=True, kw_only=True, tag_field="type", tag="cancelled"):
    """Ended because somebody said so."""


class OperationInterrupted(Struct, frozen=True, kw_only=True, tag_field="type", tag="interrupted"):
    """Ended because its worker is gone."""

    reason: str
    retryable: bool


OperationState = (
    OperationStarting
    | OperationRunning
    | OperationCancelling
    | OperationCompleted
    | OperationFailed
    | OperationCancelled
    | OperationInterrupted
)


class Operation(Struct, frozen=True, kw_only=True):
    """A turn or a compaction; `updated_at` never precedes `started_at`."""

    id: OperationId
    generation: Int62NonNeg
    kind: OperationKind
    state: OperationState
    started_at: Timestamp
    updated_at: Timestamp

    def __post_init__(self) -> None:
        check_order(self.started_at, self.updated_at)


class LivenessDetached(Struct, frozen=True, kw_only=True, tag_field="type", tag="detached"):
    """The session goes on without clients."""


class LivenessProcessBound(Struct, frozen=True, kw_only=True, tag_field="type", tag="process_bound"):
    """The session ends with the process that embeds it."""


class LivenessOwnerBound(Struct, frozen=True, kw_only=True, tag_field="type", tag="owner_bound"):
    """The session stops when its owner is gone for the grace time."""

    disconnect_grace_ms: Int62NonNeg
    stop_mode: StopMode


Liveness = LivenessDetached | LivenessProcessBound | LivenessOwnerBound


class PromptRefCatalog(Struct, frozen=True, kw_only=True, tag_field="type", tag="catalog"):
    """A prompt of the catalog."""

    prompt_id: PromptDefinitionId


class PromptRefLocalPath(Struct, frozen=True, kw_only=True, tag_field="type", tag="local_path"):
    """A prompt file; embedded hosts only."""

    path: TextNoNul


PromptRef = PromptRefCatalog | PromptRefLocalPath


class WorkspaceRequestConfigured(Struct, frozen=True, kw_only=True, tag_field="type", tag="configured"):
    """A workspace of the catalog."""

    workspace_id: WorkspaceDefinitionId


class WorkspaceRequestCurrent(Struct, frozen=True, kw_only=True, tag_field="type", tag="current"):
    """The folder of the process; embedded hosts only."""


class WorkspaceRequestLocalPath(Struct, frozen=True, kw_only=True, tag_field="type", tag="local_path"):
    """A folder; embedded hosts only."""

    path: TextNoNul


WorkspaceRequest = WorkspaceRequestConfigured | WorkspaceRequestCurrent | WorkspaceRequestLocalPath


class SessionSpec(Struct, frozen=True, kw_only=True):
    """What a session is made of; only the combinations of wire 7 exist."""

    execution_host: ExecutionHost
    prompt: PromptRef
    workspace: WorkspaceRequest
    liveness: Liveness
    persistence: Persistence
    permission_profile: NonEmptyString | UnsetType = UNSET
    start_immediately: bool
    display_name: NonEmptyString | UnsetType = UNSET
    labels: StringMap

    def __post_init__(self) -> None:
        match self.execution_host, self.liveness, self.persistence:
            case (
                ("daemon", LivenessDetached(), "durable")
                | ("daemon", LivenessOwnerBound(), _)
                | ("embedded", LivenessProcessBound(), _)
            ):
                pass
            case _:
                raise ValueError("execution_host, liveness and persistence do not go together")


class ObservedStopped(Struct, frozen=True, kw_only=True, tag_field="type", tag="stopped"):
    """Not loaded."""


class ObservedQueuedForSlot(Struct, frozen=True, kw_only=True, tag_field="type", tag="queued_for_slot"):
    """Wants to run, and waits for a slot."""


class ObservedStarting(Struct, frozen=True, kw_only=True, tag_field="type", tag="starting"):
    """Being loaded."""


class ObservedRecovering(Struct, frozen=True, kw_only=True, tag_field="type", tag="recovering"):
    """Being loaded after a loss."""


class ObservedIdle(Struct, frozen=True, kw_only=True, tag_field="type", tag="idle"):
    """Loaded, and doing nothing."""


class ObservedRunningTurn(Struct, frozen=True, kw_only=True, tag_field="type", tag="running_turn"):
    """Loaded, in a turn."""

    operation_id: OperationId


class ObservedCompacting(Struct, frozen=True, kw_only=True, tag_field="type", tag="compacting"):
    """Loaded, in a compaction."""

    operation_id: OperationId


class ObservedWaitingForPermission(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="waiting_for_permission"
):
    """In a turn that waits for a person."""

    permission_id: PermissionId


class ObservedStopping(Struct, frozen=True, kw_only=True, tag_field="type", tag="stopping"):
    """Being unloaded."""


class ObservedFailed(Struct, frozen=True, kw_only=True, tag_field="type", tag="failed"):
    """Cannot be loaded."""

    error: Error


ObservedState = (
    ObservedStopped
    | ObservedQueuedForSlot
    | ObservedStarting
    | ObservedRecovering
    | ObservedIdle
    | ObservedRunningTurn
    | ObservedCompacting
    | ObservedWaitingForPermission
    | ObservedStopping
    | ObservedFailed
)


class Session(Struct, frozen=True, kw_only=True):
    """The summary of a session; `updated_at` never precedes `created_at`."""

    id: SessionId
    creator: PrincipalId | UnsetType = UNSET
    created_at: Timestamp
    updated_at: Timestamp
    generation: Int62NonNeg
    spec: SessionSpec
    desired_state: DesiredState
    observed_state: ObservedState
    prompt_revision: PromptRevisionId | UnsetType = UNSET
    workspace_instance: WorkspaceInstanceId | UnsetType = UNSET
    active_operation: Operation | UnsetType = UNSET
    revision: Int64NonNeg
    latest_event_sequence: Int64NonNeg

    def __post_init__(self) -> None:
        check_order(self.created_at, self.updated_at)


class OwnerLease(Struct, frozen=True, kw_only=True):
    """Who keeps an owner-bound session alive, and until when; a grace time after the owner left."""

    generation: Int64NonNeg
    expires_at: Timestamp
    disconnect_grace_until: Timestamp | UnsetType = UNSET
    principal_id: PrincipalId | UnsetType = UNSET


class Attachment(Struct, frozen=True, kw_only=True):
    """A connection's hold on a session; a lease only for owners."""

    id: AttachmentId
    session_id: SessionId
    mode: AttachmentMode
    owner_lease: OwnerLease | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.mode != "owner_read_write" and self.owner_lease is not UNSET:
            raise ValueError("only an owner's attachment has a lease")


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything one reader may see of a session at one revision; its positions are those of `session`.

    The active calls are encoded live events of kind `tool.started`.
    """

    session: Session
    canonical_history: HistoryWindow
    archived_revisions: tuple[Int64NonNeg, ...] = ()
    effective_history: HistoryWindow | UnsetType = UNSET
    deferred_entries: tuple[HistoryEntry, ...]
    permissions: tuple[Permission, ...]
    grants: tuple[Grant, ...]
    jobs: tuple[Job, ...]
    schedules: tuple[Schedule, ...]
    active_tool_calls: tuple[Raw, ...]
    active_agent_calls: tuple[Raw, ...]
    halted: bool
    halt_reason: str | UnsetType = UNSET
    failure: Error | UnsetType = UNSET
    revision: Int64NonNeg
    latest_event_sequence: Int64NonNeg

    def __post_init__(self) -> None:
        if (self.revision, self.latest_event_sequence) != (
            self.session.revision,
            self.session.latest_event_sequence,
        ):
            raise ValueError("the positions of a snapshot must be those of its session")
