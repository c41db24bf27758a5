"""What a provider wants back unchanged comes back to it, and what only it understands harms no other."""

from typing import Any

import pytest

from sessions_app.runtime.models import ModelError, ModelRequest, Models
from tests.sessions_app.runtime.models.asking import ASKED, CLOCK, HELLO
from tests.support.model_replies import hear
from tests.support.model_scripts import Call, Fail, Reply, Text, Thought
from tests.support.model_servers import ModelServer

OUTPUT = b'{"type":"function_call_output","output":"12:00","call_id":"c1"}'


async def next_request(server: ModelServer, models: Models, name: str, reply: Reply) -> dict[str, Any]:
    """Return what the provider is asked after it gave `reply`, whose call c1 was answered."""
    server.answer(reply)
    first = await hear(models.resolve(name), ASKED)
    await hear(models.resolve(name), ModelRequest(items=[HELLO, *first.payloads, OUTPUT], tools=(CLOCK,)))
    return server.requests[-1].body


async def test_openai_gets_its_encrypted_reasoning_back(server: ModelServer, models: Models) -> None:
    reply = Reply(Thought("hm", seal="gAAA"), Call("clock", call_id="c1"))
    body = await next_request(server, models, "openai:gpt-5", reply)
    assert [(item["type"], item.get("encrypted_content")) for item in body["input"][1:3]] == [
        ("reasoning", "gAAA"),
        ("function_call", None),
    ]


async def test_anthropic_gets_its_thinking_back_signed_and_in_place(
    server: ModelServer, models: Models
) -> None:
    reply = Reply(Thought("h", "m", seal="sig"), Text("Now."), Call("clock", call_id="c1"))
    body = await next_request(server, models, "anthropic:claude-sonnet-4-5", reply)
    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "Now."},
        {"type": "tool_use", "id": "c1", "name": "clock", "input": {}},
    ]


async def test_anthropic_gets_a_redacted_block_back(server: ModelServer, models: Models) -> None:
    reply = Reply(Thought(seal="blob", redacted=True), Call("clock", call_id="c1"))
    body = await next_request(server, models, "anthropic:claude-sonnet-4-5", reply)
    assert body["messages"][1]["content"][0] == {"type": "redacted_thinking", "data": "blob"}


async def test_chat_gets_reasoning_back_in_its_member(server: ModelServer, models: Models) -> None:
    reply = Reply(Thought("hm"), Call("clock", call_id="c1"))
    body = await next_request(server, models, "openai-chat:gpt-4o", reply)
    assert body["messages"][1]["reasoning_content"] == "hm"


@pytest.mark.parametrize("name", ["openai-chat:gpt-4o", "ollama:llama"])
async def test_chat_gets_back_what_it_added_to_a_call(server: ModelServer, models: Models, name: str) -> None:
    extra = {"google": {"thought_signature": "sig"}}
    body = await next_request(
        server, models, name, Reply(Call("clock", call_id="c1", extra=extra), Call("clock"))
    )
    calls = body["messages"][1]["tool_calls"]
    assert [call.get("extra_content") for call in calls] == [extra, None]


async def test_seals_that_openai_cannot_read_are_left_out_the_second_time(
    server: ModelServer, models: Models
) -> None:
    sealed = b'{"type":"reasoning","summary":[],"id":"rs_1","encrypted_content":"other key"}'
    server.answer(Fail(400, "invalid_encrypted_content"), Reply(Text("ok")))
    request = ModelRequest(items=[HELLO, sealed])
    assert (await hear(models.resolve("openai:gpt-5"), request)).text == "ok"
    first, second = (asked.body for asked in server.requests)
    assert [item["type"] for item in first["input"]] == ["message", "reasoning"]
    assert [item["type"] for item in second["input"]] == ["message"]
    await hear(models.resolve("openai:gpt-5"), request)
    assert len(server.requests[-1].body["input"]) == 2, "another history may hold seals of its own"


async def test_a_model_that_refuses_our_extras_is_remembered(server: ModelServer, models: Models) -> None:
    server.answer(Fail(400, "unsupported_parameter", param="include"), Reply(Text("ok")), Reply(Text("ok")))
    for _ in range(2):
        await hear(models.resolve("openai:gpt-5"), ASKED)
    assert ["include" in asked.body for asked in server.requests] == [True, False, False]


async def test_what_is_refused_twice_is_an_error(server: ModelServer, models: Models) -> None:
    server.answer(*[Fail(400, "unsupported_parameter", param="include")] * 2)
    with pytest.raises(ModelError) as caught:
        await hear(models.resolve("openai:gpt-5"), ASKED)
    assert (caught.value.reason, len(server.requests)) == ("provider_refused", 2)


async def test_thinking_that_anthropic_does_not_take_is_left_out_the_second_time(
    server: ModelServer, models: Models
) -> None:
    thought = (
        b'{"type":"reasoning","summary":[{"text":"hm","type":"summary_text"}],"id":"rs_1",'
        b'"anthropic":{"signature":"stale"}}'
    )
    refusal = Fail(
        400, "invalid_request_error", "messages.1.content.0: Invalid `signature` in `thinking` block"
    )
    server.answer(refusal, Reply(Text("ok")))
    said = b'{"type":"message","role":"assistant","content":[{"text":"hi","type":"input_text"}]}'
    request = ModelRequest(items=[HELLO, thought, said, HELLO], reasoning_effort="low")
    assert (await hear(models.resolve("anthropic:claude-sonnet-4-5"), request)).text == "ok"
    first, second = (asked.body for asked in server.requests)
    assert (len(first["messages"][1]["content"]), "thinking" in first) == (2, True)
    assert (len(second["messages"][1]["content"]), "thinking" in second) == (1, False)
