"""What can go wrong between a client and a server.

Owns: the exceptions of this package, all of them `ClientError`. Does not own: the codes, which are the
protocol's (`sessions_app.records.ErrorCode`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msgspec import Raw

    from sessions_app.records import Error, ErrorCode


class ClientError(Exception):
    """Anything this package raises; its text is one sentence for a person."""


class ProtocolError(ClientError):
    """The server refused a call (wire 3)."""

    def __init__(self, code: ErrorCode, message: str, *, retryable: bool, data: Raw) -> None:
        """Say what the server said; `data` is free JSON."""
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.retryable = retryable
        """Guidance only: a changed or irreversible call is never to be repeated blindly."""
        self.data = data

    @classmethod
    def of(cls, error: Error) -> ProtocolError:
        """Return the exception for an error as the wire carries it."""
        return cls(error.code, error.message, retryable=error.retryable, data=error.data)


class ConnectionRefused(ClientError):
    """No connection came about; `final` when trying again will not help."""

    def __init__(self, message: str, *, final: bool) -> None:
        """Say why."""
        super().__init__(message)
        self.final = final


class ConnectionLost(ClientError):
    """The connection ended; whether an unanswered call took effect is not known.

    `close_code` is the transport's, where it has one (behaviour 1.4); None when the connection just broke.
    """

    def __init__(self, message: str, *, close_code: int | None = None) -> None:
        """Say how."""
        super().__init__(message)
        self.close_code = close_code


class ProtocolViolation(ClientError):
    """The server sent what the protocol does not allow, or this client cannot read."""


class FrameTooLarge(ClientError):
    """A request is larger than the server takes; nothing was sent."""


class Lagged(ClientError):
    """Notifications came faster than they were read, and some are gone: attach again after the last one applied."""


class SequenceGap(ClientError):
    """A durable event does not follow the last one: attach again, or take a snapshot (wire 9)."""

    def __init__(self, expected: int, got: int) -> None:
        """Say which sequence was due and which came."""
        super().__init__(f"event {got} came where {expected} was due")
        self.expected = expected
        self.got = got
