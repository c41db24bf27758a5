"""What each provider is asked, for the same history."""

from typing import Any

import msgspec
import pytest

from sessions_app import records
from sessions_app.encoding import encode
from sessions_app.runtime.models import ModelRequest, Models, ToolSpec
from tests.sessions_app.runtime.models.asking import CLOCK, HELLO, NOTE
from tests.support.model_replies import hear
from tests.support.model_servers import ModelServer

DATA = "data:image/png;base64,aGk="


def message(role: Any, *content: Any) -> bytes:
    parts = [records.InputText(text=part) if isinstance(part, str) else part for part in content]
    return encode(records.InputMessageItem(role=role, content=tuple(parts)))


def answer(text: str, item_id: str = "msg_1", annotations: tuple[records.Annotation, ...] = ()) -> bytes:
    part = records.OutputText(annotations=annotations, text=text, type="output_text")
    return encode(
        records.OutputMessageItem(role="assistant", id=item_id, content=(part,), status="completed")
    )


def call(call_id: str, arguments: str = "{}", item_id: str | None = "fc_1") -> bytes:
    own = item_id if item_id is not None else msgspec.UNSET
    return encode(records.FunctionCallItem(name="clock", arguments=arguments, call_id=call_id, id=own))


def output(call_id: str, *content: Any) -> bytes:
    parts = [
        records.ToolOutputPartInputText(text=part) if isinstance(part, str) else part for part in content
    ]
    return encode(records.FunctionCallOutputItem(output=tuple(parts), call_id=call_id))


HISTORY = [
    message("developer", "Be brief."),
    message("user", "Look:", records.InputImage(image_url=DATA, detail="low")),
    answer("Let me see."),
    call("c1"),
    call("c2", '{"zone":"UTC"}'),
    output("c1", "noon"),
    output("c2", "half ", "past", records.ToolOutputPartInputImage(image_url=DATA)),
    encode(records.CustomToolCallItem(name="note", input="a note", call_id="c3", id="ctc_1")),
    encode(records.CustomToolCallOutputItem(output="noted", call_id="c3")),
    message("system", "Be briefer."),
    message("assistant", "Noted."),
    message("user", "Thanks"),
]
REQUEST = ModelRequest(
    items=HISTORY,
    tools=(CLOCK, NOTE),
    temperature=0.5,
    max_output_tokens=77,
    cache_key="ses_1",
)


async def sent(server: ModelServer, models: Models, name: str, request: ModelRequest) -> dict[str, Any]:
    await hear(models.resolve(name), request)
    return server.requests[-1].body


async def test_responses_get_stored_items_as_they_are(server: ModelServer, models: Models) -> None:
    body = await sent(server, models, "openai:gpt-4o", REQUEST)
    items = body.pop("input")
    tools = body.pop("tools")
    assert body == {
        "model": "gpt-4o",
        "store": False,
        "stream": True,
        "max_output_tokens": 77,
        "parallel_tool_calls": True,
        "prompt_cache_key": "ses_1",
        "temperature": 0.5,
    }
    assert [tool["type"] for tool in tools] == ["function", "custom"]
    assert (tools[0]["parameters"], tools[0]["strict"]) == ({"type": "object", "properties": {}}, False)
    assert [*items[:-2], items[-1]] == [msgspec.json.decode(item) for item in (*HISTORY[:-2], HISTORY[-1])]
    assert items[-2] == {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Noted."}],
    }


async def test_responses_never_get_what_the_api_refuses(server: ModelServer, models: Models) -> None:
    cited = records.AnnotationUrlCitation(index=1, url="https://example.org")
    request = ModelRequest(
        items=[
            HELLO,
            answer("by an author", "greeting"),
            answer("cited", "msg_2", (cited,)),
            answer('says "annotations":[{ in words'),
            b'{"type":"reasoning","summary":[],"id":"rs_1"}',
            b'{"type":"reasoning","summary":[],"id":"rs_2","anthropic":{"signature":"x"}}',
            b'{"type":"reasoning","summary":[],"id":"rs_3","encrypted_content":"sealed"}',
            call("c1", item_id="made up"),
            call("c2", item_id=None),
            b'{ "role": "user", "type": "message", "content": "in another form" }',
        ]
    )
    items = (await sent(server, models, "openai:gpt-5", request))["input"]
    assert [item.get("id") for item in items] == [None, None, None, "msg_1", "rs_3", None, None, None]
    assert [item["content"][0].get("annotations") for item in items[1:4]] == [None, None, []]
    assert [item["content"][0]["text"] for item in items[1:4]] == [
        "by an author",
        "cited",
        'says "annotations":[{ in words',
    ]


@pytest.mark.parametrize(
    ("model", "effort", "include", "reasoning"),
    [
        ("gpt-4o", None, None, None),
        ("gpt-5", None, ["reasoning.encrypted_content"], None),
        ("gpt-5-chat-latest", None, None, None),
        ("local", "low", ["reasoning.encrypted_content"], {"effort": "low", "summary": "auto"}),
    ],
)
async def test_responses_ask_for_sealed_reasoning_where_there_is_any(
    server: ModelServer, models: Models, model: str, effort: str | None, include: object, reasoning: object
) -> None:
    body = await sent(server, models, f"openai:{model}", ModelRequest(items=[HELLO], reasoning_effort=effort))
    assert (body.get("include"), body.get("reasoning")) == (include, reasoning)


