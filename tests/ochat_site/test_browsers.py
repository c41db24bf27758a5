"""What a browser's handshake proves, whatever page makes it (behaviour 1.4, 2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from ochat_site.browsers import console_session, may_be_anonymous
from sessions_app import catalog
from tests.support.catalogs import CATALOG, Catalog

HERE = b"127.0.0.1:8787"


def scope(
    *origins: bytes, host: bytes = HERE, cookies: Sequence[bytes] = (b"ochat_session=key",), **more: Any
) -> dict[str, Any]:
    headers = [(b"host", host), *((b"Origin", origin) for origin in origins)]
    headers += [(b"cookie", cookie) for cookie in cookies]
    return {"type": "websocket", "scheme": "ws", "client": ("192.0.2.1", 1), "headers": headers, **more}


@pytest.mark.parametrize(
    ("origins", "own"),
    [
        ([b"http://127.0.0.1:8787"], True),
        ([b"http://127.0.0.1:9999"], False),
        ([b"https://127.0.0.1:8787"], False),
        ([b"https://evil.example"], False),
        ([b"null"], False),
        ([b"http://127.0.0.1:8787", b"http://127.0.0.1:8787"], False),
    ],
)
def test_a_page_of_another_site_proves_nothing(origins: Sequence[bytes], own: bool) -> None:
    assert console_session(scope(*origins)) == ("key" if own else None)
    assert may_be_anonymous(scope(*origins)) is own


def test_what_is_no_browser_has_no_cookie_that_counts() -> None:
    assert console_session(scope()) is None
    assert may_be_anonymous(scope())


def test_the_cookie_counts_for_websockets_alone() -> None:
    """2.2: "counts only on `/v1/ws` and the console's own pages"; a request of HTTP shows a bearer."""
    own = b"http://127.0.0.1:8787"
    assert console_session(scope(own)) == "key"
    assert console_session(scope(own, type="http", scheme="http")) is None


def test_a_name_of_somebody_else_that_leads_here_makes_no_page_ours() -> None:
    rebound = scope(b"http://evil.example:8787", host=b"evil.example:8787")
    assert console_session(rebound) is None
    assert not may_be_anonymous(rebound)


@pytest.mark.parametrize(
    ("cookies", "key"),
    [
        ([], None),
        ([b"other=1"], None),
        ([b"ochat_session="], None),
        ([b"other=1; ochat_session=key"], "key"),
        ([b"other=1", b"ochat_session=key"], "key"),
    ],
)
def test_the_cookie_is_found_among_others(cookies: Sequence[bytes], key: str | None) -> None:
    assert console_session(scope(b"http://127.0.0.1:8787", cookies=cookies)) == key


@pytest.mark.parametrize(
    ("peer", "said", "scheme"),
    [
        ("192.0.2.1", [b"https"], "https"),
        ("192.0.2.1", [b"https, http"], "https"),
        ("192.0.2.1", [b"https", b"https"], "http"),
        ("192.0.2.1", [b"http"], "http"),
        ("192.0.2.1", [], "http"),
        ("192.0.2.2", [b"https"], "http"),
    ],
)
def test_the_scheme_is_what_a_trusted_proxy_says(
    transactional_db: None,
    settings: Settings,
    tmp_path: Path,
    peer: str,
    said: Sequence[bytes],
    scheme: str,
) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    files = Catalog(tmp_path)
    files.write(f'{CATALOG}\n[[trusted_proxies]]\ntrusted_addresses = ["192.0.2.1"]\n')
    catalog.load(files.source)
    catalog.refresh()
    try:
        for origin in ("http", "https"):
            asked = scope(f"{origin}://localhost".encode(), host=b"localhost", client=(peer, 1))
            asked["headers"] += [(b"x-forwarded-proto", value) for value in said]
            assert console_session(asked) == ("key" if origin == scheme else None)
    finally:
        catalog.forget()
