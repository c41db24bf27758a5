"""Typed identifiers: `<prefix>_<token>` and history ids (wire 1, "Ids").

Owns: making ids and the seam through which tests choose them. Does not own: checking ids that clients send, which the codec
of a dialect does before anything here sees them.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TOKEN_BYTES = 18
"""18 random bytes are 24 base64url characters without padding, and collide only by accident (2^72 ids for an even chance)."""

_source: Callable[[], str] = lambda: secrets.token_urlsafe(_TOKEN_BYTES)  # noqa: E731 - one replaceable function


def new_id(prefix: str) -> str:
    """Return a fresh random id of the family `prefix`, e.g. `new_id("ses")`."""
    return f"{prefix}_{_source()}"


def derived_id(prefix: str, *parts: str) -> str:
    """Return the id of `prefix` that always stands for the same `parts`: a hash, so nothing can be read back out of it."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return f"{prefix}_{base64.urlsafe_b64encode(digest[:_TOKEN_BYTES]).decode()}"


def history_id(session_id: str, number: int) -> str:
    """Return the id of the entry with history sequence `number` in a session: `28:ses_…:0` (wire 1)."""
    return f"{len(session_id.encode())}:{session_id}:{number}"


def history_number(session_id: str, entry_id: str) -> int | None:
    """Return the history sequence inside `entry_id`, or None when the id belongs to another namespace or is malformed."""
    head, separator, number = entry_id.rpartition(":")
    if (
        not separator
        or head != f"{len(session_id.encode())}:{session_id}"
        or not number.isascii()
        or not number.isdigit()
    ):
        return None
    return int(number) if str(int(number)) == number else None


@contextmanager
def using(source: Callable[[], str]) -> Iterator[None]:
    """Take id tokens from `source` inside the block; for tests."""
    global _source
    previous, _source = _source, source
    try:
        yield
    finally:
        _source = previous
