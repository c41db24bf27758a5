"""What the list methods have in common (behaviour 12.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from ochat_site.dialects.ochat1.types import Page
from ochat_site.rpc import paging

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import PageRequest
    from ochat_site.rpc.context import Context

T = TypeVar("T")


def page_of(
    context: Context,
    params: PageRequest,
    read: Callable[[str, int], Sequence[T]],
    key: Callable[[T], str] = attrgetter("id"),
) -> Page[T]:
    """Return the page that the params of a list method ask for; see `paging.page`."""
    same = msgspec.structs.replace(params, cursor=UNSET)
    cursors = paging.Cursors(context.server.id, context.identity.principal, context.call.method, same)
    items, next_cursor = paging.page(cursors, params, read, key)
    return Page(items=items, next_cursor=next_cursor)


def given(value: T | UnsetType) -> T | None:
    """Return an optional member, None where it was left out."""
    return None if value is UNSET else value
