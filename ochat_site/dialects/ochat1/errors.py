"""Refusals as Ochat errors (wire 3).

Owns: what of a refusal this dialect says. Does not own: the codes, which are the kernel's own
(`sessions_app.errors`), nor HTTP statuses, which only failures of the transport have.
"""

from __future__ import annotations

from sessions_app.errors import Refusal
from sessions_app.records import Error


def to_error(refusal: Refusal) -> Error:
    """Return the error that a client is told. Its `data` is `{}`: this dialect gives it no meaning."""
    return Error(code=refusal.code, message=refusal.message, retryable=refusal.retryable)
