"""The built-in model streams, calls tools and answers, without a network."""

import re

import pytest

from sessions_app.runtime.models import ModelRequest, Models, StreamEvent, ToolSpec
from tests.sessions_app.runtime.models.asking import CLOCK, NOTE
from tests.support.model_replies import hear


def said(text: str) -> bytes:
    return b'{"type":"message","role":"user","content":[{"type":"input_text","text":"%s"}]}' % text.encode()


async def test_it_repeats_what_was_said_word_by_word_and_says_what_it_is(models: Models) -> None:
    reply = await hear(models.resolve("demo:fast"), ModelRequest(items=[said("good morning to you")]))
    assert "demo model" in reply.text
    assert reply.text.endswith("good morning to you")
    pieces = [event.text for event in reply.events if isinstance(event, StreamEvent) and event.text]
    assert len(pieces) >= 4
    assert reply.completed is not None
    assert reply.completed.usage.input > 0


@pytest.mark.parametrize("question", ["What time is it?", "Call the clock", "CLOCK please"])
async def test_it_calls_a_tool_that_is_named(models: Models, question: str) -> None:
    reply = await hear(models.resolve("demo:fast"), ModelRequest(items=[said(question)], tools=(CLOCK, NOTE)))
    assert [(call.name, call.arguments) for call in reply.calls] == [("clock", "{}")]
    assert reply.text, "it says so first"


async def test_it_calls_nothing_that_is_not_offered(models: Models) -> None:
    reply = await hear(models.resolve("demo:fast"), ModelRequest(items=[said("What time is it?")]))
    assert reply.calls == []


async def test_it_passes_arguments_on(models: Models) -> None:
    asked = ModelRequest(
        items=[said('read {\\"path\\": \\"a.txt\\"} and note it')], tools=(ToolSpec("read", ""), NOTE)
    )
    reply = await hear(models.resolve("demo:fast"), asked)
    assert [(call.name, call.kind) for call in reply.calls] == [("read", "function"), ("note", "custom")]
    assert reply.calls[0].arguments == '{"path": "a.txt"}'
    assert reply.calls[1].arguments == 'read {"path": "a.txt"} and note it'


async def test_it_answers_with_what_the_tools_said(models: Models) -> None:
    question = said("What time is it?")
    model = models.resolve("demo:fast")
    first = await hear(model, ModelRequest(items=[question], tools=(CLOCK,)))
    output = (
        b'{"type":"function_call_output","output":"noon","call_id":"%s"}' % first.calls[0].call_id.encode()
    )
    second = await hear(model, ModelRequest(items=[question, *first.payloads, output], tools=(CLOCK,)))
    assert second.calls == []
    assert second.text.endswith("noon")


async def test_the_same_history_gets_the_same_reply(models: Models) -> None:
    request = ModelRequest(items=[said("hello clock")], tools=(CLOCK,))
    replies = [await hear(models.resolve("demo:fast"), request) for _ in range(2)]
    first, second = (re.sub(rb"(msg|fc|call)_[\w-]+", b"", b"".join(reply.payloads)) for reply in replies)
    assert first == second


async def test_it_has_something_to_say_to_nobody(models: Models) -> None:
    assert (await hear(models.resolve("demo:fast"), ModelRequest(items=[]))).text
