"""What Django's answers carry, whatever they are about."""

from pathlib import Path

from django.test import Client
from pytest_django.fixtures import Settings

from sessions_app import catalog
from tests.support.catalogs import CATALOG, Catalog


def test_every_answer_carries_the_policy(db: None) -> None:
    headers = Client().get("/").headers
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"


def test_cookies_are_secure_over_tls_and_usable_without(db: None) -> None:
    for secure in (False, True):
        response = Client().get("/admin/login/", secure=secure)
        cookie = response.cookies["ochat_csrf"]
        assert bool(cookie["secure"]) is secure
        assert cookie["httponly"]
        assert cookie["samesite"] == "Strict"


def test_a_strange_host_is_refused(db: None) -> None:
    assert Client().get("/", headers={"host": "evil.example.org"}).status_code == 400


def test_static_files_need_no_collecting_step(db: None) -> None:
    response = Client().get("/static/admin/css/base.css")
    assert response.status_code == 200
    assert b"".join(response.streaming_content).startswith(b"/*")  # type: ignore[attr-defined]  # a file answer


def test_only_a_trusted_proxy_may_say_that_tls_was_used(
    transactional_db: None, settings: Settings, tmp_path: Path
) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    files = Catalog(tmp_path)
    files.write(f'{CATALOG}\n[[trusted_proxies]]\ntrusted_addresses = ["192.0.2.1"]\n')
    catalog.load(files.source)
    catalog.refresh()
    for peer, secure in (("192.0.2.1", True), ("192.0.2.2", False)):
        client = Client(headers={"x-forwarded-proto": "https"}, REMOTE_ADDR=peer)
        assert bool(client.get("/admin/login/").cookies["ochat_csrf"]["secure"]) is secure
    catalog.forget()
