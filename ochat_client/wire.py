"""Envelopes as a client writes and reads them (wire 2).

Owns: envelopes and decoding. Does not own: the encoder (`sessions_app.encoding`), the shapes of params and results
(`ochat_site.dialects.ochat1.types`), or framing (`transports`). A client is lenient where the protocol lets it
be: members it does not know are skipped, notifications it does not know are for its caller to skip.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ochat_client.errors import ProtocolViolation
from sessions_app.encoding import encode
from sessions_app.records import Error

T = TypeVar("T")


class Answer(NamedTuple):
    """The outcome of the call with this id."""

    id: int | float | str
    outcome: Raw | Error


class Notification(NamedTuple):
    """Something the server tells; `params` is one encoded object."""

    method: str
    params: Raw


class _Members(Struct, frozen=True):
    id: int | float | str | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw = Raw(b"{}")
    result: Raw | UnsetType = UNSET
    error: Error | UnsetType = UNSET


class _Request(Struct, frozen=True):
    id: int
    method: str
    params: object
    jsonrpc: str = "2.0"


_read_members = msgspec.json.Decoder(_Members).decode


def request(id: int, method: str, params: object) -> bytes:
    """Return the frame of a call; `params` is a struct or anything else that encodes, for tests that want to be refused."""
    return encode(_Request(id=id, method=method, params=params))


def read(frame: bytes) -> Answer | Notification:
    """Return what one frame says. Raises ProtocolViolation when it is no answer and no notification."""
    try:
        members = _read_members(frame)
    except (msgspec.DecodeError, RecursionError):
        raise ProtocolViolation("the server sent a frame that is no message") from None
    if members.method is not UNSET:
        return Notification(members.method, members.params)
    outcome = members.result if members.error is UNSET else members.error
    if members.id is UNSET or outcome is UNSET:
        raise ProtocolViolation("the server sent a message that is neither answer nor notification")
    return Answer(members.id, outcome)


def decode(text: Raw | bytes, shape: type[T]) -> T:
    """Return what encoded JSON says as `shape`. Raises ProtocolViolation when it does not say that."""
    try:
        return cast("T", _reader(cast("Hashable", shape))(text))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolViolation(f"the server sent something unreadable: {error}") from None


@cache
def _reader(shape: Hashable) -> Any:
    return msgspec.json.Decoder(shape).decode
