"""Cursors are opened by whoever they were made for, where they were made for, untouched; nobody else (behaviour 12.2)."""

from __future__ import annotations

import string
from typing import Any

import pytest
from pytest_django import Settings

from ochat_site.dialects.ochat1.types import PageRequest
from ochat_site.rpc.paging import ITEMS_AT_ONCE, Cursors, WindowCursors, page
from sessions_app import limits
from sessions_app.errors import InvalidRequest
from sessions_app.queries import Direction, Place
from sessions_app.records import Principal

KEY = b"ses_AAAAAAAAAAAAAAAAAAAAAAAA"
REQUEST = PageRequest(limit=20)


def principal(**changed: Any) -> Principal:
    members = {
        "id": "pri_ann",
        "authentication_kind": "http.static_bearer",
        "scopes": ("prompt.list", "workspace.list"),
        "attributes": {"team": "red", "zone": "1"},
    }
    return Principal(**{**members, **changed})


def cursors(
    server: str = "srv_a",
    who: Principal | None = None,
    method: str = "session.list",
    request: PageRequest = REQUEST,
) -> Cursors:
    return Cursors(server, who or principal(), method, request)


def test_a_cursor_gives_its_key_back_after_a_restart() -> None:
    assert cursors().open(cursors().sign(KEY)) == KEY


@pytest.mark.parametrize(
    "other",
    [
        cursors(server="srv_b"),
        cursors(who=principal(id="pri_bob")),
        cursors(who=principal(authentication_kind="http.oauth")),
        cursors(who=principal(scopes=("prompt.list",))),
        cursors(who=principal(scopes=("prompt.list", "workspace.list", "session.own"))),
        cursors(who=principal(attributes={"team": "blue", "zone": "1"})),
        cursors(who=principal(attributes={})),
        cursors(method="prompt.list"),
        cursors(request=PageRequest(limit=21)),
        Cursors("srv_a", principal(), "session.list", "ses_a", REQUEST),
    ],
)
def test_a_cursor_of_another_listing_is_refused(other: Cursors) -> None:
    with pytest.raises(InvalidRequest):
        cursors().open(other.sign(KEY))


def test_the_order_of_attributes_does_not_matter() -> None:
    turned = principal(attributes={"zone": "1", "team": "red"})

    assert cursors(who=turned).open(cursors().sign(KEY)) == KEY


def test_a_touched_cursor_is_refused() -> None:
    made = cursors().sign(KEY)
    touched = {
        *(
            made[:at] + other + made[at + 1 :]
            for at in range(len(made))
            for other in "AQgw-_=9"
            if other != made[at]
        ),
        *(made[:at] + made[at + 1 :] for at in range(len(made))),
        *(made[:at] + letter + made[at:] for at in range(len(made) + 1) for letter in "A=\n é"),
        *(made[:at] for at in range(len(made))),
        made.rstrip("="),
        made.swapcase(),
    } - {made}

    for text in touched:
        with pytest.raises(InvalidRequest):
            cursors().open(text)


def test_no_other_ending_means_the_same_bytes() -> None:
    """Base64 leaves bits of its last letter unused."""
    made = cursors().sign(b"k" * 30)
    assert made.endswith("=")
    body = made.rstrip("=")

    for letter in set(string.ascii_letters + string.digits + "-_") - {body[-1]}:
        with pytest.raises(InvalidRequest):
            cursors().open(body[:-1] + letter + "=" * (len(made) - len(body)))


@pytest.mark.parametrize("text", ["", "x", "=", "ü", "a" * limits.MAX_CURSOR_BYTES, "\x00", "🙂"])
def test_something_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        cursors().open(text)


def test_a_cursor_outlives_a_rotated_secret(settings: Settings) -> None:
    made = cursors().sign(KEY)

    former, settings.SECRET_KEY = settings.SECRET_KEY, "another " * 8
    with pytest.raises(InvalidRequest):
        cursors().open(made)
    settings.SECRET_KEY_FALLBACKS = [former]
    assert cursors().open(made) == KEY


def test_a_cursor_is_short_and_travels_in_any_text() -> None:
    made = cursors().sign(b"x" * 1024)

    assert len(made) <= limits.MAX_CURSOR_BYTES
    assert set(made) <= set(string.ascii_letters + string.digits + "-_=")


