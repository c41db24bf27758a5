"""Bytes to messages and back: the envelope around every call (wire 1, 2, behaviour 1.1 step 2).

Owns: size, JSON, nesting, repeated member names, the shape of an envelope, ids (kept as they were written),
and frames that are sent. Does not own: the encoder (`sessions_app.encoding`), params and results (the codec
of a dialect), whether a method exists (`methods`), framing (`transports`).
"""

from __future__ import annotations

import json
import re
from array import array
from itertools import accumulate
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from sessions_app import limits
from sessions_app.encoding import encode
from sessions_app.errors import InvalidRequest, ResourceLimit
from sessions_app.records import EMPTY_OBJECT, Error

MAX_NESTING: Final = 512
"""Where no transport sets a lower limit. Recursive parsers fail at about 1000 less the depth of their caller,
so that what is accepted here can be parsed everywhere.
"""


class Malformed(InvalidRequest):
    """A message that is none. `id` is the raw token to answer to; without one nothing may be answered."""

    def __init__(self, message: str, id: bytes | None = None) -> None:
        super().__init__(message)
        self.id = id


class Request(NamedTuple):
    """A call that is to be answered."""

    id: bytes
    """The token as it was written: `1`, `1.0` and `"1"` are three ids."""
    method: str
    params: Raw
    """One JSON object."""
    unique: bool
    """No object of the whole message repeats a member name."""


class Notification(NamedTuple):
    """A call that is not answered."""

    method: str
    params: Raw
    unique: bool


class Response(NamedTuple):
    """An answer, which a server never takes."""

    id: bytes
    outcome: Raw | Error
    unique: bool


Message = Request | Notification | Response

MAX_ID_BYTES = limits.MIB
"""A longer id, which would come back in an answer above 16 MiB, is none."""


class _Members(Struct, frozen=True):
    """The members that an envelope knows; others are skipped."""

    jsonrpc: Raw | UnsetType = UNSET
    id: Raw | UnsetType = UNSET
    method: Raw | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_read_members = msgspec.json.Decoder(_Members).decode
_read_text = msgspec.json.Decoder(str).decode
_read_error = msgspec.json.Decoder(Error).decode


def decode(frame: bytes) -> Message:
    """Return the message in one frame.

    Raises Malformed, which carries the id when one can be read, or ResourceLimit above 16 MiB. A message with
    `method` is a call whatever else it holds.
    """
    if len(frame) > limits.MAX_FRAME_BYTES:
        raise ResourceLimit("a message holds at most 16 MiB", retryable=False)
    if nests_deeper(frame, MAX_NESTING):
        raise Malformed("the message is nested too deeply", _leading_id(frame))
    names, unique = member_names(frame)
    try:
        members = _read_members(frame)
    except msgspec.DecodeError:  # JSON, as `member_names` saw, and yet no text
        raise Malformed("a string holds half a surrogate pair", _leading_id(frame)) from None
    id = None if members.id is UNSET or names.count("id") > 1 else _usable_id(members.id)
    if len(set(names)) != len(names):
        raise Malformed("the message repeats a member name", id)
    if members.jsonrpc is UNSET or _text(members.jsonrpc) != "2.0":
        raise Malformed('jsonrpc must be "2.0"', id)
    if members.id is not UNSET and id is None:
        raise Malformed("id must be a string or a number")
    if members.method is UNSET:
        if id is None:
            raise Malformed("a message without method and id is nothing")
        return Response(id, _outcome(members, id), unique)
    method = _text(members.method)
    if not method:
        raise Malformed("method must be a non-empty string", id)
    params = EMPTY_OBJECT if members.params is UNSET else members.params
    if memoryview(params)[0] != ord("{"):
        raise Malformed("params must be an object", id)
    if id is None:
        return Notification(method, params, unique)
    return Request(id, method, params, unique)


def _outcome(members: _Members, id: bytes) -> Raw | Error:
    if members.error is UNSET and members.result is not UNSET:
        return members.result
    if members.error is UNSET or members.result is not UNSET:
        raise Malformed("a response has exactly one of result and error", id)
    try:
        return _read_error(members.error)
    except msgspec.ValidationError:
        raise Malformed("error must be an error", id) from None


