"""The history of a session as a model is asked with it, kept between turns.

Owns: reading what is new since the last request, so that a turn's cost does not grow with the session; inlining images towards
the model (behaviour 6.1). Does not own: what a history may hold, or the adapters that translate it.
"""

from __future__ import annotations

import base64
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from django.db import connection

from sessions_app import blobs, images, store
from sessions_app.errors import BlobUnavailable
from sessions_app.models import Blob, HistoryEntry, Session

KEPT_BYTES = 64 * 1024 * 1024
"""What the histories kept by one process hold together; the least recently asked go first."""

_BLOB_MARK = b'"blob:'

# Two statements of two columns at every request of every turn: written once, for the reason that `rows` gives.
_VERSION = f"SELECT history_version FROM {Session._meta.db_table} WHERE id = %s"  # noqa: S608 - a name of ours
_NEWER = (
    f"SELECT position, payload FROM {HistoryEntry._meta.db_table}"  # noqa: S608 - a name of ours
    " WHERE session_id = %s AND position > %s ORDER BY position"
)


@dataclass(slots=True)
class _Kept:
    version: int
    position: int = -1
    items: list[bytes] = field(default_factory=list)
    size: int = 0


class Histories:
    """Encoded histories by session. One thread at a time may read a session: the worker that holds its operation."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._kept_bytes = kept_bytes
        self._size = 0
        self._mutex = threading.Lock()

    def read(self, session_id: str) -> Sequence[bytes]:
        """Return the whole canonical history, oldest first, each item encoded and with its images inlined.

        Reads from the store only what was appended since the last time, or everything after an edit. What it returns is good
        until the session is read again. Raises PersistenceError, and BlobUnavailable for an image that is gone.
        """
        kept = self._take(session_id)
        with store.errors():
            version = _version(session_id)
            if kept is None or kept.version != version:
                kept = _Kept(version)
            for position, payload in _newer(session_id, kept.position):
                item = _inlined(session_id, payload) if _BLOB_MARK in payload else payload
                kept.position = position
                kept.items.append(item)
                kept.size += len(item)
        self._keep(session_id, kept)
        return kept.items

    def _take(self, session_id: str) -> _Kept | None:
        """Take a history out while it grows: a read that fails leaves nothing half read behind."""
        with self._mutex:
            kept = self._kept.pop(session_id, None)
            if kept is not None:
                self._size -= kept.size
            return kept

    def _keep(self, session_id: str, kept: _Kept) -> None:
        with self._mutex:
            self._kept[session_id] = kept
            self._size += kept.size
            while self._size > self._kept_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._size -= dropped.size


def _version(session_id: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(_VERSION, [session_id])
        row: tuple[int] | None = cursor.fetchone()
    return row[0] if row else 0


def _newer(session_id: str, position: int) -> Iterator[tuple[int, bytes]]:
    with connection.cursor() as cursor:
        cursor.execute(_NEWER, [session_id, position])
        for found, payload in cursor:
            yield found, bytes(payload)


def _inlined(session_id: str, payload: bytes) -> bytes:
    """Return an item with every image that is kept as a blob turned into a data URI; other items unchanged."""
    return images.readdressed(payload, partial(_data_url, session_id))


def _data_url(session_id: str, address: str) -> str:
    if not address.startswith("blob:"):
        return address
    # Of this session: an address is text that somebody wrote, and must not reach what belongs to others.
    row = Blob.objects.filter(id=address.removeprefix("blob:"), session_id=session_id).first()
    if row is None:
        raise BlobUnavailable("an image of this session is gone")
    data = base64.b64encode(blobs.read(row.sha256)).decode()
    return f"data:{row.media_type};base64,{data}"
