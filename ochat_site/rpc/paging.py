"""Pages and the cursors between them (behaviour 12).

Owns: signing and opening cursors, what they are bound to, the clamp of a page. Does not own: the order and filters of a
list (`sessions_app.listing` and its like), or the cutting of windows (`sessions_app.queries`).

A cursor is the last key of a page, signed together with everything that the next page must have in common with it.
Nothing of it is stored, so that any process and any later release opens it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import msgspec
from django.conf import settings
from django.utils.crypto import constant_time_compare, salted_hmac
from msgspec import UNSET, Struct, UnsetType

from sessions_app import limits
from sessions_app.encoding import encode
from sessions_app.errors import InvalidRequest
from sessions_app.queries import Direction, Place

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import PageRequest
    from sessions_app.records import Principal

T = TypeVar("T")

_SALT = "ochat_site.rpc.paging"
_DIGEST_BYTES = 32

ITEMS_AT_ONCE = 64
"""Read by one query of a list, before their sizes are known: at most 32 MiB of jobs, the largest items there are."""


class Cursors:
    """Cursors of one listing: of this server and principal (with kind, scopes and attributes), and of `about`."""

    def __init__(self, server_id: str, principal: Principal, *about: str | Struct) -> None:
        """Bind to everything that two pages must have in common; `about` is the method and its params, say."""
        self._bound = encode((server_id, principal, about))

    def sign(self, key: bytes) -> str:
        """Return the cursor that stands behind `key`, at most about 1400 bytes."""
        return self._signed(key, settings.SECRET_KEY)

    def open(self, cursor: str) -> bytes:
        """Return the key that a cursor stands behind.

        Raises InvalidRequest for anything that `sign` did not make for the same listing, to the last character.
        """
        try:
            key = base64.urlsafe_b64decode(cursor.encode())[_DIGEST_BYTES:]
        except (binascii.Error, ValueError):
            raise _refused() from None
        secrets = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
        # The texts are compared, not the digests: base64 has more than one text for the same bytes.
        if not any(constant_time_compare(cursor, self._signed(key, secret)) for secret in secrets):
            raise _refused()
        return key

    def _signed(self, key: bytes, secret: str) -> str:
        digest = salted_hmac(_SALT, encode((self._bound, key)), secret=secret, algorithm="sha256").digest()
        return base64.urlsafe_b64encode(digest + key).decode()


def _refused() -> InvalidRequest:
    return InvalidRequest("the cursor does not belong to this listing")


def page(
    cursors: Cursors,
    request: PageRequest,
    read: Callable[[str, int], Sequence[T]],
    key: Callable[[T], str] = attrgetter("id"),
) -> tuple[tuple[T, ...], str | UnsetType]:
    """Return the items of the page that `request` asks for and the cursor to the next one, if there is one.

    `read(after, limit)` returns the items behind a key (at the beginning: the empty one), one more than `limit` when
    there are more; it is asked for a few at a time. A page has at most 1000 items and, but for a single one, 8 MiB of them
    (behaviour 16). Raises InvalidRequest for a cursor of another listing.
    """
    after = "" if request.cursor is UNSET else cursors.open(request.cursor).decode()
    limit = min(request.limit, limits.MAX_PAGE_SIZE)
    items: list[T] = []
    room = limits.MAX_PAGE_BYTES
    while True:
        wanted = min(limit - len(items), ITEMS_AT_ONCE)
        found = read(after, wanted)
        for item in found[:wanted]:
            room -= len(encode(item)) + 1
            if items and room < 0:
                return tuple(items), cursors.sign(after.encode())
            items.append(item)
            after = key(item)
        if len(found) <= wanted:
            return tuple(items), UNSET
        if len(items) == limit:
            return tuple(items), cursors.sign(after.encode())


class WindowCursors:
    """Cursors into the history of one session, for whichever method shows windows of it.

    `limit` is that of the window asked for; None where the answer is not a window of the client's choice (an attach),
    so that its cursors go on with any limit.
    """

    def __init__(
        self, server_id: str, principal: Principal, session_id: str, limit: int | None = None
    ) -> None:
        """Bind to a session."""
        self._cursors = Cursors(server_id, principal, "history window", session_id)
        self._limit = limit

    def sign(self, place: Place) -> str:
        """Return the cursor to a place; a `queries.CursorMaker`."""
        return self._cursors.sign(encode((place.position, place.direction, place.effective, self._limit)))

    def open(self, cursor: str) -> Place:
        """Return the place of a cursor. Raises InvalidRequest for a foreign one, or one of another limit."""
        position, direction, effective, limit = _read_place(self._cursors.open(cursor))
        if limit not in (None, self._limit):
            raise _refused()
        return Place(position, direction, effective)


_read_place = msgspec.json.Decoder(tuple[int, Direction, bool, int | None]).decode
