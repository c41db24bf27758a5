"""The closed set of refusals: one exception per error code (behaviour 16.1, wire 3).

Owns: the codes as classes, whether a retry usually makes sense, and the way between a refusal and its wire
record. Does not own: who answers with it, which is the dispatcher of the transport layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from sessions_app.encoding import encode
from sessions_app.records import Error, ErrorCode


class Refusal(Exception):
    """The product says no: a code, one sentence for people, and whether the same call may work later.

    `message` and `data` go to the client: never exception text, statements, paths or secrets.
    """

    code: ClassVar[ErrorCode]
    retryable: bool = False
    recorded: bool = False
    """Whether the audit trail has it already: set by the transaction that stored this refusal."""

    def __init__(
        self, message: str, *, retryable: bool | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        if retryable is not None:
            self.retryable = retryable
        self.data: dict[str, Any] = dict(data or {})


class InvalidRequest(Refusal):
    """What was sent cannot be read, or names something that is not there and has no code of its own."""

    code = "invalid_request"


class MethodNotFound(Refusal):
    """No such method, route or verb."""

    code = "method_not_found"


class Unauthenticated(Refusal):
    """Missing or bad credentials."""

    code = "unauthenticated"


class PermissionDenied(Refusal):
    """A scope, a share or write access is missing, or the attachment belongs to another connection."""

    code = "permission_denied"


class SessionNotFound(Refusal):
    """No session has this id."""

    code = "session_not_found"


class PromptNotFound(Refusal):
    """No prompt has this id."""

    code = "prompt_not_found"


class WorkspaceNotFound(Refusal):
    """No workspace has this id."""

    code = "workspace_not_found"


class InvalidState(Refusal):
    """The session is in another state of its life; retryable only for a message to one that is not loaded."""

    code = "invalid_state"


class AlreadyResolved(Refusal):
    """The permission, grant or schedule has reached its end."""

    code = "already_resolved"


class ResourceLimit(Refusal):
    """A bound is reached. Quotas free up again, sizes never do: each place says which it is."""

    code = "resource_limit"

    def __init__(self, message: str, *, retryable: bool, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, retryable=retryable, data=data)


class WorkspaceUnavailable(Refusal):
    """The workspace exists and cannot be used."""

    code = "workspace_unavailable"


class PromptUnavailable(Refusal):
    """The prompt exists and cannot be used."""

    code = "prompt_unavailable"


class ManifestUnauthorized(Refusal):
    """A shell manifest without a grant."""

    code = "manifest_unauthorized"


class ApprovalRequired(Refusal):
    """Reserved: part of the closed set, produced by nothing."""

    code = "approval_required"


class IdempotencyConflict(Refusal):
    """The idempotency key was used with other params."""

    code = "idempotency_conflict"


class SnapshotRequired(Refusal):
    """The events after the reader's position cannot be replayed; not retryable with the same old cursor."""

    code = "snapshot_required"
    retryable = True


class OperationNotFound(Refusal):
    """No operation is active, or the named one has ended."""

    code = "operation_not_found"


class PersistenceError(Refusal):
    """The store failed, nothing was committed; not retryable while a session is being created."""

    code = "persistence_error"
    retryable = True


class Interrupted(Refusal):
    """The outcome is unknown, because the process that had the work is gone."""

    code = "interrupted"


class Conflict(Refusal):
    """A stale revision or generation, an active operation, or an owner that is present."""

    code = "conflict"


class InternalError(Refusal):
    """A fault of ours; retryable where a worker crashed and its work can be asked for again."""

    code = "internal_error"


class IncompatibleProtocol(Refusal):
    """No common version, or a call before a successful initialize."""

    code = "incompatible_protocol"


class CursorExpired(Refusal):
    """Reserved by the Ochat protocol; other dialects say it of a position that has left the log."""

    code = "cursor_expired"


class BlobUnavailable(Refusal):
    """The blob is missing or expired."""

    code = "blob_unavailable"


class LeaseStale(Refusal):
    """The owner lease expired, was given up, or is of another generation."""

    code = "lease_stale"


class ConfigurationInvalid(Refusal):
    """The catalog lacks something the call needs, such as a permission profile."""

    code = "configuration_invalid"


class StoreLocked(Refusal):
    """The store's lock was not got in time."""

    code = "store_locked"
    retryable = True


class StoreSchemaTooNew(Refusal):
    """The store was written by a newer release."""

    code = "store_schema_too_new"


class MigrationRequired(Refusal):
    """The store was written by an older release."""

    code = "migration_required"


class JournalCorrupt(Refusal):
    """The stored log fails its checks."""

    code = "journal_corrupt"


class ServerShuttingDown(Refusal):
    """The process takes no new work; another one, or this one after its restart, does."""

    code = "server_shutting_down"
    retryable = True


class CommandQueueFull(Refusal):
    """The session's lock was not got in time."""

    code = "command_queue_full"
    retryable = True


BY_CODE: Mapping[ErrorCode, type[Refusal]] = MappingProxyType(
    {refusal.code: refusal for refusal in Refusal.__subclasses__()}
)
"""The class of each code; total, which a test asserts."""


def to_error(refusal: Refusal) -> Error:
    """Return the wire record of a refusal."""
    return Error(
        code=refusal.code,
        message=refusal.message,
        retryable=refusal.retryable,
        data=msgspec.Raw(encode(refusal.data)),
    )


def from_error(error: Error) -> Refusal:
    """Return the refusal that a stored record stands for, to be raised again (behaviour 11)."""
    data: dict[str, Any] = msgspec.json.decode(error.data)
    return BY_CODE[error.code](error.message, retryable=error.retryable, data=data)
