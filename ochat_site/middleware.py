"""What every HTTP answer of Django carries: the content security policy, and Secure cookies over TLS."""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

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
