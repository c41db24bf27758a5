"""Checking what a client shows: from headers, cookies and peers to an `Identity` (behaviour 2.2 to 2.4).

Owns: the rules and precedence of credentials. Does not own: how a transport answers a failure (HTTP 401,
WebSocket 403, a closed socket), which is the transport's; the audit of failures is `audit.auth_failed`, which
the transport calls with its source.

Every failure is the one `Unauthenticated` with one fixed text: nobody learns why.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from hmac import compare_digest
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.utils.crypto import constant_time_compare

from permissions_app.models import SCOPES, Token
from permissions_app.principals import (
    ConsoleCredential,
    Identity,
    TokenCredential,
    identity,
    of_user,
    scopes_of_user,
)
from permissions_app.tokens import digest_of
from sessions_app import clock, ids, store
from sessions_app.errors import Unauthenticated

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from sessions_app.catalog_file import TrustedProxyEntry

Headers = Sequence[tuple[bytes, bytes]]
"""As ASGI gives them: repeated headers stay apart."""

_BEARER = re.compile(rb"bearer (\S+)", re.IGNORECASE)
_PRINCIPAL_ID = re.compile(r"pri_[A-Za-z0-9_-]{1,92}")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def refused() -> Unauthenticated:
    """Return the one refusal of every failed authentication."""
    return Unauthenticated("authentication is required")


def authenticate(
    headers: Headers,
    peer: str | None,
    proxies: Collection[TrustedProxyEntry] = (),
    *,
    console_session: str | None = None,
    anonymous: bool = False,
) -> Identity:
    """Return who sends an HTTP or WebSocket request: the proxy's assertion, else the bearer, else nobody.

    `peer` is the textual address of the other end. `console_session` is the key of a session at the console, which
    only a WebSocket of the server's own pages may show (behaviour 1.4). `anonymous` is true only where the catalog says
    `require_auth = false`. Raises Unauthenticated; a malformed Authorization header or a bad assertion fails
    whatever else is good.
    """
    token = bearer_token(headers)
    asserted = _asserted(headers, peer, proxies)
    if asserted is not None:
        return asserted
    if token is not None:
        return by_token(token)
    if console_session is not None:
        return by_console_session(console_session)
    if anonymous:
        return development_identity()
    raise refused()


def authenticate_bearer(headers: Headers) -> Identity:
    """Return who a request's bearer token stands for. Raises Unauthenticated without one, too."""
    return authenticate(headers, None)


def bearer_token(headers: Headers) -> bytes | None:
    """Return the token of the one Authorization header, or None where there is no such header.

    Raises Unauthenticated for a repeated header, another scheme, and anything but one space and a token
    without whitespace.
    """
    values = _values(headers, b"authorization")
    if not values:
        return None
    match = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if match is None:
        raise refused()
    return match[1]


def by_token(token: bytes) -> Identity:
    """Return who a token stands for; its scopes are at most those of the user behind it, if any.

    Raises Unauthenticated for an unknown, expired or revoked one, and when the user is disabled.
    """
    digest = digest_of(token)
    row = Token.objects.select_related("principal__user").filter(sha256=digest).first()
    if row is None or not compare_digest(row.sha256, digest) or not is_live(row, clock.now()):
        raise refused()
    principal, user = row.principal, row.principal.user
    if user is not None and not user.is_active:
        raise refused()
    return identity(
        principal.id,
        "http.static_bearer",
        row.scopes if user is None else scopes_of_user(user.pk).intersection(row.scopes),
        attributes=row.attributes,
        user_id=principal.user_id,
        credential=TokenCredential(row.id),
    )


def is_live(token: Token, now: datetime) -> bool:
    """Tell whether a token counts: not revoked, and `now` before its expiry."""
    return token.revoked_at is None and (token.expires_at is None or now < token.expires_at)


