"""Principals, permissions, grants and audit records (behaviour 2, 7, 15)."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from sessions_app.records.base import (
    GrantId,
    Int62NonNeg,
    Int64NonNeg,
    NonEmptyString,
    OperationId,
    PermissionId,
    PrincipalId,
    SessionId,
    StringMap,
    Timestamp,
    check_unique,
)
from sessions_app.records.enums import (
    AuditLevel,
    GrantScope,
    GrantState,
    PermissionChoice,
    PermissionState,
    Scope,
)


class Principal(Struct, frozen=True, kw_only=True):
    """Who a connection acts for; scopes in the order of `Scope`."""

    id: PrincipalId
    authentication_kind: Annotated[str, Meta(pattern=r"^[a-z0-9_.-]+\Z")]
    scopes: tuple[Scope, ...]
    attributes: StringMap = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_unique(self.scopes, "scope")


class PermissionResolution(Struct, frozen=True, kw_only=True):
    """How a request ended; no principal when nobody answered."""

    choice: PermissionChoice
    principal_id: PrincipalId | UnsetType = UNSET
    resolved_at: Timestamp
    reason: str | UnsetType = UNSET


class Permission(Struct, frozen=True, kw_only=True):
    """A request for a person's word on one tool call; resolved exactly when it is no longer pending."""

    id: PermissionId
    session_id: SessionId
    generation: Int62NonNeg
    operation_id: OperationId
    call_id: NonEmptyString
    tool_name: NonEmptyString
    runtime_identity: str | UnsetType = UNSET
    invocation_display: NonEmptyString
    rationale: str | UnsetType = UNSET
    effects: tuple[str, ...]
    choices: Annotated[tuple[PermissionChoice, ...], Meta(min_length=1)]
    created_at: Timestamp
    expires_at: Timestamp | UnsetType = UNSET
    state: PermissionState
    resolution: PermissionResolution | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_unique(self.effects, "effect")
        check_unique(self.choices, "choice")
        if (self.resolution is UNSET) != (self.state == "pending"):
            raise ValueError("a permission has a resolution exactly when it is not pending")


class Grant(Struct, frozen=True, kw_only=True):
    """A standing yes to a tool."""

    id: GrantId
    session_id: SessionId
    principal_id: PrincipalId
    tool_name: NonEmptyString
    identity_digest: NonEmptyString
    scope: GrantScope
    state: GrantState
    created_at: Timestamp
    expires_at: Timestamp | UnsetType = UNSET
    revoked_at: Timestamp | UnsetType = UNSET
    revocation_reason: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.state == "revoked" and self.revoked_at is UNSET:
            raise ValueError("a revoked grant says when")


class AuditRecord(Struct, frozen=True, kw_only=True):
    """What was done or refused; `payload` is free JSON."""

    sequence: Int64NonNeg
    timestamp: Timestamp
    level: AuditLevel
    name: NonEmptyString
    session_id: SessionId | UnsetType = UNSET
    principal_id: PrincipalId | UnsetType = UNSET
    payload: Raw
    redacted: bool
