"""The history of a session as a model is asked with it, kept between turns.

Owns: reading what is new since the last request, so that a turn's cost does not grow with the session; inlining images towards
the model (behaviour 6.1). Does not own: what a history may hold, or the adapters that translate it.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from sessions_app import blobs
from sessions_app.encoding import encode
from sessions_app.models import Blob, HistoryEntry, Session
from sessions_app.records import InputImage, InputMessageItem

KEPT_BYTES = 64 * 1024 * 1024
"""What the histories kept by one process hold together; the least recently asked go first."""

_BLOB_MARK = b'"blob:'


@dataclass(slots=True)
class _Kept:
    version: int
    position: int = -1
    items: list[bytes] = field(default_factory=list)
    size: int = 0


class Histories:
    """Encoded histories by session. Used from one thread at a time per session: the worker that holds its operation."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._kept_bytes = kept_bytes

    def read(self, session_id: str) -> Sequence[bytes]:
        """Return the whole canonical history, oldest first, each item encoded and with its images inlined.

        Reads from the store only what was appended since the last time, or everything after an edit.
        """
        version = Session.objects.filter(id=session_id).values_list("history_version", flat=True).first()
        kept = self._kept.pop(session_id, None)
        if kept is None or kept.version != version:
            kept = _Kept(version=version or 0)
        rows = HistoryEntry.objects.filter(session_id=session_id, position__gt=kept.position).order_by(
            "position"
        )
        for position, payload in rows.values_list("position", "payload").iterator(chunk_size=500):
            kept.position = position
            kept.items.append(payload)
            kept.size += len(payload)
        self._keep(session_id, kept)
        return [_inlined(item) if _BLOB_MARK in item else item for item in kept.items]

    def _keep(self, session_id: str, kept: _Kept) -> None:
        self._kept[session_id] = kept
        total = sum(one.size for one in self._kept.values())
        while total > self._kept_bytes and self._kept:
            _, dropped = self._kept.popitem(last=False)
            total -= dropped.size


def _inlined(payload: bytes) -> bytes:
    """Return an input message with every image that is kept as a blob turned into a data URI; other items unchanged."""
    try:
        item = msgspec.json.decode(payload, type=InputMessageItem)
    except msgspec.ValidationError:
        return payload
    if isinstance(item.content, str):
        return payload
    parts = tuple(_with_data(part) if isinstance(part, InputImage) else part for part in item.content)
    return encode(msgspec.structs.replace(item, content=parts))


def _with_data(part: InputImage) -> InputImage:
    if not part.image_url.startswith("blob:"):
        return part
    row = Blob.objects.get(id=part.image_url.removeprefix("blob:"))
    data = base64.b64encode(blobs.read(row.sha256)).decode()
    return msgspec.structs.replace(part, image_url=f"data:{row.media_type};base64,{data}")
