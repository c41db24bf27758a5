"""What went wrong at a provider, told in our words.

Owns the mapping from statuses, error codes and SDK exceptions to `ModelError`. Does not own when a request
is repeated: that is the SDK's. A provider's message may quote the prompt or a part of the key, so it is read
here, shown to nobody and never logged; of its error object only the short codes go on.
"""

from __future__ import annotations

import re

import msgspec
import structlog

from sessions_app.runtime.models.port import ErrorReason, ModelError

log = structlog.get_logger(__name__)

_OVERFLOW = re.compile(
    r"context_length_exceeded|context_window_exceeded|maximum context length|context (?:window|length)"
    r"|prompt is too long|input is too long|input token count",
    re.IGNORECASE,
)
"""How providers say that a request does not fit; only the first two are codes, the rest is prose that has
been stable."""

_CODE = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")
"""What may be shown of an error's `code` and `param`: identifiers, nothing that could carry text of the
prompt."""

THINKING_REFUSED = "thinking_refused"
"""The code that we add where Anthropic, which has none for it, refuses thinking blocks: not its own, or not
in their place."""
_THINKING = re.compile(r"\bthinking\b|\bsignature\b")

_EXHAUSTED = {"insufficient_quota", "billing_required", "billing_error", "billing_hard_limit_reached"}
_SENTENCES: dict[ErrorReason, str] = {
    "provider_auth": "The model provider refused the credentials",
    "provider_limit": "The model provider's rate limit or quota is used up",
    "provider_unavailable": "The model provider is not available",
    "provider_refused": "The model provider refused the request",
    "context_overflow": "The conversation is longer than the model's context window",
}
_REASON_OF_CODE: dict[str, ErrorReason] = {
    "authentication_error": "provider_auth",
    "permission_error": "provider_auth",
    "rate_limit_error": "provider_limit",
    "rate_limit_exceeded": "provider_limit",
    "billing_error": "provider_limit",
    "insufficient_quota": "provider_limit",
    "invalid_request_error": "provider_refused",
    "invalid_prompt": "provider_refused",
    "not_found_error": "provider_refused",
    "content_filter": "provider_refused",
}
"""Codes of errors that arrive inside a stream, where no status tells; any other code there means
unavailable."""


class ProviderError(msgspec.Struct):
    """The error object of a provider, as far as it is read: OpenAI's and Anthropic's differ only in what
    they leave out."""

    message: str | None = None
    code: str | int | None = None
    type: str | None = None
    param: str | None = None

    @property
    def codes(self) -> tuple[str, ...]:
        """The identifiers in it, most specific first, that may be shown and logged."""
        return shown(self.code, self.type, self.param)


def shown(*values: str | int | None) -> tuple[str, ...]:
    """Return those of a provider's identifiers that may be shown and logged."""
    return tuple(str(value) for value in values if value is not None and _CODE.fullmatch(str(value)))


def read_error(body: object) -> ProviderError:
    """Return the error object in a decoded response body, nested under `error` or not; an empty one when
    there is none."""
    if isinstance(body, dict):
        try:
            return msgspec.convert(body.get("error", body), ProviderError)
        except msgspec.ValidationError:
            return ProviderError()
    return ProviderError()


def from_status(status: int, body: object) -> ModelError:
    """Return the error for an HTTP error answer with the decoded `body`."""
    error = read_error(body)
    codes = (str(status), *error.codes)
    if status == 400 and error.message is not None and _THINKING.search(error.message):
        codes = (*codes, THINKING_REFUSED)
    log.warning("model_request_refused", codes=codes)
    if status in (401, 403):
        return failure("provider_auth", codes)
    if status in (402, 429):
        return failure("provider_limit", codes, retryable=status == 429 and _EXHAUSTED.isdisjoint(codes))
    if status in (408, 409) or status >= 500:
        return failure("provider_unavailable", codes, retryable=True)
    if status == 413 or _overflows(error):
        return failure("context_overflow", codes)
    return failure("provider_refused", codes)


def from_stream(error: ProviderError) -> ModelError:
    """Return the error for an error object that arrived inside a stream."""
    log.warning("model_stream_failed", codes=error.codes)
    if _overflows(error):
        return failure("context_overflow", error.codes)
    reasons = (_REASON_OF_CODE[code] for code in error.codes if code in _REASON_OF_CODE)
    reason: ErrorReason = next(reasons, "provider_unavailable")
    passing = reason in ("provider_limit", "provider_unavailable") and _EXHAUSTED.isdisjoint(error.codes)
    return failure(reason, error.codes, retryable=passing)


def broken_off(cause: str) -> ModelError:
    """Return the error for a stream that ended without its end: `cause` completes "... before it had
    finished"."""
    log.warning("model_stream_broken", cause=cause)
    message = f"The model provider {cause} before it had finished"
    return ModelError("provider_unavailable", message, retryable=True)


def failure(reason: ErrorReason, codes: tuple[str, ...] = (), *, retryable: bool = False) -> ModelError:
    """Return the error of `reason` with its standing sentence, and the codes behind it in brackets."""
    message = _SENTENCES[reason] + (f" ({' '.join(codes)})" if codes else "")
    return ModelError(reason, message, retryable=retryable, codes=codes)


def _overflows(error: ProviderError) -> bool:
    return any(_OVERFLOW.search(str(text)) for text in (error.code, error.type, error.message) if text)
