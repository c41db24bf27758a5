"""The only source of the current time.

Owns: reading the clock, the wire form of an instant, and the seam through which tests choose the time.
Does not own: the database's clock, by which leases, claims and heartbeats are judged (`sessions_app.db.database_now`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

_source: Callable[[], datetime] = lambda: datetime.now(UTC)  # noqa: E731 - one replaceable function


def now() -> datetime:
    """Return the current instant, aware, in UTC."""
    return _source()


def after(milliseconds: int) -> datetime:
    """Return the instant `milliseconds` from now (negative: in the past)."""
    return now() + timedelta(milliseconds=milliseconds)


def wire_time(instant: datetime) -> str:
    """Return an aware instant as the wire writes it: UTC, capital T and Z, exactly nine fraction digits (wire 1)."""
    utc = instant.astimezone(UTC).replace(tzinfo=None)
    return f"{utc.isoformat(timespec='microseconds')}000Z"


def parse_wire_time(text: str) -> datetime:
    """Return the instant that a wire timestamp names, to the microsecond.

    Raises ValueError for text that is no wire timestamp. Hour 24 and second 60, which the codec admits (wire 1), mean the
    instant they roll over to.
    """
    if not text.endswith("Z") or len(text) < 20 or text[10] != "T":
        raise ValueError("not a wire timestamp")
    day = datetime.strptime(text[:10], "%Y-%m-%d").replace(tzinfo=UTC)
    whole, _, fraction = text[11:-1].partition(".")
    hours, minutes, seconds = (int(part) for part in whole.split(":"))
    micro = int(fraction[:6].ljust(6, "0")) if fraction else 0
    return day + timedelta(hours=hours, minutes=minutes, seconds=seconds, microseconds=micro)


@contextmanager
def using(source: Callable[[], datetime]) -> Iterator[None]:
    """Read the time from `source` inside the block; for tests."""
    global _source
    previous, _source = _source, source
    try:
        yield
    finally:
        _source = previous
