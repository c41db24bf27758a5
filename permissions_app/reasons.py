"""Why somebody answered or revoked, in that person's own words (behaviour 7.3, 7.4).

Owns: what of the words is kept. Does not own: the rows that keep them (`requests.py`, `grants.py`).
"""

from __future__ import annotations

from sessions_app import limits
from sessions_app.errors import ResourceLimit


def kept(reason: str) -> str:
    """Return a reason as every store keeps it: PostgreSQL has no NUL in a text, so the sign for it stands there instead.

    Raises ResourceLimit, not retryable, above 256 KiB: it is part of an event, of every list and of each snapshot.
    """
    if len(reason.encode()) > limits.MAX_REASON_BYTES:
        raise ResourceLimit("a reason is at most 256 KiB", retryable=False)
    return reason.replace("\0", "␀")
