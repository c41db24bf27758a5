"""Rows as records: the one place where what is stored becomes what the protocol says.

Owns: the mapping of a loaded row to its record. Does not own: loading rows (`queries`, `ledger`) or hiding parts of a record
from a reader (`projection`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from sessions_app import ids, records
from sessions_app.clock import wire_time
from sessions_app.events import LifecycleChange

if TYPE_CHECKING:
    from sessions_app import models

_CANONICAL = records.HistoryProvenanceCanonical()


def session_record(session: models.Session) -> records.Session:
    """Return the summary of a session whose active operation is loaded."""
    operation = session.active_operation
    return records.Session(
        id=session.id,
        creator=session.creator or UNSET,
        created_at=wire_time(session.created_at),
        updated_at=wire_time(session.updated_at),
        generation=session.generation,
        spec=spec_record(session),
        desired_state=cast("records.DesiredState", session.desired),
        observed_state=observed_record(session),
        prompt_revision=session.prompt_revision_id,
        workspace_instance=session.workspace_instance_id or UNSET,
        active_operation=operation_record(operation) if operation else UNSET,
        revision=session.revision,
        latest_event_sequence=session.latest_sequence,
    )


def spec_record(session: models.Session) -> records.SessionSpec:
    """Return what the session was created with."""
    return msgspec.json.decode(session.spec, type=records.SessionSpec)


_OBSERVED: Mapping[str, Callable[[models.Session], records.ObservedState]] = MappingProxyType(
    {
        "stopped": lambda _: records.ObservedStopped(),
        "queued_for_slot": lambda _: records.ObservedQueuedForSlot(),
        "starting": lambda _: records.ObservedStarting(),
        "idle": lambda _: records.ObservedIdle(),
        "running_turn": lambda s: records.ObservedRunningTurn(operation_id=s.active_operation_id or ""),
        "compacting": lambda s: records.ObservedCompacting(operation_id=s.active_operation_id or ""),
        "waiting_for_permission": lambda s: records.ObservedWaitingForPermission(permission_id=s.waiting_on),
        "failed": lambda s: records.ObservedFailed(error=error_record(s.failure)),
    }
)
"""Every state this server produces; `recovering` and `stopping` are never emitted (behaviour 4.3)."""


def observed_record(session: models.Session) -> records.ObservedState:
    """Return what is happening in the session."""
    return _OBSERVED[session.observed](session)


def lifecycle_record(session: models.Session) -> LifecycleChange:
    """Return the payload of `session.state_changed`."""
    return LifecycleChange(
        desired_state=cast("records.DesiredState", session.desired), observed_state=observed_record(session)
    )


_OPERATION_STATES: Mapping[str, Callable[[models.Operation], records.OperationState]] = MappingProxyType(
    {
        "starting": lambda _: records.OperationStarting(),
        "running": lambda _: records.OperationRunning(),
        "cancelling": lambda _: records.OperationCancelling(),
        "completed": lambda _: records.OperationCompleted(),
        "failed": lambda o: records.OperationFailed(error=error_record(o.error)),
        "cancelled": lambda _: records.OperationCancelled(),
        "interrupted": lambda o: records.OperationInterrupted(reason=o.interruption, retryable=o.retryable),
    }
)


def operation_record(operation: models.Operation) -> records.Operation:
    """Return an operation as it stands."""
    return records.Operation(
        id=operation.id,
        generation=operation.generation,
        kind=(
            records.OperationKindTurn(reason=cast("records.TurnStartReason", operation.reason))
            if operation.kind == "turn"
            else records.OperationKindCompaction()
        ),
        state=_OPERATION_STATES[operation.state](operation),
        started_at=wire_time(operation.started_at),
        updated_at=wire_time(operation.updated_at),
    )


def attachment_record(attachment: models.Attachment, session: models.Session) -> records.Attachment:
    """Return an attachment, with the owner lease if it is the one that holds it."""
    holds = session.owner_attachment == attachment.id
    return records.Attachment(
        id=attachment.id,
        session_id=session.id,
        mode=cast("records.AttachmentMode", attachment.mode),
        owner_lease=lease_record(session) if holds else UNSET,
    )


def lease_record(session: models.Session) -> records.OwnerLease | UnsetType:
    """Return the owner lease of a session, if it has one."""
    if session.lease_expires_at is None:
        return UNSET
    return records.OwnerLease(
        generation=session.lease_generation,
        expires_at=wire_time(session.lease_expires_at),
        disconnect_grace_until=wire_time(session.lease_grace_until) if session.lease_grace_until else UNSET,
        principal_id=session.owner_principal or UNSET,
    )


def entry_record(entry: models.HistoryEntry | models.DeferredEntry) -> records.HistoryEntry:
    """Return one entry as every reader with full sight gets it."""
    return records.HistoryEntry(
        id=ids.history_id(entry.session_id, entry.number),
        role=cast("records.HistoryRole", entry.role),
        kind=cast("records.HistoryEntryKind", entry.kind),
        payload=Raw(entry.payload),
        provenance=_CANONICAL,
        redacted=False,
    )


def blob_record(blob: models.Blob) -> records.BlobMetadata:
    """Return what is told of a blob."""
    return records.BlobMetadata(
        id=blob.id,
        kind=cast("records.BlobKind", blob.kind),
        media_type=blob.media_type,
        byte_length=blob.byte_length,
        digest=blob.sha256,
        display_name=blob.display_name or UNSET,
    )


def error_record(stored: bytes | None) -> records.Error:
    """Return a stored error."""
    return msgspec.json.decode(stored or b"", type=records.Error)
