"""The same paths against a mock server that others wrote: it checks our reading of each dialect, and judges our manners."""

import pytest
from llmock.pytest_plugin import LLMock

from sessions_app import records
from sessions_app.encoding import encode
from sessions_app.runtime.models import ModelError, ModelRequest, Models, ToolSpec
from tests.sessions_app.runtime.models.asking import HELLO
from tests.support.model_replies import Reply as Heard
from tests.support.model_replies import hear

WEATHER = ToolSpec(
    "get_weather",
    "Tells the weather of a city.",
    b'{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}',
)


@pytest.fixture
def mock(llmock: LLMock, monkeypatch: pytest.MonkeyPatch) -> LLMock:
    """The third-party mock, with the provider that pydantic-ai reaches pointed at it as well."""
    monkeypatch.setenv("OLLAMA_BASE_URL", llmock.base_url("openai"))
    return llmock


async def test_text_is_streamed(mock: LLMock, models: Models, dialect: str) -> None:
    mock.reply("Hello from somebody else's server.")
    reply = await hear(models.resolve(dialect), ModelRequest(items=[HELLO]))
    assert reply.text == "Hello from somebody else's server."
    assert sum(bool(getattr(event, "text", "")) for event in reply.events) > 1, "in more than one piece"
    assert reply.completed is not None
    assert reply.completed.usage.output > 0
    mock.assert_resilient(strict=True)


async def test_a_tool_is_called_and_its_output_answered(mock: LLMock, models: Models, dialect: str) -> None:
    model = models.resolve(dialect)
    items = [HELLO]
    first = await hear(model, ModelRequest(items=items, tools=(WEATHER,)))
    (call,) = first.calls
    assert call.name == "get_weather"
    assert "city" in call.arguments
    output = records.FunctionCallOutputItem(output="sunny", call_id=call.call_id)
    items = [*items, *first.payloads, encode(output)]
    second = await hear(model, ModelRequest(items=items, tools=(WEATHER,)))
    assert second.calls == []
    assert second.text
    mock.assert_resilient(strict=True)


@pytest.mark.parametrize("fault", ["disconnect", "truncate", "corrupt"])
async def test_a_broken_stream_is_an_error(mock: LLMock, models: Models, dialect: str, fault: str) -> None:
    mock.reply("one two three four five six seven eight nine ten")
    getattr(mock, fault)(after_chunks=8)
    heard = Heard()
    with pytest.raises(ModelError) as caught:
        await hear(models.resolve(dialect), ModelRequest(items=[HELLO]), heard)
    assert (caught.value.reason, caught.value.retryable) == ("provider_unavailable", True)
    assert heard.completed is None
    assert len(mock.requests) == 1, "what has begun to answer is not asked again"


async def test_a_rate_limit_is_waited_out_by_the_library(mock: LLMock, models: Models, dialect: str) -> None:
    mock.rate_limit(times=1, retry_after=0.05)
    mock.reply("ok")
    assert (await hear(models.resolve(dialect), ModelRequest(items=[HELLO]))).text == "ok"
    mock.assert_resilient(strict=True)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "provider_auth"),
        (429, "provider_limit"),
        (400, "provider_refused"),
        (500, "provider_unavailable"),
    ],
)
async def test_an_error_answer_has_a_reason(
    mock: LLMock, once: Models, dialect: str, status: int, reason: str
) -> None:
    mock.fail(status)
    with pytest.raises(ModelError) as caught:
        await hear(once.resolve(dialect), ModelRequest(items=[HELLO]))
    assert caught.value.reason == reason


async def test_a_conversation_that_is_too_long_overflows(mock: LLMock, once: Models, dialect: str) -> None:
    mock.limits(context_window=1)
    long = HELLO.replace(b"hello", b"hello " * 100)
    with pytest.raises(ModelError) as caught:
        await hear(once.resolve(dialect), ModelRequest(items=[long]))
    assert (caught.value.reason, caught.value.retryable) == ("context_overflow", False)


async def test_a_stream_that_stalls_is_given_up(mock: LLMock, impatient: Models, dialect: str) -> None:
    mock.reply("one two three four five")
    mock.stall(after_chunks=5, seconds=30)
    with pytest.raises(ModelError) as caught:
        await hear(impatient.resolve(dialect), ModelRequest(items=[HELLO]))
    assert caught.value.reason == "provider_unavailable"
