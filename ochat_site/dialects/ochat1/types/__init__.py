"""Params and results of the 38 methods (wire 2 to 12), and which method has which.

Owns: one struct per `…Params` and `…Result` of the protocol's schema. Does not own: the records inside them
(`sessions_app.records`), the rules around a method (`ochat_site.rpc.methods`), decoding bytes (`codec`). The
typed client shares this package, so it knows no Django; import from the package, not from its parts.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from ochat_site.dialects.ochat1.types import params, results
from ochat_site.dialects.ochat1.types.params import *  # noqa: F403 - one namespace, split by direction only
from ochat_site.dialects.ochat1.types.results import *  # noqa: F403 - as above
from sessions_app import records

MethodName = Literal[
    "protocol.initialize",
    "protocol.ping",
    "server.info",
    "server.health",
    "prompt.list",
    "prompt.get",
    "workspace.list",
    "workspace.get",
    "blob.read",
    "session.create",
    "session.list",
    "session.get",
    "session.attach",
    "session.detach",
    "session.renew_owner",
    "session.start",
    "session.stop",
    "session.cancel_operation",
    "session.send_message",
    "session.compact",
    "session.delete_history",
    "session.export",
    "session.reset",
    "session.rebuild",
    "session.upgrade_prompt",
    "session.delete",
    "permission.list",
    "permission.respond",
    "grant.list",
    "grant.revoke",
    "audit.read",
    "job.list",
    "job.get",
    "job.cancel",
    "schedule.list",
    "schedule.get",
    "schedule.create",
    "schedule.cancel",
]


class Shapes(NamedTuple):
    """The struct types of one method."""

    params: type[Struct]
    result: Any
    """A struct type; Any, because a page is a generic alias and no class."""


SHAPES: Mapping[MethodName, Shapes] = MappingProxyType(
    {
        "protocol.initialize": Shapes(params.InitializeParams, results.InitializeResult),
        "protocol.ping": Shapes(params.PingParams, results.PingResult),
        "server.info": Shapes(params.ServerInfoParams, results.ServerInfoResult),
        "server.health": Shapes(params.HealthParams, results.HealthResult),
        "prompt.list": Shapes(params.PromptListParams, results.PromptPage),
        "prompt.get": Shapes(params.PromptGetParams, records.Prompt),
        "workspace.list": Shapes(params.WorkspaceListParams, results.WorkspacePage),
        "workspace.get": Shapes(params.WorkspaceGetParams, records.Workspace),
        "blob.read": Shapes(params.BlobReadParams, records.BlobChunk),
        "session.create": Shapes(params.SessionCreateParams, results.SessionCreateResult),
        "session.list": Shapes(params.SessionListParams, results.SessionPage),
        "session.get": Shapes(params.SessionGetParams, records.Snapshot),
        "session.attach": Shapes(params.SessionAttachParams, results.AttachResult),
        "session.detach": Shapes(params.SessionDetachParams, results.MutationResult),
        "session.renew_owner": Shapes(params.SessionRenewOwnerParams, results.SessionRenewOwnerResult),
        "session.start": Shapes(params.SessionStartParams, results.SessionMutationResult),
        "session.stop": Shapes(params.SessionStopParams, results.SessionMutationResult),
        "session.cancel_operation": Shapes(
            params.SessionCancelOperationParams, results.SessionMutationResult
        ),
        "session.send_message": Shapes(params.SessionSendMessageParams, results.SendMessageResult),
        "session.compact": Shapes(params.SessionCompactParams, results.SessionMutationResult),
        "session.delete_history": Shapes(params.SessionDeleteHistoryParams, results.SessionMutationResult),
        "session.export": Shapes(params.SessionExportParams, results.SessionExportResult),
        "session.reset": Shapes(params.SessionResetParams, results.SessionMutationResult),
        "session.rebuild": Shapes(params.SessionRebuildParams, results.SessionMutationResult),
        "session.upgrade_prompt": Shapes(params.SessionUpgradePromptParams, results.SessionMutationResult),
        "session.delete": Shapes(params.SessionDeleteParams, results.SessionDeleteResult),
        "permission.list": Shapes(params.PermissionListParams, results.PermissionPage),
        "permission.respond": Shapes(params.PermissionRespondParams, results.PermissionRespondResult),
        "grant.list": Shapes(params.GrantListParams, results.GrantPage),
        "grant.revoke": Shapes(params.GrantRevokeParams, results.GrantRevokeResult),
        "audit.read": Shapes(params.AuditReadParams, results.AuditPage),
        "job.list": Shapes(params.JobListParams, results.JobPage),
        "job.get": Shapes(params.JobGetParams, records.Job),
        "job.cancel": Shapes(params.JobCancelParams, results.JobCancelResult),
        "schedule.list": Shapes(params.ScheduleListParams, results.SchedulePage),
        "schedule.get": Shapes(params.ScheduleGetParams, records.Schedule),
        "schedule.create": Shapes(params.ScheduleCreateParams, results.ScheduleMutationResult),
        "schedule.cancel": Shapes(params.ScheduleCancelParams, results.ScheduleMutationResult),
    }
)
"""Which method has which params and result, in the order of the protocol; total over `MethodName`."""
