"""Strict decoding of params and results (wire 1).

Owns: what msgspec does not refuse by itself, and the words of a refusal. Does not own: the shapes and the
checks inside them (`types`, `sessions_app.records`), the envelope (`ochat_site.rpc.envelope`) and the encoder
(`sessions_app.encoding`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from ochat_site.rpc.envelope import member_names
from sessions_app.encoding import encode
from sessions_app.errors import InvalidRequest

T = TypeVar("T", bound=Struct)


def decode(text: bytes | Raw, shape: type[T], *, unique: bool | None = None) -> T:
    """Return what `text` (one JSON object) says as `shape`, a struct type of `types`.

    `unique` is what the envelope found out: whether no object of the whole message repeats a member name.
    Without it, `text` alone is looked at. Raises InvalidRequest, which names the member and quotes nothing of
    what was sent; also any other refusal of the shape's own checks.
    """
    try:
        value: T = _reader(shape)(text)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_reason(error)) from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest("the params cannot be read") from None
    if unique is None:
        _, unique = member_names(text)
    if not unique and (_is_keyed(shape) or _repeats_where_it_counts(text, shape)):
        raise InvalidRequest("a member name is repeated")
    return value


@cache
def _reader(shape: Any) -> Callable[[bytes | Raw], Any]:
    return msgspec.json.Decoder(shape).decode


def _is_keyed(shape: Any) -> bool:
    """Tell whether the params hold an idempotency key, with which a repeated name is refused anywhere."""
    return "idempotency_key" in getattr(shape, "__struct_fields__", ())


def _repeats_where_it_counts(text: bytes | Raw, shape: Any) -> bool:
    """Tell whether an object that gets decoded repeats a name; skipped members and free JSON may.

    This is rare enough to decode twice: in the second text an object that repeats a name is null, which no
    params take where they have an object.
    """
    try:
        _reader(shape)(encode(_without_repeats(str(text, "utf-8"))))
    except (msgspec.DecodeError, RecursionError):
        return True
    return False


def _number(token: str) -> Raw:
    return Raw(token.encode())


def _unless_repeated(members: list[tuple[str, Any]]) -> dict[str, Any] | None:
    named = dict(members)
    return named if len(named) == len(members) else None


_without_repeats = json.JSONDecoder(
    object_pairs_hook=_unless_repeated, parse_int=_number, parse_float=_number
).decode

_MISSING = re.compile(r"Object missing required field `(\w+)`")
_PLACE = re.compile(r".*`\$\.?(.*)`\Z", re.DOTALL)


def _reason(error: msgspec.ValidationError) -> str:
    """Return which member is wrong and why, in our words; the library's text quotes what was sent."""
    text = str(error)
    place = _PLACE.match(text)
    member = place[1] if place else ""
    if error.__cause__ is not None:
        return f"{member}: {error.__cause__}" if member else str(error.__cause__)
    if missing := _MISSING.match(text):
        return f"{member}.{missing[1]} is missing" if member else f"{missing[1]} is missing"
    return f"{member or 'the whole'} is not valid"
