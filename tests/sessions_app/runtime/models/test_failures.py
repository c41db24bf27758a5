"""What goes wrong at a provider is told in our words, and nothing is asked again once it has begun to
answer."""

import pytest

from sessions_app.runtime.models import ModelError, Models
from tests.sessions_app.runtime.models.asking import ASKED
from tests.support.model_replies import Reply as Heard
from tests.support.model_replies import hear
from tests.support.model_scripts import Break, Call, Drop, End, Fail, Hang, Reply, Text
from tests.support.model_servers import ModelServer

QUOTED = "sk-secret and the prompt"


@pytest.mark.parametrize(
    ("fail", "reason", "retryable"),
    [
        (Fail(401, "invalid_api_key"), "provider_auth", False),
        (Fail(403, "permission_error"), "provider_auth", False),
        (Fail(429, "rate_limit_exceeded"), "provider_limit", True),
        (Fail(429, "insufficient_quota"), "provider_limit", False),
        (Fail(400, "invalid_value"), "provider_refused", False),
        (Fail(404, "model_not_found"), "provider_refused", False),
        (Fail(400, "context_length_exceeded"), "context_overflow", False),
        (
            Fail(400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum"),
            "context_overflow",
            False,
        ),
        (Fail(500, "server_error"), "provider_unavailable", True),
        (Fail(529, "overloaded_error"), "provider_unavailable", True),
    ],
    ids=lambda value: f"{value.status}-{value.code}" if isinstance(value, Fail) else None,
)
async def test_an_error_answer_has_a_reason(
    server: ModelServer, once: Models, dialect: str, fail: Fail, reason: str, retryable: bool
) -> None:
    server.answer(fail)
    with pytest.raises(ModelError) as caught:
        await hear(once.resolve(dialect), ASKED)
    assert (caught.value.reason, caught.value.retryable) == (reason, retryable)


async def test_the_providers_words_are_not_shown(server: ModelServer, once: Models, dialect: str) -> None:
    server.answer(Fail(400, f"bad code {QUOTED}", QUOTED))
    with pytest.raises(ModelError) as caught:
        await hear(once.resolve(dialect), ASKED)
    assert "secret" not in f"{caught.value.message} {caught.value.codes}"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("fault", [Drop(), End()], ids=["drop", "end"])
async def test_a_stream_that_breaks_off_is_told_and_not_asked_again(
    server: ModelServer, models: Models, dialect: str, fault: Drop | End
) -> None:
    server.answer(Reply(Text("Hel", fault)))
    heard = Heard()
    with pytest.raises(ModelError) as caught:
        await hear(models.resolve(dialect), ASKED, heard)
    assert (caught.value.reason, caught.value.retryable) == ("provider_unavailable", True)
    assert heard.streamed[0] == "Hel", "what was streamed before stays with the reader"
    assert (heard.items, heard.completed, len(server.requests)) == ([], None, 1)


async def test_an_error_inside_the_stream_has_a_reason(
    server: ModelServer, models: Models, dialect: str
) -> None:
    server.answer(Reply(Text("Hel"), Break("rate_limit_exceeded", QUOTED)))
    with pytest.raises(ModelError) as caught:
        await hear(models.resolve(dialect), ASKED)
    assert caught.value.reason in ("provider_limit", "provider_unavailable")
    assert "secret" not in caught.value.message
    assert len(server.requests) == 1


async def test_a_filtered_reply_is_refused_after_what_was_said(
    server: ModelServer, models: Models, dialect: str
) -> None:
    server.answer(Reply(Text("Hel"), filtered=True))
    heard = Heard()
    with pytest.raises(ModelError) as caught:
        await hear(models.resolve(dialect), ASKED, heard)
    assert (caught.value.reason, caught.value.retryable) == ("provider_refused", False)
    assert heard.text == "Hel"


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"error":"text"}', b'{"error":{"code":{}}}', b""])
async def test_an_error_answer_may_say_anything(
    server: ModelServer, once: Models, dialect: str, body: bytes
) -> None:
    server.answer(Fail(400, body=body))
    with pytest.raises(ModelError) as caught:
        await hear(once.resolve(dialect), ASKED)
    assert caught.value.reason == "provider_refused"


async def test_half_a_call_is_never_heard(server: ModelServer, models: Models, dialect: str) -> None:
    server.answer(Reply(Call("clock", '{"zone":', Drop())))
    heard = Heard()
    with pytest.raises(ModelError):
        await hear(models.resolve(dialect), ASKED, heard)
    assert (heard.items, heard.calls) == ([], [])


async def test_a_failure_before_any_output_is_asked_again_by_the_library(
    server: ModelServer, models: Models, dialect: str
) -> None:
    server.answer(Fail(500, headers={"retry-after-ms": "1", "retry-after": "0"}), Reply(Text("ok")))
    assert (await hear(models.resolve(dialect), ASKED)).text == "ok"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "silence", [Reply(Hang()), Reply(Text("Hel", Hang()))], ids=["at once", "in the middle"]
)
async def test_a_silent_provider_is_given_up(
    server: ModelServer, impatient: Models, dialect: str, silence: Reply
) -> None:
    server.answer(silence)
    with pytest.raises(ModelError) as caught:
        await hear(impatient.resolve(dialect), ASKED)
    assert (caught.value.reason, caught.value.retryable) == ("provider_unavailable", True)
    request = server.wait_request()
    request.wait_over()
    assert request.hung_up


async def test_a_provider_that_is_not_there_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, server: ModelServer, once: Models, dialect: str
) -> None:
    for name, value in server.env().items():
        monkeypatch.setenv(name, value.replace(server.url, "http://127.0.0.1:9"))
    with pytest.raises(ModelError) as caught:
        await hear(once.resolve(dialect), ASKED)
    assert (caught.value.reason, caught.value.retryable) == ("provider_unavailable", True)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openai-responses:gpt-5", "OPENAI_API_KEY"),
        ("openai-chat:gpt-5", "OPENAI_API_KEY"),
        ("anthropic:claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("deepseek:deepseek-chat", "DEEPSEEK_API_KEY"),
    ],
)
async def test_a_missing_key_is_told(
    monkeypatch: pytest.MonkeyPatch, server: ModelServer, models: Models, name: str, variable: str
) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ModelError) as caught:
        await hear(models.resolve(name), ASKED)
    assert (caught.value.reason, caught.value.retryable) == ("provider_auth", False)
    assert server.requests == []


@pytest.mark.parametrize("name", ["nowhere:model", "groq:llama"])
async def test_a_provider_that_is_unknown_or_not_installed_is_told(models: Models, name: str) -> None:
    with pytest.raises(ModelError) as caught:
        await hear(models.resolve(name), ASKED)
    assert (caught.value.reason, caught.value.retryable) == ("provider_refused", False)
    assert repr(name.partition(":")[0]) in caught.value.message


@pytest.mark.parametrize(
    ("name", "variable"),
    [("openai-chat:gpt-5", "OPENAI_BASE_URL"), ("anthropic:claude-sonnet-4-5", "ANTHROPIC_BASE_URL")],
)
@pytest.mark.parametrize("url", ["http://[half", "nowhere", "ftp://example.org"])
async def test_an_address_that_is_none_is_told(
    monkeypatch: pytest.MonkeyPatch, server: ModelServer, once: Models, name: str, variable: str, url: str
) -> None:
    monkeypatch.setenv(variable, url)
    with pytest.raises(ModelError) as caught:
        await hear(once.resolve(name), ASKED)
    assert caught.value.reason in ("provider_refused", "provider_unavailable")