def _usable_id(token: Raw) -> bytes | None:
    text = bytes(token)
    return text if text[0] in b'"-0123456789' and len(text) <= MAX_ID_BYTES else None


def _text(token: Raw) -> str | None:
    try:
        return _read_text(token)
    except msgspec.ValidationError:
        return None


# What msgspec does not see: repeated names and depth. Every frame is parsed a second time, by the standard
# library's parser with a hook that looks at the names of each object and keeps nothing. 300 bytes take 10 µs,
# a text of 16 MiB 40 ms, and 16 MiB of nothing but the smallest objects and arrays 1 to 3 s, which is the
# worst there is.


class _Names:
    """Stands for every object of a text; sees their members, innermost first, the outermost object's last."""

    def __init__(self) -> None:
        self.last: list[tuple[str, Any]] = []
        self.unique = True

    def __call__(self, members: list[tuple[str, Any]]) -> _Names:
        self.last = members
        if len(dict(members)) != len(members):
            self.unique = False
        return self


def member_names(text: bytes | Raw) -> tuple[list[str], bool]:
    """Return the member names of one encoded object, and whether neither it nor an object inside it repeats
    one.

    Raises Malformed for anything but one JSON object in UTF-8.
    """
    names = _Names()
    # The values are not looked at: `str` hands on a number as it stands, however long it is.
    parser = json.JSONDecoder(
        object_pairs_hook=names, parse_int=str, parse_float=str, parse_constant=_refuse_constant
    )
    try:
        outermost = parser.decode(str(text, "utf-8"))
    except (ValueError, RecursionError):
        raise Malformed("a message is one JSON object in UTF-8") from None
    if outermost is not names:
        raise Malformed("a message is one JSON object in UTF-8")
    return [name for name, _ in names.last], names.unique


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError("NaN and the infinities are no JSON")


_STEPS = bytes.maketrans(b"[{]}", bytes((1, 1, 255, 255)))  # as signed bytes: one level in, one level out
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))
_NEITHER_BRACKETS_NOR_QUOTES = bytes(set(_NOT_BRACKETS) - set(b'"'))


def nests_deeper(text: bytes, limit: int) -> bool:
    """Tell whether objects and arrays of a JSON text nest deeper than `limit`, without recursion."""
    if text.count(b"{") + text.count(b"[") <= limit:
        return False
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    sparse = unescaped.translate(None, _NEITHER_BRACKETS_NOR_QUOTES).replace(b'""', b"")
    outside_strings = b"".join(sparse.split(b'"')[::2])
    steps = array("b", outside_strings.translate(_STEPS))
    return max(accumulate(steps), default=0) > limit


_LEADING_SCALARS = re.compile(
    rb'\s*\{(?:\s*"(?:[^"\\]|\\.)*+"\s*:\s*(?:"(?:[^"\\]|\\.)*+"|[^\s"{}\[\],:]++)\s*,)*+', re.DOTALL
)


def _leading_id(frame: bytes) -> bytes | None:
    """Return the id of a message that cannot be read as a whole, if it stands before the first nested value."""
    found = _LEADING_SCALARS.match(frame)
    if found is None:
        return None
    head = found.group().rstrip(b", \t\r\n") + b"}"
    try:
        _, unique = member_names(head)
        token = _read_members(head).id
    except (Malformed, msgspec.DecodeError):
        return None
    return _usable_id(token) if unique and token is not UNSET else None


# Writing. Free JSON is passed on as it came and may hold line ends between its tokens; no frame does, because
# on some transports a line end ends the frame.


def success(id: bytes, result: object) -> bytes:
    """Return the frame that answers the call with this raw id; `result` is a struct, or JSON in a Raw."""
    return one_line(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, encode(result)))


def failure(id: bytes, error: Error) -> bytes:
    """Return the frame that refuses the call with this raw id."""
    return one_line(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id, encode(error)))


def notification(method: str, params: bytes | Raw) -> bytes:
    """Return the frame that tells something; `params` is encoded already."""
    return one_line(b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method.encode(), params))


def one_line(frame: bytes) -> bytes:
    """Return JSON text without the line ends that may stand between its tokens."""
    return frame.replace(b"\n", b" ").replace(b"\r", b" ")
