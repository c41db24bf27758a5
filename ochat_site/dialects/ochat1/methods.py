"""The rows of this dialect in the method table: what each handled method asks of its caller (methods.json).

Owns: one row per handled method. Does not own: params and results (`types.SHAPES`), the handlers (`handlers`), or the
checks that a row drives (`ochat_site.rpc.dispatch`).

A method is added by its row and its handler, and is in no other list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from msgspec import UNSET

from ochat_site.dialects.ochat1.handlers import (
    attachments,
    audit,
    blobs,
    catalog,
    edits,
    jobs,
    permissions,
    server,
    sessions,
)
from ochat_site.dialects.ochat1.types import SHAPES
from ochat_site.rpc.context import Method, no_scopes

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ochat_site.dialects.ochat1.types import MethodName, SessionAttachParams, SessionCreateParams
    from ochat_site.rpc.context import AttachmentRule, Handler, Idempotency, Runs
    from sessions_app.records import AttachmentMode, Scope

MODE_SCOPES: Mapping[AttachmentMode, Sequence[Scope]] = MappingProxyType(
    {
        "read_only": ("session.transcript.read",),
        "read_write": ("session.transcript.read", "session.message.send"),
        "owner_read_write": ("session.transcript.read", "session.message.send", "session.own"),
    }
)
"""What an attachment of each mode asks for (behaviour 5.1)."""


def _mode_scopes(params: SessionCreateParams | SessionAttachParams) -> Sequence[Scope]:
    return () if params.requested_mode is UNSET else MODE_SCOPES[params.requested_mode]


def _plain(name: MethodName, handler: Handler, *, runs: Runs, opens: bool = False) -> Method:
    """Return the row of a method about the server, which asks for no scope."""
    shapes = SHAPES[name]
    return Method(
        name=name, params=shapes.params, result=shapes.result, handler=handler, runs=runs, opens=opens
    )


def _read(
    name: MethodName,
    handler: Handler,
    scope: Scope,
    *,
    runs: Runs = "snapshot",
    attachment: AttachmentRule = "none",
) -> Method:
    shapes = SHAPES[name]
    return Method(
        name=name,
        params=shapes.params,
        result=shapes.result,
        handler=handler,
        runs=runs,
        scope=scope,
        attachment=attachment,
    )


def _command(
    name: MethodName,
    handler: Handler,
    scope: Scope,
    *,
    attachment: AttachmentRule = "writable",
    idempotency: Idempotency = "standard",
    more_scopes: Callable[[Any], Sequence[Scope]] = no_scopes,
    new_work: bool = False,
) -> Method:
    shapes = SHAPES[name]
    return Method(
        name=name,
        params=shapes.params,
        result=shapes.result,
        handler=handler,
        runs="command",
        scope=scope,
        more_scopes=more_scopes,
        idempotency=idempotency,
        attachment=attachment,
        new_work=new_work,
    )


ROWS: Sequence[Method] = (
    _plain("protocol.initialize", server.protocol_initialize, runs="thread", opens=True),
    _plain("protocol.ping", server.protocol_ping, runs="loop"),
    _plain("server.info", server.server_info, runs="loop"),
    _plain("server.health", server.server_health, runs="thread"),
    _read("prompt.list", catalog.prompt_list, "prompt.list"),
    _read("prompt.get", catalog.prompt_get, "prompt.list"),
    _read("workspace.list", catalog.workspace_list, "workspace.list"),
    _read("workspace.get", catalog.workspace_get, "workspace.list"),
    _read("blob.read", blobs.blob_read, "session.transcript.read", runs="thread", attachment="any"),
    _command(
        "session.create",
        sessions.session_create,
        "session.create",
        attachment="none",
        more_scopes=_mode_scopes,
        new_work=True,
    ),
    _read("session.list", sessions.session_list, "session.transcript.read"),
    _read("session.get", sessions.session_get, "session.transcript.read"),
    _command(
        "session.attach",
        attachments.session_attach,
        "session.transcript.read",
        attachment="none",
        more_scopes=_mode_scopes,
    ),
    _command("session.detach", attachments.session_detach, "session.transcript.read", attachment="any"),
    _command("session.renew_owner", attachments.session_renew_owner, "session.transcript.read"),
    _command("session.start", sessions.session_start, "session.message.send", new_work=True),
    _command("session.stop", sessions.session_stop, "session.stop"),
    _command("session.cancel_operation", sessions.session_cancel_operation, "session.message.send"),
    _command(
        "session.send_message",
        sessions.session_send_message,
        "session.message.send",
        idempotency="protected",
        new_work=True,
    ),
    _command("session.compact", edits.session_compact, "session.message.send", idempotency="protected"),
    _command(
        "session.delete_history",
        edits.session_delete_history,
        "session.message.send",
        idempotency="protected",
    ),
    _read("session.export", edits.session_export, "session.transcript.read", runs="thread", attachment="any"),
    _command("session.reset", edits.session_reset, "session.own", idempotency="protected"),
    _command("session.rebuild", edits.session_rebuild, "session.own", idempotency="protected"),
    _command("session.upgrade_prompt", edits.session_upgrade_prompt, "session.own", idempotency="protected"),
    _command("session.delete", edits.session_delete, "session.delete", idempotency="protected"),
    _read("permission.list", permissions.permission_list, "security.read"),
    _command("permission.respond", permissions.permission_respond, "permission.respond"),
    _read("grant.list", permissions.grant_list, "grant.manage"),
    _command("grant.revoke", permissions.grant_revoke, "grant.manage"),
    _read("audit.read", audit.audit_read, "audit.read", runs="thread"),
    _read("job.list", jobs.job_list, "session.message.send"),
    _read("job.get", jobs.job_get, "session.message.send"),
    _command("job.cancel", jobs.job_cancel, "session.message.send", idempotency="protected"),
    _read("schedule.list", jobs.schedule_list, "session.message.send"),
    _read("schedule.get", jobs.schedule_get, "session.message.send"),
    _command("schedule.create", jobs.schedule_create, "session.message.send", idempotency="protected"),
    _command("schedule.cancel", jobs.schedule_cancel, "session.message.send", idempotency="protected"),
)
"""In the order of the protocol."""
