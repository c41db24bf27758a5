"""What is said through an attachment, whoever keeps the attachment alive.

Owns: a method of Python for the mutations that clients make all the time, and keys for all of them. Does not own:
how a mutation reaches the server and what is done when its answer does not come (`client`, `reconnecting`).
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import UNSET

from ochat_client import methods
from ochat_client.methods import Method, R
from ochat_site.dialects.ochat1.types import (
    PermissionRespondResult,
    SendMessageResult,
    SessionMutationResult,
    WriteParams,
)
from sessions_app.records import (
    BlobInput,
    MessageContent,
    MessageContentKind,
    OperationId,
    Permission,
    PermissionChoice,
    StopMode,
)

W = TypeVar("W", bound=WriteParams)


def new_key() -> str:
    """Return a fresh idempotency key: one per mutation, kept for its retries (protocol, "Errors, idempotency")."""
    return secrets.token_urlsafe(18)


class SessionCalls(ABC):
    """The mutations of one session. Each raises ProtocolError with the code of the refusal, and ConnectionLost."""

    @abstractmethod
    async def mutate(self, method: Method[W, R], /, **members: Any) -> R:
        """Make a mutation with these members of its params; session, attachment and, unless given, key are filled in."""

    async def send_message(
        self, text: str, *, kind: MessageContentKind = "plain_text", attachments: Sequence[BlobInput] = ()
    ) -> SendMessageResult:
        """Say something; the answer tells whether a turn started or the message waits (behaviour 6.2)."""
        content = MessageContent(kind=kind, text=text, attachments=tuple(attachments))
        return await self.mutate(methods.SESSION_SEND_MESSAGE, content=content)

    async def start(self, *, queue_if_limited: bool = True) -> SessionMutationResult:
        """Want the session to run."""
        return await self.mutate(methods.SESSION_START, queue_if_limited=queue_if_limited)

    async def stop(self, mode: StopMode = "graceful") -> SessionMutationResult:
        """Want the session to stop, after its operation or by cancelling it."""
        return await self.mutate(methods.SESSION_STOP, mode=mode)

    async def cancel_operation(self, operation_id: OperationId) -> SessionMutationResult:
        """Cancel the running operation; `operation_not_found` when it has ended meanwhile."""
        return await self.mutate(methods.SESSION_CANCEL_OPERATION, operation_id=operation_id)

    async def respond(
        self, permission: Permission, choice: PermissionChoice, *, reason: str | None = None
    ) -> PermissionRespondResult:
        """Answer a permission request; `already_resolved` when somebody or something else was first."""
        return await self.mutate(
            methods.PERMISSION_RESPOND,
            permission_id=permission.id,
            permission_generation=permission.generation,
            choice=choice,
            reason=UNSET if reason is None else reason,
        )
