"""A scripted model server, and models that talk to it through the real SDKs."""

from collections.abc import AsyncIterator, Iterator

import pytest

from sessions_app.runtime.models import ClientOptions, Models
from tests.support.model_servers import ModelServer

DIALECTS = ("openai-responses:gpt-5", "openai-chat:gpt-4o", "anthropic:claude-sonnet-4-5", "ollama:llama")
"""One model per adapter; pydantic-ai is reached through a provider that takes any address."""


@pytest.fixture(scope="session")
def _model_server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def server(_model_server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> ModelServer:
    """The scripted server, with every SDK pointed at it and nothing queued or recorded."""
    for name, value in _model_server.env().items():
        monkeypatch.setenv(name, value)
    _model_server.reset()
    return _model_server


@pytest.fixture
async def models() -> AsyncIterator[Models]:
    """Models whose SDKs retry once and do not wait for long."""
    made = Models("openai-responses", ClientOptions(silence_s=20.0, max_retries=1))
    yield made
    await made.aclose()


@pytest.fixture
async def once() -> AsyncIterator[Models]:
    """Models whose SDKs never ask again."""
    made = Models("openai-responses", ClientOptions(silence_s=20.0, max_retries=0))
    yield made
    await made.aclose()


@pytest.fixture
async def impatient() -> AsyncIterator[Models]:
    """Models that neither wait for a silent provider nor ask again."""
    made = Models("openai-responses", ClientOptions(silence_s=0.2, max_retries=0))
    yield made
    await made.aclose()


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> str:
    """The name of a model of each adapter in turn."""
    name: str = request.param
    return name
