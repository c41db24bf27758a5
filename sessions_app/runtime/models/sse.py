"""Server-sent events, read by hand from a byte stream.

Owns the framing. Does not own what the data means. The SDKs' own readers build a typed object per event,
which costs more than the rest of a turn.
"""

from __future__ import annotations

import re

_END = re.compile(rb"\r?\n\r?\n")
_OVERLAP = 3
"""The longest proper prefix of an event's end: how far back the next chunk may complete one."""

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Far above any real event, whose largest repeats a whole reply; bounds what a broken server can make us
hold."""


class EventTooLargeError(Exception):
    """One event exceeded MAX_EVENT_BYTES."""


class EventDecoder:
    """Turns the chunks of one response body into the data of its events."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that `chunk` completes, in order; comments and events without data
        yield nothing.

        Raises EventTooLargeError.
        """
        buffer = self._buffer
        scan = max(0, len(buffer) - _OVERLAP)
        buffer += chunk
        found: list[bytes] = []
        start = 0
        while (end := _END.search(buffer, scan)) is not None:
            data = _data(bytes(buffer[start : end.start()]))
            if data is not None:
                found.append(data)
            start = scan = end.end()
        del buffer[:start]
        if len(buffer) > MAX_EVENT_BYTES:
            raise EventTooLargeError
        return found


def _data(block: bytes) -> bytes | None:
    """Return the data lines of one event joined by newlines, None when it has none."""
    lines = [line[5:].removeprefix(b" ") for line in block.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