class Shelf:
    """A collection that changes between pages."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)
        self.asked: list[int] = []

    def read(self, after: str, limit: int) -> list[str]:
        self.asked.append(limit)
        return sorted(name for name in self.names if name > after)[: limit + 1]

    def page(self, limit: int, cursor: Any = None) -> tuple[tuple[str, ...], Any]:
        request = PageRequest(limit=limit) if cursor is None else PageRequest(limit=limit, cursor=cursor)
        same = cursors(request=PageRequest(limit=limit))
        return page(same, request, self.read, key=str)


def test_pages_follow_each_other_without_gap_or_repeat() -> None:
    shelf = Shelf(*"abcde")

    first, after_first = shelf.page(2)
    second, after_second = shelf.page(2, after_first)
    third, end = shelf.page(2, after_second)

    assert [*first, *second, *third] == list("abcde")
    assert not isinstance(end, str)


def test_a_page_that_is_exactly_full_is_the_last() -> None:
    _, end = Shelf(*"ab").page(2)

    assert not isinstance(end, str)


def test_rows_that_come_and_go_do_not_matter() -> None:
    shelf = Shelf(*"abcdef")
    _, cursor = shelf.page(3)
    shelf.names -= {"a", "c", "d"}
    shelf.names |= {"aa", "dd"}

    assert shelf.page(3, cursor)[0] == ("dd", "e", "f")


def test_a_page_is_clamped_silently() -> None:
    shelf = Shelf(*(f"{number:05d}" for number in range(1500)))

    items, cursor = shelf.page(limits.MAX_CODEC_PAGE_SIZE)
    rest, _ = shelf.page(limits.MAX_CODEC_PAGE_SIZE, cursor)

    assert (len(items), len(rest)) == (1000, 500)
    assert max(shelf.asked) == ITEMS_AT_ONCE
    assert shelf.asked[:16] == [64] * 15 + [40]


def pages_of(sizes: list[int], limit: int) -> list[list[int]]:
    """Walk a list whose items take so many bytes; how large the items of each page are."""

    def read(after: str, count: int) -> list[str]:
        start = int(after) if after else 0
        return [
            f"{place:04d}".ljust(size)
            for place, size in enumerate(sizes[start : start + count + 1], start + 1)
        ]

    pages: list[list[int]] = []
    request = PageRequest(limit=limit)
    while True:
        items, cursor = page(cursors(), request, read, key=lambda item: item[:4])
        pages.append([len(item) for item in items])
        if not isinstance(cursor, str):
            return pages
        request = PageRequest(limit=limit, cursor=cursor)


def test_a_page_ends_at_8_mib() -> None:
    """16: nothing that is sent exceeds 16 MiB, whatever the items of a list hold."""
    found = pages_of([limits.MIB] * 20, 100)
    assert [len(sizes) for sizes in found] == [7, 7, 6]


def test_an_item_larger_than_a_page_is_a_page_by_itself() -> None:
    large = limits.MAX_PAGE_BYTES + 1
    assert pages_of([4, large, 4, 4], 5) == [[4], [large], [4, 4]]
    assert pages_of([large, large], 5) == [[large], [large]]


def windows(limit: int | None = None, session: str = "ses_a", who: Principal | None = None) -> WindowCursors:
    return WindowCursors("srv_a", who or principal(), session, limit)


@pytest.mark.parametrize("direction", ["before", "after"])
@pytest.mark.parametrize("effective", [True, False])
def test_a_window_cursor_gives_its_place_back(direction: Direction, effective: bool) -> None:
    place = Place(2**62, direction, effective)

    assert windows(50).open(windows(50).sign(place)) == place


def test_a_window_cursor_holds_its_limit_where_one_was_asked_for() -> None:
    place = Place(7, "before", effective=False)

    assert windows(50).open(windows(None).sign(place)) == place
    with pytest.raises(InvalidRequest):
        windows(51).open(windows(50).sign(place))


@pytest.mark.parametrize("other", [windows(session="ses_b"), windows(who=principal(id="pri_bob"))])
def test_a_window_cursor_of_another_session_or_reader_is_refused(other: WindowCursors) -> None:
    with pytest.raises(InvalidRequest):
        windows(50).open(other.sign(Place(7, "before", effective=False)))


def test_a_page_cursor_is_no_window_cursor() -> None:
    with pytest.raises(InvalidRequest):
        windows(20).open(cursors().sign(b'[7,"before",false,null]'))
