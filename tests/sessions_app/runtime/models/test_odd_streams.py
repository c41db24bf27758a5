"""What chat and Anthropic servers do at the edges of their dialects."""

from typing import Any

from sessions_app import records
from sessions_app.runtime.models import ModelRequest, Models
from tests.sessions_app.runtime.models.asking import ASKED
from tests.support.model_replies import Reply as Heard
from tests.support.model_replies import hear
from tests.support.model_scripts import Call, Event, Reply, Text
from tests.support.model_servers import ModelServer

CHAT = "openai-chat:local"
CLAUDE = "anthropic:claude-sonnet-4-5"


def chunk(**delta: Any) -> Event:
    return Event({"type": "", "choices": [{"index": 0, "delta": delta}]})


async def listen(server: ModelServer, models: Models, name: str, *steps: Any) -> Heard:
    server.answer(Reply(*steps))
    return await hear(models.resolve(name), ASKED)


async def test_chat_calls_may_come_whole_and_unnumbered(server: ModelServer, models: Models) -> None:
    calls = [{"id": f"c{n}", "function": {"name": "clock", "arguments": f'{{"n":{n}}}'}} for n in (1, 2)]
    reply = await listen(server, models, CHAT, chunk(tool_calls=calls))
    assert [(call.call_id, call.arguments) for call in reply.calls] == [("c1", '{"n":1}'), ("c2", '{"n":2}')]


async def test_chat_calls_may_come_in_unnumbered_pieces_and_without_an_id(
    server: ModelServer, models: Models
) -> None:
    first = chunk(tool_calls=[{"function": {"name": "clock", "arguments": '{"n"'}}])
    rest = chunk(tool_calls=[{"function": {"arguments": ":1}"}}])
    (call,) = (await listen(server, models, CHAT, first, rest)).calls
    assert (call.name, call.arguments) == ("clock", '{"n":1}')
    assert call.call_id.startswith("call_")


async def test_chat_reasoning_may_come_under_both_names(server: ModelServer, models: Models) -> None:
    reply = await listen(server, models, CHAT, chunk(reasoning="hm", reasoning_content="hm"), Text("42"))
    assert (reply.thoughts, reply.text) == ("hm", "42")


async def test_a_chat_refusal_is_an_answer(server: ModelServer, models: Models) -> None:
    assert (await listen(server, models, CHAT, chunk(refusal="I will not"))).text == "I will not"


async def test_a_custom_tools_arguments_in_another_form_are_its_input(
    server: ModelServer, models: Models
) -> None:
    reply = await listen(server, models, CHAT, Call("note", "just ", "text"))
    assert [call.arguments for call in reply.calls] == ["just text"]
    assert isinstance(reply.items[0], records.CustomToolCallItem)


async def test_claude_may_begin_a_block_with_text(server: ModelServer, models: Models) -> None:
    start = {"type": "content_block_start", "index": 7, "content_block": {"type": "text", "text": "Hel"}}
    more = {"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta", "text": "lo"}}
    stop = {"type": "content_block_stop", "index": 7}
    reply = await listen(server, models, CLAUDE, Event(start), Event(more), Event(stop))
    assert reply.text == "Hello"


async def test_claudes_own_tools_leave_nothing(server: ModelServer, models: Models) -> None:
    block = {"type": "server_tool_use", "id": "srv_1", "name": "web_search"}
    start = {"type": "content_block_start", "index": 7, "content_block": block}
    more = {
        "type": "content_block_delta",
        "index": 7,
        "delta": {"type": "input_json_delta", "partial_json": "{}"},
    }
    stop = {"type": "content_block_stop", "index": 7}
    reply = await listen(server, models, CLAUDE, Event(start), Event(more), Event(stop), Text("done"))
    assert (reply.text, reply.calls) == ("done", [])


async def test_claude_gets_images_by_address_and_calls_with_an_object(
    server: ModelServer, models: Models
) -> None:
    items = [
        b'{"type":"message","role":"user","content":["look",'
        b'{"type":"input_image","image_url":"https://example.org/a.png","detail":"auto"}]}',
        b'{"type":"function_call","name":"clock","arguments":"{half","call_id":"c1"}',
        b'{"type":"function_call_output","output":"bad arguments","call_id":"c1"}',
    ]
    await hear(models.resolve(CLAUDE), ModelRequest(items=items))
    looked, called, _ = server.requests[-1].body["messages"]
    assert looked["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}},
    ]
    assert called["content"][0]["input"] == {"input": "{half"}
