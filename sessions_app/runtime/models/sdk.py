"""The official SDKs, used as transports.

Owns one client per provider and process, made at first use, and reading the events of a streamed answer.
Does not own what is sent or what the events mean (the adapters). Keys, base URLs, proxies, retries and
time-outs are the SDK's, from its usual variables; its typed requests and responses are not used, because
they walk every item of the history.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sessions_app.runtime.models.failures import broken_off, failure, from_status
from sessions_app.runtime.models.port import ModelError
from sessions_app.runtime.models.sse import EventDecoder, EventTooLargeError

if TYPE_CHECKING:
    import httpx2

_CONNECT_S = 5.0
"""The SDKs' own bound on connecting, kept when `silence_s` replaces their bound on silence."""


class ClientOptions(msgspec.Struct, frozen=True):
    """What may be set of the SDKs' behaviour; None leaves theirs.

    `silence_s`: how long a provider may send nothing (SDK: 600 s). `max_retries`: how often a request that
    failed before any output is repeated (SDK: 2).
    """

    silence_s: float | None = None
    max_retries: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Return them as keyword arguments of an SDK client."""
        import httpx2

        arguments: dict[str, Any] = {}
        if self.silence_s is not None:
            arguments["timeout"] = httpx2.Timeout(self.silence_s, connect=min(_CONNECT_S, self.silence_s))
        if self.max_retries is not None:
            arguments["max_retries"] = self.max_retries
        return arguments


class _Sdk(NamedTuple):
    """A client, and the base of the errors it raises. It is untyped: the two SDKs share a shape but no
    class."""

    client: Any
    errors: type[Exception]


class Answer:
    """The streamed answer to one request: iterate it for the data of its server-sent events, and close it.

    Raises ModelError when the stream breaks or falls silent.
    """

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._chunks = response.aiter_bytes()
        self._decoder = EventDecoder()
        self._ready: deque[bytes] = deque()

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> bytes:
        import httpx2

        while not self._ready:
            try:
                self._ready.extend(self._decoder.feed(await anext(self._chunks)))
            except httpx2.TimeoutException:
                raise broken_off("fell silent") from None
            except (httpx2.HTTPError, OSError):
                raise broken_off("closed the connection") from None
            except EventTooLargeError:
                raise broken_off("sent an event without end") from None
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Give the connection back, or close it where the answer was not read to its end."""
        await self._chunks.aclose()
        await self._response.aclose()


class Endpoint:
    """One provider behind its SDK. It belongs to the event loop that first uses it."""

    def __init__(self, build: Callable[[], _Sdk]) -> None:
        self._build = build
        self._lock = asyncio.Lock()
        self._sdk: _Sdk | None = None

    async def post(self, path: str, body: bytes) -> Answer:
        """Post the encoded `body` and return the answer once its head is there. Raises ModelError."""
        sdk = await self._ready()
        import httpx2

        try:
            response = await sdk.client.post(path, cast_to=httpx2.Response, content=body, stream=True)
        except sdk.errors as error:
            raise _refusal(error) from None  # Its text may quote the key or the prompt.
        return Answer(response)

    async def aclose(self) -> None:
        """Close the client's connections; the endpoint makes a new client when it is used again."""
        sdk, self._sdk = self._sdk, None
        if sdk is not None:
            await sdk.client.close()

    async def _ready(self) -> _Sdk:
        if self._sdk is None:
            async with self._lock:
                if self._sdk is None:
                    # In a thread: the import takes most of a second, and other turns are streaming.
                    self._sdk = await asyncio.to_thread(self._build)
        return self._sdk


def openai_endpoint(options: ClientOptions) -> Endpoint:
    """Return OpenAI, or what OPENAI_BASE_URL names."""

    def build() -> _Sdk:
        import httpx2
        import openai

        try:
            return _Sdk(openai.AsyncOpenAI(**options.arguments()), openai.OpenAIError)
        except openai.OpenAIError:
            raise _no_credentials("OPENAI_API_KEY") from None
        except httpx2.InvalidURL:
            raise _no_url("OPENAI_BASE_URL") from None

    return Endpoint(build)


def anthropic_endpoint(options: ClientOptions) -> Endpoint:
    """Return Anthropic, or what ANTHROPIC_BASE_URL names."""

    def build() -> _Sdk:
        import anthropic
        import httpx2

        try:
            client = anthropic.AsyncAnthropic(**options.arguments())
        except httpx2.InvalidURL:
            raise _no_url("ANTHROPIC_BASE_URL") from None
        if client.api_key is None and client.auth_token is None and client.credentials is None:
            raise _no_credentials("ANTHROPIC_API_KEY")
        return _Sdk(client, anthropic.AnthropicError)

    return Endpoint(build)


def _no_credentials(variable: str) -> ModelError:
    return ModelError(
        "provider_auth", f"There are no credentials for the model provider: set {variable}", retryable=False
    )


def _no_url(variable: str) -> ModelError:
    return ModelError("provider_refused", f"{variable} is not a URL", retryable=False)


def _refusal(error: Exception) -> ModelError:
    """Return the error for what an SDK raised: it names a status, or a connection that failed or timed
    out."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return from_status(status, getattr(error, "body", None))
    return failure("provider_unavailable", retryable=True)
