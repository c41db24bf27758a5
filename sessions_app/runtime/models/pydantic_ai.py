"""Every other provider, behind pydantic-ai's direct model API.

Owns the models made so far and when the library is loaded. Does not own the conversation with it
(`pydantic_ai_talk`), which is imported at first use: the library is the heaviest one here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING

from sessions_app.runtime.models.port import ModelEvent, ModelRequest
from sessions_app.runtime.models.sdk import ClientOptions

if TYPE_CHECKING:
    from pydantic_ai.models import Model


class PydanticAI:
    """The adapter of every name that no other adapter has; it is asked by the full name, `provider:model`."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._lock = asyncio.Lock()
        self._models: dict[str, Model] = {}
        self._clients = AsyncExitStack()

    async def stream(self, model: str, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask `model`; see `port.Model.stream`. A provider that is unknown or not set up is a ModelError
        too."""
        made = await self._model(model)
        from sessions_app.runtime.models import pydantic_ai_talk

        async with aclosing(pydantic_ai_talk.ask(made, model, request, self._options)) as events:
            async for event in events:
                yield event

    async def aclose(self) -> None:
        """Close the connections."""
        self._models.clear()
        await self._clients.aclose()

    async def _model(self, name: str) -> Model:
        if name not in self._models:
            async with self._lock:
                if name not in self._models:
                    model = await asyncio.to_thread(_make, name)
                    self._models[name] = await self._clients.enter_async_context(model)
        return self._models[name]


def _make(name: str) -> Model:
    from sessions_app.runtime.models import pydantic_ai_talk

    return pydantic_ai_talk.make(name)
