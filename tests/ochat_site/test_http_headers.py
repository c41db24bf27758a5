"""What Django's answers carry, whatever they are about."""

from django.test import Client


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
