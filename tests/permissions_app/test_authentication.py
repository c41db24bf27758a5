"""Who a request comes from, and every way in which it does not (behaviour 2.2 to 2.4, scenarios B1 to B4)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from permissions_app import authentication, tokens
from permissions_app.authentication import authenticate, authenticate_bearer
from permissions_app.models import SCOPES, Token
from permissions_app.principals import of_user, scope_permissions
from permissions_app.scopes import command_line
from sessions_app import clock
from sessions_app.catalog_file import TrustedProxyEntry
from sessions_app.errors import Unauthenticated
from tests.permissions_app import world

pytestmark = pytest.mark.django_db

PROXY = TrustedProxyEntry(trusted_addresses=("127.0.0.1",))


@pytest.fixture
def token() -> str:
    return world.token_of("robot", ("prompt.list",)).plaintext


def bearer(value: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", value.encode())]


def asserting(
    principal_id: str = "pri_alice", scopes: str = "prompt.list, audit.read"
) -> list[tuple[bytes, bytes]]:
    return [(b"x-ochat-principal-id", principal_id.encode()), (b"x-ochat-scopes", scopes.encode())]


@pytest.mark.parametrize(
    "value",
    [
        "unknown",
        "Basic {token}",
        "Bearer",
        "Bearer ",
        "Bearer  {token}",
        " Bearer {token}",
        "Bearer {token} more",
        "Bearer\t{token}",
        "Bearer {token}\n",
        "Bearer unknown",
        "Bearer {token}, Bearer {token}",
        "{token}",
    ],
)
def test_anything_but_one_bearer_and_a_known_token_is_refused(token: str, value: str) -> None:
    with pytest.raises(Unauthenticated, match=r"^authentication is required$"):
        authenticate_bearer(bearer(value.format(token=token)))


def test_a_missing_or_repeated_header_is_refused(token: str) -> None:
    good = bearer(f"Bearer {token}")
    for headers in ([], good * 2, good + bearer("Basic x")):
        with pytest.raises(Unauthenticated):
            authenticate_bearer(headers)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "bEaReR"])
def test_the_scheme_ignores_case(token: str, scheme: str) -> None:
    known = authenticate_bearer([(b"Authorization", f"{scheme} {token}".encode())])
    assert known.principal.authentication_kind == "http.static_bearer"
    assert known.principal.scopes == ("prompt.list",)


def test_a_token_is_valid_until_its_expiry_and_not_at_it() -> None:
    ends = clock.now() + timedelta(hours=1)
    token = world.token_of("robot", (), expires_at=ends).plaintext
    headers = bearer(f"Bearer {token}")
    with clock.using(lambda: ends - timedelta(microseconds=1)):
        assert authenticate_bearer(headers).principal.scopes == ()
    with clock.using(lambda: ends), pytest.raises(Unauthenticated):
        authenticate_bearer(headers)


def test_a_revoked_token_is_refused(token: str) -> None:
    tokens.revoke_token(command_line(), Token.objects.get().id)
    with pytest.raises(Unauthenticated):
        authenticate_bearer(bearer(f"Bearer {token}"))


def test_a_token_holds_at_most_what_its_user_holds() -> None:
    person = world.user("ada", ("prompt.list", "audit.read"))
    token = world.token_of(person, ("prompt.list", "audit.read")).plaintext
    person.user_permissions.set(scope_permissions().filter(codename="prompt.list"))
    known = authenticate_bearer(bearer(f"Bearer {token}"))
    assert known.principal.scopes == ("prompt.list",)
    assert known.principal.id == of_user(person).id


def test_a_token_ends_with_its_users_account() -> None:
    person = world.user("ada")
    token = world.token_of(person, ()).plaintext
    person.is_active = False
    person.save()
    with pytest.raises(Unauthenticated):
        authenticate_bearer(bearer(f"Bearer {token}"))


def test_a_trusted_proxy_says_who_it_is_and_a_bearer_beside_it_is_ignored() -> None:
    for headers in (asserting(), asserting() + bearer("Bearer unknown")):
        known = authenticate(headers, "127.0.0.1", [PROXY])
        assert known.principal.id == "pri_alice"
        assert known.principal.authentication_kind == "http.reverse_proxy"
        assert known.principal.scopes == ("prompt.list", "audit.read")
        assert known.principal.attributes == {"http.proxy": "127.0.0.1"}


@pytest.mark.parametrize(
    "headers",
    [
        asserting()[:1],
        asserting()[1:],
        asserting() + asserting()[:1],
        asserting(scopes=""),
        asserting(scopes=" ,\t"),
        asserting(scopes="prompt.list prompt.list"),
        asserting(scopes="prompt.list everything"),
        asserting(principal_id="alice"),
        asserting(principal_id="pri_" + "a" * 93),
    ],
)
def test_a_bad_assertion_fails_even_beside_a_good_bearer(
    token: str, headers: list[tuple[bytes, bytes]]
) -> None:
    with pytest.raises(Unauthenticated):
        authenticate(headers + bearer(f"Bearer {token}"), "127.0.0.1", [PROXY])


def test_a_malformed_bearer_fails_even_beside_a_good_assertion() -> None:
    with pytest.raises(Unauthenticated):
        authenticate(asserting() + bearer("Bearer"), "127.0.0.1", [PROXY])


def test_nobody_else_may_assert(token: str) -> None:
    known = authenticate(asserting() + bearer(f"Bearer {token}"), "127.0.0.2", [PROXY])
    assert known.principal.authentication_kind == "http.static_bearer"
    with pytest.raises(Unauthenticated):
        authenticate(asserting(), "127.0.0.2", [PROXY])
    with pytest.raises(Unauthenticated):
        authenticate(asserting(), None, [PROXY])


def test_a_proxy_that_asserts_nothing_leaves_the_bearer_to_count(token: str) -> None:
    assert authenticate(bearer(f"Bearer {token}"), "127.0.0.1", [PROXY]).principal.scopes == ("prompt.list",)


def test_everybody_is_one_principal_where_authentication_is_off() -> None:
    somebody = authenticate([], None, anonymous=True)
    assert somebody == authenticate([], "127.0.0.9", anonymous=True)
    assert somebody.principal.authentication_kind == "http.development_anonymous"
    assert somebody.principal.scopes == SCOPES
    with pytest.raises(Unauthenticated):
        authenticate(bearer("Bearer unknown"), None, anonymous=True)


def test_a_machine_user_is_the_same_principal_over_every_local_transport() -> None:
    peer = authentication.unix_identity(1000, 100, None)
    assert peer.principal.attributes == {"unix.gid": "100", "unix.uid": "1000"}
    assert peer.principal.scopes == SCOPES
    assert peer.principal.id == authentication.host_identity(1000).principal.id
    assert peer.principal.id != authentication.unix_identity(1001, 100, None).principal.id


def log_in(person: User) -> str:
    browser = Client()
    browser.force_login(person, "django.contrib.auth.backends.ModelBackend")
    key = browser.session.session_key
    assert key is not None
    return key


def test_a_console_session_is_its_user_with_the_scopes_given_to_it() -> None:
    person = world.user("ada", ("audit.read",), is_superuser=True)
    known = authentication.by_console_session(log_in(person))
    assert known.principal.id == of_user(person).id
    assert known.principal.authentication_kind == "http.console_session"
    assert known.principal.scopes == ("audit.read",)


def test_an_ended_console_session_is_refused() -> None:
    person = world.user("ada")
    first = log_in(person)
    for key in ("", "unknown"):
        with pytest.raises(Unauthenticated):
            authentication.by_console_session(key)
    person.set_password("something else")
    person.save()
    with pytest.raises(Unauthenticated):
        authentication.by_console_session(first)
    second = log_in(person)
    person.is_active = False
    person.save()
    with pytest.raises(Unauthenticated):
        authentication.by_console_session(second)


@pytest.mark.parametrize(
    ("origin", "same"),
    [
        ("http://localhost:8787", True),
        ("HTTP://LOCALHOST:8787", True),
        ("https://console.example.org", True),
        ("https://console.example.org:443", True),
        (None, False),
        ("null", False),
        ("http://localhost", False),
        ("https://localhost:8787", False),
        ("http://localhost:8787.evil.example", False),
        ("http://localhost:8787@evil.example", False),
        ("http://evil.example/http://localhost:8787", False),
        ("http://localhost:port", False),
    ],
)
def test_an_origin_is_the_requests_own_or_a_trusted_one(origin: str | None, same: bool) -> None:
    trusted = ["https://console.example.org"]
    assert authentication.is_same_origin(origin, "ws", "localhost:8787", trusted) is same
