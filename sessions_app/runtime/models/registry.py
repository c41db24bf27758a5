"""Which adapter answers to which name.

Owns names and one adapter per kind of provider, with its pooled connections. Does not own what the adapters
do.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from sessions_app.runtime.models.anthropic import Anthropic
from sessions_app.runtime.models.demo import Demo
from sessions_app.runtime.models.openai_chat import OpenAIChat
from sessions_app.runtime.models.openai_responses import OpenAIResponses
from sessions_app.runtime.models.port import Model, ModelEvent, ModelRequest
from sessions_app.runtime.models.pydantic_ai import PydanticAI
from sessions_app.runtime.models.sdk import ClientOptions, anthropic_endpoint, openai_endpoint


class Adapter(Protocol):
    """What speaks with one kind of provider."""

    def stream(self, model: str, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask the provider's `model`; see `port.Model.stream`."""

    async def aclose(self) -> None:
        """Close the connections."""


class NamedModel:
    """A model of an adapter (`port.Model`)."""

    def __init__(self, name: str, adapter: Adapter, model: str) -> None:
        self.name = name
        self._adapter = adapter
        self._model = model

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask the model; see `port.Model.stream`."""
        return self._adapter.stream(self._model, request)


class Models:
    """The models of one process. Made once for its event loop, to which the connections belong; close it in
    that loop.

    `default_provider` is the provider of a name without one (`OCHAT_MODEL_PROVIDER`).
    """

    def __init__(self, default_provider: str, options: ClientOptions | None = None) -> None:
        options = options or ClientOptions()
        openai = openai_endpoint(options)
        responses = OpenAIResponses(openai)
        self._default_provider = default_provider
        self._others = PydanticAI(options)
        self._adapters: dict[str, Adapter] = {
            "anthropic": Anthropic(anthropic_endpoint(options)),
            "demo": Demo(),
            "openai": responses,
            "openai-chat": OpenAIChat(openai),
            "openai-responses": responses,
        }

    def resolve(self, name: str) -> Model:
        """Return the model `provider:model` (pydantic-ai's names). Nothing is imported or connected before
        it is asked, so an unknown provider too is an error only then."""
        provider, colon, model = name.partition(":")
        if not colon:
            provider, model = self._default_provider, name
        full = f"{provider}:{model}"
        if provider in self._adapters:
            return NamedModel(full, self._adapters[provider], model)
        return NamedModel(full, self._others, full)

    async def aclose(self) -> None:
        """Close every connection."""
        for adapter in (*self._adapters.values(), self._others):
            await adapter.aclose()
