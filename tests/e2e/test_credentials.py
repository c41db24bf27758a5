"""Credentials over WebSocket: the console's cookie beside the bearer, and the end of either while it is in use (behaviour 1.4)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session as ConsoleSession
from django.test import Client as Browser

from ochat_client import ConnectionLost
from permissions_app import tokens
from permissions_app.models import SCOPES, Token
from permissions_app.principals import of_service, of_user, scope_permissions
from permissions_app.scopes import command_line
from sessions_app.db import in_db
from tests.conformance.fixture import ADMIN, ALL, Person
from tests.conformance.local import LocalSite
from tests.conformance.peers import WAIT_SECONDS, Peer, answered
from tests.conformance.sites import Headers, Site, SocketSite, bearer

PASSWORD = "a long enough secret"
ENDED = 4401
PAST = datetime(2020, 1, 1, tzinfo=UTC)


def person(name: str) -> User:
    """Make somebody who holds every scope."""
    made = User.objects.create_user(name, password=PASSWORD, is_staff=True)
    made.user_permissions.set(scope_permissions())
    return made


def of_browser(key: str, origin: str) -> Headers:
    return [(b"cookie", f"theme=dark; ochat_session={key}".encode()), (b"origin", origin.encode())]


async def connected(site: Site, headers: Headers) -> Peer:
    peer = await site.connect(headers=headers)
    await peer.client.initialize()
    return peer


async def closed(peer: Peer) -> int | None:
    """Wait for the end of a connection; its close code."""
    listening = peer.client.listen()
    with pytest.raises(ConnectionLost) as lost:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                await anext(listening)
    return lost.value.close_code


# The console's own login, over sockets


async def test_the_cookie_of_the_console(socket_site: SocketSite) -> None:
    """Who logs in at the console is connected by its cookie, from its own pages alone, until the logout."""
    installation = socket_site.processes.installation
    ada = await in_db(person, "ada")
    async with httpx.AsyncClient(base_url=installation.url, trust_env=False) as browser:
        key = await _log_in(browser)
        headers = of_browser(key, installation.url)
        peer = await socket_site.connect(headers=headers)
        principal = (await peer.client.initialize()).principal
        assert principal.authentication_kind == "http.console_session"
        assert principal.id == (await in_db(of_user, ada)).id
        assert set(principal.scopes) == set(SCOPES)
        held = await peer.create()
        assert (await peer.get(held.session_id)).session.creator == principal.id

        cookie, own = headers
        for foreign in (b"https://evil.example", b"null", b"http://localhost:1"):
            assert await socket_site.handshake([cookie, (b"origin", foreign)]) == 403
        assert await socket_site.handshake([cookie]) == 403
        assert await socket_site.handshake([own]) == 403
        assert await socket_site.handshake(headers, "access_token=x") == 403
        assert await socket_site.handshake([*headers, (b"authorization", b"Bearer nobody")]) == 403
        assert await socket_site.handshake(of_browser("0" * 32, installation.url)) == 403

        await _post(browser, "/admin/logout/", "/admin/")
        assert await closed(peer) == ENDED
    assert await socket_site.handshake(headers) == 403


async def _log_in(browser: httpx.AsyncClient) -> str:
    await _post(browser, "/admin/login/", "/admin/login/", username="ada", password=PASSWORD)
    return browser.cookies["ochat_session"]


async def _post(browser: httpx.AsyncClient, path: str, page: str, **fields: str) -> None:
    """Send the form of a page as a browser does."""
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', (await browser.get(page)).text)
    assert token is not None
    answer = await browser.post(path, data={"csrfmiddlewaretoken": token[1], **fields})
    assert answer.status_code in (200, 302)


async def test_a_bearer_counts_before_the_cookie(local_site: LocalSite) -> None:
    key = await in_db(_login, await in_db(person, "bea"))
    headers = [*of_browser(key, "http://localhost"), bearer(ADMIN)]
    peer = await local_site.connect(headers=headers)
    assert (await peer.client.initialize()).principal.id == ADMIN.principal


def _login(user: User) -> str:
    browser = Browser()
    browser.force_login(user, "django.contrib.auth.backends.ModelBackend")
    key = browser.session.session_key
    assert key is not None
    return key


# What ends a credential


def _expire_login(user: User) -> None:
    ConsoleSession.objects.all().update(expire_date=PAST)


def _disable(user: User) -> None:
    User.objects.filter(pk=user.pk).update(is_active=False)


def _take_a_scope(user: User) -> None:
    user.user_permissions.remove(*scope_permissions().filter(codename="session.stop"))


def _expire_token(user: User) -> None:
    Token.objects.filter(principal__user=user).update(expires_at=PAST)


@pytest.mark.parametrize(
    ("by", "end"),
    [
        ("cookie", _expire_login),
        ("cookie", _disable),
        ("token", _expire_token),
        ("token", _take_a_scope),
    ],
)
async def test_a_credential_that_ends_closes_its_connection(
    local_site: LocalSite, by: str, end: Callable[[User], None]
) -> None:
    """4401, and the handshake after it is refused or proves less; whoever came with another credential stays.

    Every other cause is in `permissions_app/test_watch`, which asks the same question of the store alone.
    """
    name = f"{by}{end.__name__}"
    user = await in_db(person, name)
    if by == "cookie":
        headers = of_browser(await in_db(_login, user), "http://localhost")
    else:
        issued = await in_db(_token, user)
        headers = [(b"authorization", b"Bearer " + issued.plaintext.encode())]
    peer, bystander = await connected(local_site, headers), await local_site.peer()
    held = await peer.create()

    await in_db(end, user)
    assert await closed(peer) == ENDED

    assert (await bystander.get(held.session_id)).session.id == held.session_id
    if end is _take_a_scope:
        again = await local_site.connect(headers=headers)
        assert "session.stop" not in (await again.client.initialize()).principal.scopes
    else:
        assert await local_site.handshake(headers) == 403


def _token(user: User) -> tokens.Issued:
    return tokens.create_token(command_line(), of_user(user), scopes=SCOPES, source="command")


async def test_the_command_revokes(socket_site: SocketSite) -> None:
    """`manage.py token revoke` in a process of its own ends what is open in the web process."""

    def issue() -> tokens.Issued:
        return tokens.create_token(command_line(), of_service("leaver"), scopes=ALL, source="command")

    issued = await in_db(issue)
    headers = [(b"authorization", b"Bearer " + issued.plaintext.encode())]
    peer = await connected(socket_site, headers)

    installation = socket_site.processes.installation
    done = await asyncio.to_thread(installation.run, "token", "revoke", issued.token.id)
    assert done.returncode == 0, done.stderr
    assert await closed(peer) == ENDED
    assert await socket_site.handshake(headers) == 403


LEAVER = Person("leaver", ALL, "pri_leaver")


async def test_a_token_leaves_the_catalog_file(framed_site: Site) -> None:
    """A reload takes the tokens with it, all or nothing: a broken file ends nobody, the mended one those it no longer lists."""
    site = framed_site
    file = site.data_dir / "ochat.toml"
    before = file.read_text()
    try:
        file.write_text(f"{before}\n{LEAVER.entry}")
        await site.reload()
        await answered(lambda: _let_in(site, LEAVER), "the new token counts")
        peer = await connected(site, [bearer(LEAVER)])

        file.write_text("model = []\n" + before)
        await site.reload()
        await answered(lambda: _is_degraded(site), "the broken file is noticed")
        assert await site.handshake([bearer(LEAVER)]) == 101
    finally:
        file.write_text(before)
        await site.reload()
    assert await closed(peer) == ENDED
    assert await site.handshake([bearer(LEAVER)]) == 403


async def _let_in(site: Site, who: Person) -> bool:
    return await site.handshake([bearer(who)]) == 101


async def _is_degraded(site: Site) -> bool:
    health = await (await site.peer()).call("server.health", include_details=True)
    states = {component["name"]: component["status"] for component in health["components"]}
    return bool(states["configuration"] == "degraded")
