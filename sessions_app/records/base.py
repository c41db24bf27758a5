"""The scalars of the protocol and the checks that no type can say (wire 1).

Owns: ids, integers, texts, timestamps and their limits, and `Error`, which many records carry. Does not own:
the records themselves, which are its neighbours in this package.

The limits bind what is decoded; a struct built in code is trusted and only its `__post_init__` is asked.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Raw, Struct

from sessions_app import limits
from sessions_app.records.enums import ErrorCode

Int62NonNeg = Annotated[int, Meta(ge=0, le=2**62 - 1)]
Int62Pos = Annotated[int, Meta(ge=1, le=2**62 - 1)]
Int64NonNeg = Annotated[int, Meta(ge=0, le=2**63 - 1)]

NonEmptyString = Annotated[str, Meta(min_length=1)]
TextNoNul = Annotated[str, Meta(pattern=r"^[^\x00]+\Z")]
NonBlankText = Annotated[str, Meta(pattern=r"[^ \t\n\v\f\r]")]
Cursor = Annotated[str, Meta(pattern=r"^[^\x00-\x20\x7f]+\Z")]
"""Opaque; its other limit counts bytes: `check_cursor`."""
HistoryId = Annotated[str, Meta(pattern=r"(?s)^[1-9][0-9]*:.+:(?:0|[1-9][0-9]*)\Z")]
"""`<byte length of namespace>:<namespace>:<sequence>`; that the length is true says `check_history_id`."""
IdempotencyKey = Annotated[
    str, Meta(max_length=limits.MAX_IDEMPOTENCY_KEY_BYTES, pattern=r"^[A-Za-z0-9_.:/-]+\Z")
]
FeatureName = Annotated[str, Meta(pattern=r"^[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\Z")]
StringMap = dict[NonEmptyString, str]

Timestamp = Annotated[
    str,
    Meta(
        pattern=r"""(?x)
        ^(?!0000)
        (?: [0-9]{4}-
            (?: (?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])
              | (?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)
              | 02-(?:0[1-9]|1[0-9]|2[0-8]) )
          | (?: [0-9]{2}(?:0[48]|[2468][048]|[13579][26]) | (?:[02468][048]|[13579][26])00 )-02-29 )
        T(?:[01][0-9]|2[0-4]):[0-5][0-9]:(?:[0-5][0-9]|60)
        (?:\.[0-9]+)?Z\Z"""
    ),
]
"""UTC with any number of fraction digits; hour 24 and second 60 are read. We write nine digits
(`clock.wire_time`).
"""


def _id(prefix: str) -> Meta:
    return Meta(max_length=96, pattern=rf"^{prefix}_[A-Za-z0-9_-]+\Z")


ServerId = Annotated[str, _id("srv")]
SessionId = Annotated[str, _id("ses")]
AttachmentId = Annotated[str, _id("att")]
OperationId = Annotated[str, _id("op")]
EventCursorId = Annotated[str, _id("evt")]
TransactionId = Annotated[str, _id("txn")]
JobId = Annotated[str, _id("job")]
ScheduleId = Annotated[str, _id("sch")]
PermissionId = Annotated[str, _id("per")]
GrantId = Annotated[str, _id("grt")]
WorkspaceDefinitionId = Annotated[str, _id("wsd")]
WorkspaceInstanceId = Annotated[str, _id("wsi")]
PromptDefinitionId = Annotated[str, _id("prd")]
PromptRevisionId = Annotated[str, _id("prv")]
PrincipalId = Annotated[str, _id("pri")]
BlobId = Annotated[str, _id("blb")]
IdempotencyRecordId = Annotated[str, _id("idr")]

EMPTY_OBJECT = Raw(b"{}")


class Error(Struct, frozen=True, kw_only=True):
    """Why something failed; `data` is free JSON, read as `{}` when missing and always written."""

    code: ErrorCode
    message: str
    retryable: bool
    data: Raw = EMPTY_OBJECT


# The checks raise ValueError: msgspec turns it into a refusal that names the member, and a struct that the
# server builds against the contract fails where it is built.


def check_cursor(*cursors: object) -> None:
    """Refuse a cursor above 2048 bytes of UTF-8; what is not a string (a cursor left out) passes."""
    if any(isinstance(cursor, str) and len(cursor.encode()) > limits.MAX_CURSOR_BYTES for cursor in cursors):
        raise ValueError("a cursor holds at most 2048 bytes")


def check_history_id(entry_id: str) -> None:
    """Refuse a history id whose leading number is not the byte length of its namespace."""
    length, _, rest = entry_id.partition(":")
    if length != str(len(rest.rpartition(":")[0].encode())):
        raise ValueError("the length in a history id must be that of its namespace")


def check_unique(values: Iterable[object], what: str) -> None:
    """Refuse a list in which a value (hashable) occurs twice; `what` names one value."""
    listed = list(values)
    if len(set(listed)) != len(listed):
        raise ValueError(f"a {what} must not occur twice")


def check_order(earlier: str, later: str) -> None:
    """Refuse two timestamps that are not in order."""
    if instant(later) < instant(earlier):
        raise ValueError("updated before it began")


def instant(timestamp: str) -> str:
    """Return a key by which timestamps sort by time, whatever their number of fraction digits."""
    return (
        timestamp[:19] + timestamp[20:-1].ljust(9, "0")[:9]
    )  # what is finer than nanoseconds does not count


def decode_base64(text: str) -> bytes:
    """Return the bytes of padded standard base64; anything else raises ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise ValueError("not padded standard base64") from None