def by_console_session(session_key: str) -> Identity:
    """Return who is logged in at the console under this session key, with the scopes given to that user.

    Raises Unauthenticated for an unknown or ended session and a disabled account. The transport checks
    `is_same_origin` first.
    """
    kept = SessionStore(session_key).load()
    user: User | None = get_user_model().objects.filter(pk=kept.get(SESSION_KEY, 0), is_active=True).first()
    if user is None or not _still_valid(user, kept.get(HASH_SESSION_KEY, "")):
        raise refused()
    return identity(
        of_user(user).id,
        "http.console_session",
        scopes_of_user(user.pk),
        user_id=user.pk,
        credential=ConsoleCredential(session_key, password_digest(user.password)),
    )


def password_digest(password: str) -> str:
    """Return by what a connection notices that a stored password hash has changed."""
    return hashlib.sha256(password.encode()).hexdigest()


def _still_valid(user: User, session_hash: str) -> bool:
    # Not `auth.get_user`: that renews the session's key under a rotated secret, which a WebSocket cannot tell
    # the browser.
    current = (user.get_session_auth_hash(), *user.get_session_auth_fallback_hash())
    return any(constant_time_compare(session_hash, known) for known in current)


def is_same_origin(origin: str | None, scheme: str, host: str, trusted: Iterable[str] = ()) -> bool:
    """Tell whether a browser's `Origin` is the request's own scheme, host and port, or one of `trusted`.

    `scheme` (http, https, ws or wss) and `host` (a `Host` header) are those after trusted proxies. A missing
    origin is foreign.
    """
    given = _origin(origin or "")
    own = _origin(f"{scheme.replace('ws', 'http', 1)}://{host}")
    return given is not None and (given == own or any(given == _origin(one) for one in trusted))


def _origin(text: str) -> tuple[str, str, int] | None:
    try:
        parts = urlsplit(text)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    if not parts.hostname or parts.path or parts.query or parts.fragment or parts.username is not None:
        return None
    return parts.scheme, parts.hostname, port


def _asserted(headers: Headers, peer: str | None, proxies: Collection[TrustedProxyEntry]) -> Identity | None:
    """Return what a trusted peer asserts, or None when it, or an untrusted one, asserts nothing."""
    proxy = next((proxy for proxy in proxies if peer in proxy.trusted_addresses), None)
    if proxy is None or peer is None:
        return None
    principals = _values(headers, proxy.principal_header.lower().encode())
    lists = _values(headers, proxy.scopes_header.lower().encode())
    if not principals and not lists:
        return None
    if len(principals) != 1 or len(lists) != 1:
        raise refused()
    principal_id = principals[0].decode("latin-1")
    scopes = [word for word in re.split(r"[, \t]+", lists[0].decode("latin-1")) if word]
    known = set(SCOPES).intersection(scopes)
    if _PRINCIPAL_ID.fullmatch(principal_id) is None or not scopes or len(known) != len(scopes):
        raise refused()
    return identity(principal_id, "http.reverse_proxy", known, attributes={"http.proxy": peer})


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key.lower() == name]


def development_identity() -> Identity:
    """Return the one principal of everybody on an open development server, the same in all its processes."""
    principal_id = ids.derived_id("pri", "development", store.server_id())
    return identity(principal_id, "http.development_anonymous", SCOPES)


def unix_identity(uid: int, gid: int | None, pid: int | None) -> Identity:
    """Return the machine user at the other end of a Unix socket, whom the listener has already admitted."""
    known = {"unix.uid": uid, "unix.gid": gid, "unix.pid": pid}
    attributes = {name: str(number) for name, number in known.items() if number is not None}
    return identity(_machine_user(uid), "unix.peer_credentials", SCOPES, attributes=attributes)


def host_identity(uid: int) -> Identity:
    """Return the machine user who runs an embedded host over stdio."""
    return identity(_machine_user(uid), "stdio.host_user", SCOPES)


def _machine_user(uid: int) -> str:
    return ids.derived_id("pri", "unix", str(uid))
