"""Making a session (behaviour 4.1, 4.2).

Owns: the checks of `session.create` in their order and the first revision of a session. Does not own: the catalog, workspaces,
or attachments beyond asking for one.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import msgspec

from sessions_app import capacity, embedding, ids, ledger, limits, pinned, rows, workspaces
from sessions_app.commands import attachments, entries
from sessions_app.encoding import encode
from sessions_app.errors import (
    ConfigurationInvalid,
    InvalidRequest,
    PermissionDenied,
    PromptNotFound,
    PromptUnavailable,
    ResourceLimit,
    WorkspaceNotFound,
    WorkspaceUnavailable,
)
from sessions_app.models import (
    ProfileRevision,
    PromptDefinition,
    PromptRevision,
    Session,
    SessionLabel,
    WorkspaceDefinition,
    WorkspaceInstance,
    label_digest,
)
from sessions_app.records import (
    Attachment,
    AttachmentMode,
    LivenessOwnerBound,
    PromptRefLocalPath,
    SessionSpec,
    WorkspaceRequestConfigured,
    WorkspaceRequestLocalPath,
)
from sessions_app.records import Session as SessionRecord
from sessions_app.summaries import session_record

if TYPE_CHECKING:
    from sessions_app.embedding import Embedding
    from sessions_app.ledger import Txn
    from sessions_app.receipts import Call
    from sessions_app.records import PromptRef, WorkspaceRequest


class Created(msgspec.Struct, frozen=True, kw_only=True):
    """A new session, and the attachment that was asked for with it."""

    session: SessionRecord
    attachment: Attachment | None
    revision: int
    latest_event_sequence: int


def create_session(call: Call, spec: SessionSpec, mode: AttachmentMode | None) -> Created:
    """Make a session, and attach the caller's connection to it in the next revision if `mode` is given.

    Raises, in this order: ResourceLimit for a spec above 256 KiB; InvalidRequest for a host that is not this server;
    PromptUnavailable for a local path, PromptNotFound,
    PromptUnavailable for a disabled or broken prompt; WorkspaceUnavailable for anything but a configured workspace (in an
    embedded host, paths may name the prompt and the workspace that it was started with),
    WorkspaceNotFound, PermissionDenied where the prompt does not allow it; ConfigurationInvalid without a permission profile;
    WorkspaceUnavailable and PersistenceError from preparing the workspace; ResourceLimit (retryable) for one that is to start
    and may not wait for capacity. Nothing is left of a refused one.
    """
    made: list[WorkspaceInstance] = []

    def body(txn: Txn) -> Created:
        session = _first_revision(txn, spec, made)
        attachment = None
        if mode is not None:
            txn.next_revision()
            attachment = attachments.open_attachment(txn, mode).attachment
        return Created(
            session=session_record(session),
            attachment=attachment,
            revision=session.revision,
            latest_event_sequence=session.latest_sequence,
        )

    try:
        with capacity.building() if spec.start_immediately else nullcontext():
            return ledger.command(call, "", Created, body)
    except BaseException:
        for instance in made:
            workspaces.discard(instance)
        raise


def _first_revision(txn: Txn, spec: SessionSpec, made: list[WorkspaceInstance]) -> Session:
    """Check the spec and make the session; what its workspace left on the disk is noted in `made`."""
    encoded = encode(spec)
    if len(encoded) > limits.MAX_SPEC_BYTES:
        raise ResourceLimit("what a session is created with is at most 256 KiB", retryable=False)
    host = embedding.current()
    if host is None and spec.execution_host != "daemon":
        raise InvalidRequest("this server runs daemon sessions only")
    if host is not None and spec.execution_host != "embedded":
        raise InvalidRequest("this host runs embedded sessions only")
    prompt = _prompt(spec.prompt, host)
    definition = _workspace(spec.workspace, prompt, host)
    revision, profile = (
        _REVISION.first(prompt.current_revision_id),
        _PROFILE.first(prompt.profile_revision_id),
    )
    if revision is None:
        raise PromptUnavailable("the prompt is not available")
    if profile is None:
        raise ConfigurationInvalid("the permission profile of the prompt is not configured")
    session_id = ids.new_id("ses")
    made.append(workspaces.prepare(txn, definition, session_id))
    session = Session(
        id=session_id,
        creator=txn.caller.principal_id or "",
        created_at=txn.now,
        updated_at=txn.now,
        spec=encoded,
        liveness=str(spec.liveness.__struct_config__.tag),
        transient=spec.persistence == "transient",
        prompt=prompt,
        prompt_revision=revision,
        profile=profile,
        workspace=definition,
        workspace_instance=made[-1],
        desired="running" if spec.start_immediately else "stopped",
        observed="stopped",
    )
    if isinstance(spec.liveness, LivenessOwnerBound):
        session.disconnect_grace_ms = spec.liveness.disconnect_grace_ms
        session.stop_mode = spec.liveness.stop_mode
    txn.begin_session(session)
    entries.append(txn, pinned.initial_entries(revision), initial=True)
    rows.insert([SessionLabel(session=session, digest=label_digest(*label)) for label in spec.labels.items()])
    if spec.start_immediately:
        session.observed = "idle" if capacity.take(txn, session, queue=True) else "queued_for_slot"
    txn.emit("session.created", lambda: session_record(session))
    return session


def _prompt(wanted: PromptRef, host: Embedding | None) -> PromptDefinition:
    if not isinstance(wanted, PromptRefLocalPath):
        prompt_id = wanted.prompt_id
    elif host is None:
        raise PromptUnavailable("this server runs prompts of its catalog only")
    elif not host.is_prompt(wanted.path):
        raise PromptUnavailable("this host runs the prompt that it was started with")
    else:
        prompt_id = host.prompt_id
    prompt = _PROMPT.first(prompt_id)
    if prompt is None:
        raise PromptNotFound("no such prompt")
    if not (prompt.enabled and prompt.current_revision_id) or prompt.unavailable_reason:
        raise PromptUnavailable("the prompt is not available")
    return prompt


def _workspace(
    wanted: WorkspaceRequest, prompt: PromptDefinition, host: Embedding | None
) -> WorkspaceDefinition:
    if isinstance(wanted, WorkspaceRequestConfigured):
        workspace_id = wanted.workspace_id
    elif host is None:
        raise WorkspaceUnavailable("this server runs sessions in configured workspaces only")
    elif isinstance(wanted, WorkspaceRequestLocalPath) and not host.is_workspace(wanted.path):
        raise WorkspaceUnavailable("this host works in the folder that it was started for")
    else:
        workspace_id = host.workspace_id
    definition = _WORKSPACE.first(workspace_id)
    if definition is None:
        raise WorkspaceNotFound("no such workspace")
    if not _ALLOWED.any(prompt.id, definition.id):
        raise PermissionDenied("the prompt does not allow this workspace")
    return definition


_PROMPT = rows.Select(PromptDefinition, "id = %s AND NOT removed")
_REVISION = rows.Select(PromptRevision, "id = %s")
_PROFILE = rows.Select(ProfileRevision, "digest = %s")
_WORKSPACE = rows.Select(WorkspaceDefinition, "id = %s AND NOT removed")
_ALLOWED = rows.Select(
    PromptDefinition.allowed_workspaces.through, "promptdefinition_id = %s AND workspacedefinition_id = %s"
)
