"""What holds for every HTTP request to Django: whose word on TLS counts, and what each answer carries."""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from sessions_app import catalog

# Everything shown is shipped with the server; nothing is inline, framed or fetched from elsewhere.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "img-src 'self' data:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)


class TrustedProxyTls:
    """Takes the header that says "the client used TLS" away from everybody but the catalog's trusted proxies.

    Django believes the header of `SECURE_PROXY_SSL_HEADER` whoever sends it.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.SECURE_PROXY_SSL_HEADER is not None:
            peer = request.META.get("REMOTE_ADDR")
            if not any(peer in proxy.trusted_addresses for proxy in catalog.current().trusted_proxies):
                request.META.pop(settings.SECURE_PROXY_SSL_HEADER[0], None)
        return self._get_response(request)


class SecurityHeaders:
    """Sets the policy on every answer, and marks its cookies Secure when the request came over TLS.

    The second is not the static `SESSION_COOKIE_SECURE`, because one server is reached over plain HTTP
    on its own machine and over TLS through a proxy.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        response.headers.setdefault("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        if request.is_secure():
            for cookie in response.cookies.values():
                cookie["secure"] = True
        return response
