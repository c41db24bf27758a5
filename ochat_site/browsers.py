"""What a browser's handshake proves: the page it comes from, and the login of the console (behaviour 1.4, 2.2).

Owns: which origin is the server's own, after trusted proxies, and when a cookie counts. Does not own: what the cookie stands
for and the precedence of credentials (`permissions_app.authentication`).

A browser sends its cookies, and opens WebSockets, for whichever page asks. So a cookie counts only for a page of this server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.conf import settings
from django.http import parse_cookie
from django.http.request import split_domain_port, validate_host

from permissions_app.authentication import is_same_origin
from sessions_app import catalog

if TYPE_CHECKING:
    from ochat_site.transports.websocket import Scope


def console_session(scope: Scope) -> str | None:
    """Return the key of the console's session that a page of this server shows; None when there is none, or another page asks.

    It counts for WebSockets alone: a request over HTTP would need more than an origin (behaviour 2.2).
    """
    if scope["type"] != "websocket":
        return None
    cookies = parse_cookie("; ".join(_header(scope, b"cookie")))
    key = cookies.get(settings.SESSION_COOKIE_NAME)
    return key if key and _is_own_page(scope) else None


def may_be_anonymous(scope: Scope) -> bool:
    """Tell whether a handshake without credentials may count: not one that a page of another site made in a browser."""
    return not _header(scope, b"origin") or _is_own_page(scope)


def _is_own_page(scope: Scope) -> bool:
    """Tell whether the one `Origin` is the request's own scheme, host and port, or a trusted one.

    The host must be one that this server goes by: a name of somebody else that leads here (DNS rebinding) makes no page ours.
    """
    origins, hosts = _header(scope, b"origin"), _header(scope, b"host")
    if len(origins) != 1 or len(hosts) != 1:
        return False
    name, _ = split_domain_port(hosts[0])
    if not validate_host(name, settings.ALLOWED_HOSTS):
        return False
    return is_same_origin(origins[0], client_scheme(scope), hosts[0], settings.ENV.trusted_origins)


def client_scheme(scope: Scope) -> str:
    """Return how the client came, by the word of a trusted proxy if there is one (behaviour 2.4).

    A header that comes twice is no word: one of the two may be the client's own.
    """
    scheme = str(scope.get("scheme", "ws"))
    said, client = settings.SECURE_PROXY_SSL_HEADER, scope.get("client")
    if said is None or client is None:
        return scheme
    values = _header(scope, said[0].removeprefix("HTTP_").replace("_", "-").lower().encode())
    trusted = any(client[0] in proxy.trusted_addresses for proxy in catalog.current().trusted_proxies)
    if not trusted or not values:
        return scheme
    plain, safe = ("http", "https") if scheme.startswith("http") else ("ws", "wss")
    return safe if len(values) == 1 and values[0].split(",")[0].strip() == said[1] else plain


def _header(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]
