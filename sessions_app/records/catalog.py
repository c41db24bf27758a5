"""Prompts, workspaces and blobs as the protocol shows them (wire 12, behaviour 3)."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from sessions_app.records.base import (
    BlobId,
    Int62Pos,
    Int64NonNeg,
    NonBlankText,
    NonEmptyString,
    PromptDefinitionId,
    PromptRevisionId,
    TextNoNul,
    WorkspaceDefinitionId,
    check_unique,
    decode_base64,
)
from sessions_app.records.enums import (
    Availability,
    BlobKind,
    MessageContentKind,
    TemporaryLocation,
    WorkspaceAccess,
    WorkspaceCleanup,
    WorkspaceKind,
    WorkspaceOverflow,
)


def _check_availability(availability: Availability, reason: str | UnsetType) -> None:
    if availability == "unavailable" and reason is UNSET:
        raise ValueError("what is unavailable must say why")


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt of the catalog."""

    id: PromptDefinitionId
    name: NonEmptyString
    description: str | UnsetType = UNSET
    enabled: bool
    current_revision: PromptRevisionId | UnsetType = UNSET
    allowed_workspaces: tuple[WorkspaceDefinitionId, ...]
    permission_profile: NonEmptyString
    runtime_policy: str | UnsetType = UNSET
    availability: Availability
    unavailable_reason: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_unique(self.allowed_workspaces, "workspace")
        _check_availability(self.availability, self.unavailable_reason)


class PromptLimit(Struct, frozen=True, kw_only=True):
    """How many root agents of one prompt a workspace takes, and what happens to the next."""

    prompt_id: PromptDefinitionId
    max_root_agents: Int62Pos
    overflow: WorkspaceOverflow


class Workspace(Struct, frozen=True, kw_only=True):
    """A workspace of the catalog; location and cleanup exist exactly for temporary ones."""

    id: WorkspaceDefinitionId
    name: NonEmptyString
    kind: WorkspaceKind
    temporary_location: TemporaryLocation | UnsetType = UNSET
    cleanup: WorkspaceCleanup | UnsetType = UNSET
    access: WorkspaceAccess
    conflict_domain: NonEmptyString | UnsetType = UNSET
    prompt_limits: tuple[PromptLimit, ...]
    availability: Availability
    unavailable_reason: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        temporary = self.kind == "temporary"
        if (self.temporary_location is not UNSET) != temporary or (self.cleanup is not UNSET) != temporary:
            raise ValueError("temporary_location and cleanup belong to temporary workspaces only")
        check_unique((limit.prompt_id for limit in self.prompt_limits), "prompt limit")
        _check_availability(self.availability, self.unavailable_reason)


class BlobMetadata(Struct, frozen=True, kw_only=True):
    """A stored blob; `digest` is the hex SHA-256 of its `byte_length` bytes."""

    id: BlobId
    kind: BlobKind
    media_type: TextNoNul
    byte_length: Int64NonNeg
    digest: TextNoNul
    display_name: TextNoNul | UnsetType = UNSET


class BlobInputStored(Struct, frozen=True, kw_only=True, tag_field="source", tag="stored"):
    """A blob that is already there."""

    kind: BlobKind
    media_type: TextNoNul
    byte_length: Int64NonNeg
    digest: TextNoNul
    display_name: TextNoNul | UnsetType = UNSET
    blob_id: BlobId


class BlobInputInlineBase64(Struct, frozen=True, kw_only=True, tag_field="source", tag="inline_base64"):
    """A blob that comes along."""

    kind: BlobKind
    media_type: TextNoNul
    byte_length: Int64NonNeg
    digest: TextNoNul
    display_name: TextNoNul | UnsetType = UNSET
    inline_base64: str

    def __post_init__(self) -> None:
        if len(self.content()) != self.byte_length:
            raise ValueError("byte_length is not the size of the inline data")

    def content(self) -> bytes:
        """Return the bytes themselves."""
        return decode_base64(self.inline_base64)


BlobInput = BlobInputStored | BlobInputInlineBase64


class BlobChunk(Struct, frozen=True, kw_only=True):
    """A part of a blob, from `offset` up to `next_offset`."""

    blob: BlobMetadata
    offset: Int64NonNeg
    next_offset: Int64NonNeg
    data_base64: str
    eof: bool

    def __post_init__(self) -> None:
        end = self.blob.byte_length
        if (
            self.next_offset - self.offset != len(decode_base64(self.data_base64))
            or self.next_offset > end
            or self.eof != (self.next_offset == end)
        ):
            raise ValueError("offsets, data and eof of a chunk must agree")


class MessageContent(Struct, frozen=True, kw_only=True):
    """What a user says: plain text or ChatMD, and blobs beside it."""

    kind: MessageContentKind
    text: NonBlankText
    attachments: tuple[BlobInput, ...]

    def __post_init__(self) -> None:
        check_unique(self.attachments, "attachment")
