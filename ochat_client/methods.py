"""The 38 methods as values, so that a call is typed from its params to its result.

Owns: one `Method` per row of the protocol's table. Does not own: the shapes, which are the protocol's
(`ochat_site.dialects.ochat1.types.SHAPES`); the type arguments here repeat them for the type checker only.
"""

from __future__ import annotations

from typing import Generic, TypeVar, cast

from msgspec import Struct

from ochat_site.dialects.ochat1 import types as t
from sessions_app import records as r

P = TypeVar("P", bound=Struct)
R = TypeVar("R", bound=Struct)


class Method(Generic[P, R]):
    """A method: its name on the wire, and the struct types of its params and its result."""

    def __init__(self, name: t.MethodName) -> None:
        """Look the shapes up."""
        self.name = name
        shapes = t.SHAPES[name]  # A test compares them with the annotations below.
        self.params = cast("type[P]", shapes.params)
        self.result = cast("type[R]", shapes.result)


INITIALIZE: Method[t.InitializeParams, t.InitializeResult] = Method("protocol.initialize")
PING: Method[t.PingParams, t.PingResult] = Method("protocol.ping")
SERVER_INFO: Method[t.ServerInfoParams, t.ServerInfoResult] = Method("server.info")
SERVER_HEALTH: Method[t.HealthParams, t.HealthResult] = Method("server.health")
PROMPT_LIST: Method[t.PromptListParams, t.Page[r.Prompt]] = Method("prompt.list")
PROMPT_GET: Method[t.PromptGetParams, r.Prompt] = Method("prompt.get")
WORKSPACE_LIST: Method[t.WorkspaceListParams, t.Page[r.Workspace]] = Method("workspace.list")
WORKSPACE_GET: Method[t.WorkspaceGetParams, r.Workspace] = Method("workspace.get")
BLOB_READ: Method[t.BlobReadParams, r.BlobChunk] = Method("blob.read")
SESSION_CREATE: Method[t.SessionCreateParams, t.SessionCreateResult] = Method("session.create")
SESSION_LIST: Method[t.SessionListParams, t.Page[r.Session]] = Method("session.list")
SESSION_GET: Method[t.SessionGetParams, r.Snapshot] = Method("session.get")
SESSION_ATTACH: Method[t.SessionAttachParams, t.AttachResult] = Method("session.attach")
SESSION_DETACH: Method[t.SessionDetachParams, t.MutationResult] = Method("session.detach")
SESSION_RENEW_OWNER: Method[t.SessionRenewOwnerParams, t.SessionRenewOwnerResult] = Method(
    "session.renew_owner"
)
SESSION_START: Method[t.SessionStartParams, t.SessionMutationResult] = Method("session.start")
SESSION_STOP: Method[t.SessionStopParams, t.SessionMutationResult] = Method("session.stop")
SESSION_CANCEL_OPERATION: Method[t.SessionCancelOperationParams, t.SessionMutationResult] = Method(
    "session.cancel_operation"
)
SESSION_SEND_MESSAGE: Method[t.SessionSendMessageParams, t.SendMessageResult] = Method("session.send_message")
SESSION_COMPACT: Method[t.SessionCompactParams, t.SessionMutationResult] = Method("session.compact")
SESSION_DELETE_HISTORY: Method[t.SessionDeleteHistoryParams, t.SessionMutationResult] = Method(
    "session.delete_history"
)
SESSION_EXPORT: Method[t.SessionExportParams, t.SessionExportResult] = Method("session.export")
SESSION_RESET: Method[t.SessionResetParams, t.SessionMutationResult] = Method("session.reset")
SESSION_REBUILD: Method[t.SessionRebuildParams, t.SessionMutationResult] = Method("session.rebuild")
SESSION_UPGRADE_PROMPT: Method[t.SessionUpgradePromptParams, t.SessionMutationResult] = Method(
    "session.upgrade_prompt"
)
SESSION_DELETE: Method[t.SessionDeleteParams, t.SessionDeleteResult] = Method("session.delete")
PERMISSION_LIST: Method[t.PermissionListParams, t.Page[r.Permission]] = Method("permission.list")
PERMISSION_RESPOND: Method[t.PermissionRespondParams, t.PermissionRespondResult] = Method(
    "permission.respond"
)
GRANT_LIST: Method[t.GrantListParams, t.Page[r.Grant]] = Method("grant.list")
GRANT_REVOKE: Method[t.GrantRevokeParams, t.GrantRevokeResult] = Method("grant.revoke")
AUDIT_READ: Method[t.AuditReadParams, t.Page[r.AuditRecord]] = Method("audit.read")
JOB_LIST: Method[t.JobListParams, t.Page[r.Job]] = Method("job.list")
JOB_GET: Method[t.JobGetParams, r.Job] = Method("job.get")
JOB_CANCEL: Method[t.JobCancelParams, t.JobCancelResult] = Method("job.cancel")
SCHEDULE_LIST: Method[t.ScheduleListParams, t.Page[r.Schedule]] = Method("schedule.list")
SCHEDULE_GET: Method[t.ScheduleGetParams, r.Schedule] = Method("schedule.get")
SCHEDULE_CREATE: Method[t.ScheduleCreateParams, t.ScheduleMutationResult] = Method("schedule.create")
SCHEDULE_CANCEL: Method[t.ScheduleCancelParams, t.ScheduleMutationResult] = Method("schedule.cancel")
