"""The closed vocabularies of the protocol, named as in its schema (wire 1, 3, 4).

Owns: which words exist. Does not own: what they mean, which is said where they are used.
"""

from __future__ import annotations

from typing import Literal

ErrorCode = Literal[
    "invalid_request",
    "method_not_found",
    "unauthenticated",
    "permission_denied",
    "session_not_found",
    "prompt_not_found",
    "workspace_not_found",
    "invalid_state",
    "already_resolved",
    "resource_limit",
    "workspace_unavailable",
    "prompt_unavailable",
    "manifest_unauthorized",
    "approval_required",
    "idempotency_conflict",
    "snapshot_required",
    "operation_not_found",
    "persistence_error",
    "interrupted",
    "conflict",
    "internal_error",
    "incompatible_protocol",
    "cursor_expired",
    "blob_unavailable",
    "lease_stale",
    "configuration_invalid",
    "store_locked",
    "store_schema_too_new",
    "migration_required",
    "journal_corrupt",
    "server_shutting_down",
    "command_queue_full",
]

Scope = Literal[
    "prompt.list",
    "workspace.list",
    "session.create",
    "session.transcript.read",
    "session.message.send",
    "session.own",
    "permission.respond",
    "security.read",
    "grant.manage",
    "audit.read",
    "session.stop",
    "session.delete",
    "configuration.admin",
    "diagnostics.read",
]
"""In the order in which lists of scopes are written."""

ExecutionHost = Literal["daemon", "embedded"]
StopMode = Literal["graceful", "cancel"]
Persistence = Literal["durable", "transient"]
DesiredState = Literal["running", "stopped"]
AttachmentMode = Literal["owner_read_write", "read_write", "read_only"]
ObservedStateType = Literal[
    "stopped",
    "queued_for_slot",
    "starting",
    "recovering",
    "idle",
    "running_turn",
    "compacting",
    "waiting_for_permission",
    "stopping",
    "failed",
]
MessageContentKind = Literal["plain_text", "chatmd"]
ExportFormat = Literal["chatmd", "json"]
RebuildPromptChoice = Literal["pinned", "current_catalog"]
DeletePolicy = Literal["archive", "remove"]
BlobKind = Literal["file", "image", "audio", "binary"]
BlobInputSource = Literal["stored", "inline_base64"]
AuditLevel = Literal["info", "warning", "error"]
GrantScope = Literal["exact_session", "prefix_session", "durable_exact"]
GrantState = Literal["active", "revoked", "expired"]
HealthStatus = Literal["healthy", "degraded", "unhealthy"]
HistoryRole = Literal["system", "user", "assistant", "tool"]
HistoryEntryKind = Literal["message", "reasoning", "tool_call", "tool_output", "other"]
HistoryProvenanceType = Literal["canonical", "moderator_inserted", "moderator_replaced"]
HistoryWindowPosition = Literal["tail", "after", "before", "cursor"]
EventEncoding = Literal["json", "ndjson"]
JobKind = Literal[
    "model_call", "nested_agent", "scheduled_event", "async_tool", "shell_process", "compaction"
]
JobStatusType = Literal[
    "queued", "running", "waiting_permission", "succeeded", "failed", "cancelled", "interrupted"
]
RetryPolicyType = Literal["never", "safe_retry", "idempotent"]
JobDeliveryType = Literal["not_required", "pending", "delivered"]
TurnStartReason = Literal[
    "user_submit", "moderator_request", "idle_followup", "recovery_retry", "administrative"
]
OperationKindType = Literal["turn", "compaction"]
OperationStateType = Literal[
    "starting", "running", "cancelling", "completed", "failed", "cancelled", "interrupted"
]
PermissionState = Literal["pending", "approved", "denied", "expired", "cancelled"]
PermissionChoice = Literal["approve_once", "approve_session", "approve_prefix", "durable_exact", "deny"]
ScheduleMisfire = Literal["deliver_once_immediately", "skip_if_expired", "fail"]
ScheduleStatusType = Literal["scheduled", "delivering", "delivered", "cancelled", "failed"]
ScheduleDueType = Literal["at", "after_ms"]
WorkspaceKind = Literal["physical", "temporary"]
TemporaryLocation = Literal["system_tmp", "session_dir"]
WorkspaceCleanup = Literal["on_session_stop", "on_session_delete", "retain"]
WorkspaceAccess = Literal["read_only", "shared_write", "exclusive"]
WorkspaceOverflow = Literal["reject", "queue"]
Availability = Literal["available", "unavailable"]
LivenessType = Literal["detached", "owner_bound", "process_bound"]
PromptRefType = Literal["catalog", "local_path"]
WorkspaceRequestType = Literal["configured", "current", "local_path"]
MessageDisposition = Literal["started", "deferred"]
AttachReplayType = Literal["current", "events", "snapshot"]
EventVisibility = Literal["full", "redacted", "hidden"]
DurableEventKind = Literal[
    "session.created",
    "session.state_changed",
    "session.updated",
    "attachment.owner_changed",
    "history.message_deferred",
    "history.appended",
    "history.replaced",
    "moderator.overlay_changed",
    "moderator.notification",
    "permission.requested",
    "permission.resolved",
    "grant.created",
    "grant.revoked",
    "operation.started",
    "operation.completed",
    "operation.failed",
    "operation.cancelled",
    "operation.interrupted",
    "job.state_changed",
    "schedule.created",
    "schedule.state_changed",
    "schedule.cancelled",
    "prompt.upgraded",
    "workspace.state_changed",
    "session.error",
]
RecoverableEventKind = Literal[
    "provider.stream",
    "sourced.stream",
    "history.correlated_stream",
    "tool.started",
    "tool.progress",
    "tool.trace",
    "tool.finished",
    "agent.call_classified",
    "agent.call_progress",
    "activity",
    "compaction.progress",
]
ToolCallKind = Literal["function", "custom"]
ToolOutcome = Literal["returned", "raised", "cancelled"]
ToolProgressChannel = Literal["assistant", "reasoning", "stdout", "stderr", "activity"]
ToolProgressUpdate = Literal["append", "replace"]
AgentPageKind = Literal["subagent", "shell_script"]