async def test_chat_gets_messages(server: ModelServer, models: Models) -> None:
    body = await sent(server, models, "openai-chat:gpt-4o", REQUEST)
    image = {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}}
    assert body.pop("messages") == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Look:"}, image]},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"type": "function", "id": "c1", "function": {"name": "clock", "arguments": "{}"}},
                {
                    "type": "function",
                    "id": "c2",
                    "function": {"name": "clock", "arguments": '{"zone":"UTC"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
        {"role": "tool", "tool_call_id": "c2", "content": "half past"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Images from the tool call c2:"},
                {"type": "image_url", "image_url": {"url": DATA, "detail": "auto"}},
            ],
        },
        {
            "role": "assistant",
            "tool_calls": [
                {
                    "type": "function",
                    "id": "c3",
                    "function": {"name": "note", "arguments": '{"input":"a note"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c3", "content": "noted"},
        {"role": "system", "content": "Be briefer."},
        {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": "Thanks"},
    ]
    assert [tool["function"]["name"] for tool in body.pop("tools")] == ["clock", "note"]
    assert body == {
        "model": "gpt-4o",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 77,
        "parallel_tool_calls": True,
        "prompt_cache_key": "ses_1",
        "temperature": 0.5,
    }


async def test_anthropic_gets_messages(server: ModelServer, models: Models) -> None:
    body = await sent(server, models, "anthropic:claude-sonnet-4-5", REQUEST)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}

    def text(said: str) -> dict[str, str]:
        return {"type": "text", "text": said}

    assert body.pop("messages") == [
        {"role": "user", "content": [text("Look:"), image]},
        {
            "role": "assistant",
            "content": [
                text("Let me see."),
                {"type": "tool_use", "id": "c1", "name": "clock", "input": {}},
                {"type": "tool_use", "id": "c2", "name": "clock", "input": {"zone": "UTC"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [text("noon")]},
                {"type": "tool_result", "tool_use_id": "c2", "content": [text("half "), text("past"), image]},
            ],
        },
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c3", "name": "note", "input": {"input": "a note"}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c3", "content": [text("noted")]}],
        },
        {"role": "user", "content": [text("<system>"), text("Be briefer."), text("</system>")]},
        {"role": "assistant", "content": [text("Noted.")]},
        {"role": "user", "content": [text("Thanks")]},
    ]
    assert [tool["name"] for tool in body.pop("tools")] == ["clock", "note"]
    assert body == {
        "model": "claude-sonnet-4-5",
        "stream": True,
        "system": [text("Be brief.")],
        "cache_control": {"type": "ephemeral"},
        "max_tokens": 77,
        "temperature": 0.5,
    }


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("claude-sonnet-4-5", None, {"max_tokens": 64000}),
        ("claude-sonnet-4-5", "none", {"max_tokens": 64000}),
        (
            "claude-sonnet-4-5",
            "low",
            {"max_tokens": 64000, "thinking": {"type": "enabled", "budget_tokens": 2048}},
        ),
        (
            "claude-opus-4-7",
            "xhigh",
            {"max_tokens": 128000, "thinking": {"type": "adaptive"}, "output_config": {"effort": "xhigh"}},
        ),
        ("something-new", None, {"max_tokens": 16384}),
        ("claude-3-5-haiku-latest", None, {"max_tokens": 4096}),
    ],
)
async def test_anthropic_thinks_as_the_model_can(
    server: ModelServer, models: Models, model: str, effort: str | None, expected: dict[str, object]
) -> None:
    request = ModelRequest(items=[HELLO], reasoning_effort=effort)
    body = await sent(server, models, f"anthropic:{model}", request)
    assert {
        name: body[name] for name in ("max_tokens", "thinking", "output_config") if name in body
    } == expected


async def test_other_providers_get_the_same_conversation(server: ModelServer, models: Models) -> None:
    body = await sent(server, models, "ollama:llama", REQUEST)
    roles = [message["role"] for message in body["messages"]]
    assert roles[:6] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert [entry["id"] for message in body["messages"] for entry in message.get("tool_calls", ())] == [
        "c1",
        "c2",
        "c3",
    ]
    assert (body["model"], body["temperature"]) == ("llama", 0.5)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["clock", "note"]


async def test_every_provider_takes_a_tools_own_schema(
    server: ModelServer, models: Models, dialect: str
) -> None:
    schema = b'{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}'
    request = ModelRequest(items=[HELLO], tools=(ToolSpec("read", "Reads a file.", schema),))
    body = await sent(server, models, dialect, request)
    tool = body["tools"][0]
    tool = tool.get("function", tool)
    given = tool.get("parameters") or tool["input_schema"]
    assert (given["properties"], given["required"]) == ({"path": {"type": "string"}}, ["path"])
