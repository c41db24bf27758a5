"""What a reply is, whichever provider gives it."""

from sessions_app import records
from sessions_app.runtime.models import ModelRequest, Models, StreamEvent
from tests.sessions_app.runtime.models.asking import ASKED, CLOCK, HELLO
from tests.support.model_replies import hear
from tests.support.model_scripts import Call, Reply, Text, Thought
from tests.support.model_servers import ModelServer


async def test_text_is_streamed_and_ends_as_a_message(
    server: ModelServer, models: Models, dialect: str
) -> None:
    server.answer(Reply(Text("Hel", "lo ", "wörld")))
    reply = await hear(models.resolve(dialect), ASKED)
    assert reply.text == "Hello wörld"
    assert [started.type for started in reply.started] == ["message"]
    assert [event.text for event in reply.events if isinstance(event, StreamEvent) and event.text] == [
        "Hel",
        "lo ",
        "wörld",
    ]
    (message,) = reply.items
    assert isinstance(message, records.OutputMessageItem)
    assert (message.id, message.status) == (reply.started[0].id, "completed")
    assert message.id.startswith("msg_")


async def test_usage_counts_the_cache_as_input(server: ModelServer, models: Models, dialect: str) -> None:
    server.answer(Reply(Text("ok")))
    reply = await hear(models.resolve(dialect), ASKED)
    assert reply.completed is not None
    usage = reply.completed.usage
    assert (usage.input, usage.output, usage.cache_read) == (100, 20, 40)
    assert usage.cache_write == (10 if dialect.startswith("anthropic") else 0)
    assert not reply.completed.truncated


async def test_calls_are_items_in_their_order(server: ModelServer, models: Models, dialect: str) -> None:
    server.answer(
        Reply(
            Text("Let me see."),
            Call("clock", '{"zo', 'ne":"UTC"}', call_id="c1"),
            Call("clock", call_id="c2"),
        )
    )
    reply = await hear(models.resolve(dialect), ASKED)
    assert [started.type for started in reply.started] == ["message", "function_call", "function_call"]
    assert [(call.call_id, call.name, call.arguments, call.kind) for call in reply.calls] == [
        ("c1", "clock", '{"zone":"UTC"}', "function"),
        ("c2", "clock", "{}", "function"),
    ]
    assert [records.classify_item(payload) for payload in reply.payloads] == [
        ("assistant", "message"),
        ("assistant", "tool_call"),
        ("assistant", "tool_call"),
    ]


async def test_a_custom_tool_gets_its_input(server: ModelServer, models: Models, dialect: str) -> None:
    native = dialect.startswith("openai-responses")
    chunks = ("some ", "text") if native else ('{"input":', '"some text"}')
    server.answer(Reply(Call("note", *chunks, call_id="c1", custom=native)))
    reply = await hear(models.resolve(dialect), ASKED)
    (call,) = reply.calls
    assert (call.name, call.arguments, call.kind) == ("note", "some text", "custom")
    assert isinstance(reply.items[0], records.CustomToolCallItem)


async def test_reasoning_comes_before_the_answer(server: ModelServer, models: Models, dialect: str) -> None:
    server.answer(Reply(Thought("Let me ", "think"), Text("42")))
    reply = await hear(models.resolve(dialect), ASKED)
    assert (reply.thoughts, reply.text) == ("Let me think", "42")
    assert [started.type for started in reply.started] == ["reasoning", "message"]
    assert reply.streamed == {0: "", 1: "42"}, "reasoning is not the text of an answer"


async def test_a_reply_may_be_empty(server: ModelServer, models: Models, dialect: str) -> None:
    server.answer(Reply())
    reply = await hear(models.resolve(dialect), ASKED)
    assert (reply.items, reply.started) == ([], [])


async def test_arguments_that_are_no_json_reach_the_tool_layer(
    server: ModelServer, models: Models, dialect: str
) -> None:
    server.answer(Reply(Call("clock", "{nonsense", call_id="c1"), Call("clock", call_id="c2")))
    reply = await hear(models.resolve(dialect), ASKED)
    assert [(call.call_id, call.arguments) for call in reply.calls] == [("c1", "{nonsense"), ("c2", "{}")]


async def test_the_output_limit_keeps_the_text_and_drops_half_a_call(
    server: ModelServer, models: Models, dialect: str
) -> None:
    server.answer(Reply(Text("I beg"), truncated=True), Reply(Call("clock", '{"zone":'), truncated=True))
    reply = await hear(models.resolve(dialect), ASKED)
    assert reply.completed is not None
    assert (reply.text, reply.completed.truncated) == ("I beg", True)
    reply = await hear(models.resolve(dialect), ASKED)
    assert reply.completed is not None
    assert (reply.calls, reply.items, reply.completed.truncated) == ([], [], True)


async def test_what_one_turn_said_is_accepted_in_the_next(
    server: ModelServer, models: Models, dialect: str
) -> None:
    server.answer(Reply(Thought("hm"), Text("Now."), Call("clock", call_id="c1")), Reply(Text("noon")))
    first = await hear(models.resolve(dialect), ASKED)
    output = b'{"type":"function_call_output","output":"12:00","call_id":"c1"}'
    await hear(models.resolve(dialect), ModelRequest(items=[HELLO, *first.payloads, output], tools=(CLOCK,)))
    sent = server.requests[-1].raw
    assert sent.count(b"Now.") == sent.count(b"12:00") == 1
    assert sent.count(b'"c1"') == 2, "a call and its output"
    assert b"hm" in sent, "reasoning goes back to where it came from"


async def test_another_model_goes_on_with_what_this_one_said(
    server: ModelServer, models: Models, dialect: str
) -> None:
    server.answer(Reply(Thought("hm", seal="only-mine"), Text("Now."), Call("clock", call_id="c1")))
    first = await hear(models.resolve(dialect), ASKED)
    output = b'{"type":"function_call_output","output":"12:00","call_id":"c1"}'
    for other in (
        "openai-responses:gpt-5",
        "openai-chat:gpt-4o",
        "anthropic:claude-sonnet-4-5",
        "ollama:llama",
    ):
        if other != dialect:
            await hear(models.resolve(other), ModelRequest(items=[HELLO, *first.payloads, output]))
            sent = server.requests[-1].raw
            assert b"Now." in sent
            assert b"12:00" in sent
            assert b"only-mine" not in sent, "a seal means nothing to others"
