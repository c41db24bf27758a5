"""Images inside history items: which are too large for the wire, and taking them out (behaviour 6.1).

Owns: finding inline images and replacing those that are larger than 256 KiB, or too much for their entry, by addresses. Pure.
Does not own: where the content of an image goes (`blobs`), or inlining it again towards the model (`runtime.context`).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import msgspec

from sessions_app import limits
from sessions_app.encoding import encode
from sessions_app.records import (
    CustomToolCallOutputItem,
    FunctionCallOutputItem,
    InputImage,
    InputMessageItem,
    ToolOutputPartInputImage,
)

Keep = Callable[[str, bytes], str]
"""Puts the content of an image, given with its media type, where it stays, and returns the address that stands for it."""

_Image = InputImage | ToolOutputPartInputImage
_MARK = b'"data:'
_DATA_URL = re.compile(r"data:(image/[^;,]*)((?:;[^;,]*)*),", re.IGNORECASE)


@dataclass(slots=True)
class _Inline:
    """An image that stands in an item: which part it is, and its content."""

    place: int
    part: _Image
    media_type: str
    content: bytes


def may_hold_large(payload: bytes) -> bool:
    """Tell, without decoding it, whether an encoded item may hold an image that has to be taken out."""
    return len(payload) > limits.MAX_INLINE_IMAGE_BYTES and _MARK in payload


def lightened(payload: bytes, keep: Keep, room: int) -> bytes:
    """Return an encoded item with its large images as addresses; every other item as it is, the same object.

    Large is an image above 256 KiB, and then the largest ones left until the item takes at most `room` bytes. What is no
    readable data URI stays as it was written.
    """
    if not may_hold_large(payload):
        return payload
    item = _read(payload)
    parts = _parts(item)
    if item is None or not parts:
        return payload
    taken: dict[int, _Image] = {}
    left = len(payload)
    for image in sorted(_inline(parts), key=lambda image: len(image.content), reverse=True):
        if len(image.content) <= limits.MAX_INLINE_IMAGE_BYTES and left <= room:
            break
        address = keep(image.media_type, image.content)
        taken[image.place] = msgspec.structs.replace(image.part, image_url=address)
        left -= len(encode(image.part)) - len(encode(taken[image.place]))
    if not taken:
        return payload
    changed = tuple(taken.get(place, part) for place, part in enumerate(parts))
    return encode(msgspec.structs.replace(item, **{_member(item): changed}))


def readdressed(payload: bytes, address: Callable[[str], str]) -> bytes:
    """Return an encoded item with the address of each of its images as `address` has it; the same object where none changes."""
    item = _read(payload)
    parts = _parts(item)
    if item is None or not parts:
        return payload
    changed = tuple(
        msgspec.structs.replace(part, image_url=address(_url(part))) if isinstance(part, _Image) else part
        for part in parts
    )
    return (
        payload
        if changed == tuple(parts)
        else encode(msgspec.structs.replace(item, **{_member(item): changed}))
    )


_Item = InputMessageItem | FunctionCallOutputItem | CustomToolCallOutputItem
_read_item = msgspec.json.Decoder(_Item).decode


def _read(payload: bytes) -> _Item | None:
    """Return an item that may hold images; None for any other."""
    try:
        return _read_item(payload)
    except msgspec.ValidationError:
        return None


def _member(item: _Item) -> str:
    return "content" if isinstance(item, InputMessageItem) else "output"


def _parts(item: _Item | None) -> Sequence[object]:
    held = None if item is None else getattr(item, _member(item))
    return () if held is None or isinstance(held, str) else held


def _url(image: _Image) -> str:
    return image.image_url if isinstance(image.image_url, str) else image.image_url.url


def _inline(parts: Sequence[object]) -> list[_Inline]:
    found = []
    for place, part in enumerate(parts):
        read = _data(_url(part)) if isinstance(part, _Image) else None
        if isinstance(part, _Image) and read is not None:
            found.append(_Inline(place, part, *read))
    return found


def _data(url: str) -> tuple[str, bytes] | None:
    """Return media type and content of an image's data URI; None for any other address and for one that cannot be read."""
    head = _DATA_URL.match(url)
    if head is None:
        return None
    body = url[head.end() :]
    try:
        content = (
            base64.b64decode(unquote_to_bytes(body), validate=True)
            if head[2].lower().endswith(";base64")
            else unquote_to_bytes(body)
        )
    except ValueError:
        return None
    return head[1].strip().lower(), content
