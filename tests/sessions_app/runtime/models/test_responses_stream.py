"""Whatever a Responses server streams, history and readers get what wire 6 and 10 say, or nothing."""

from typing import Any

import msgspec
import pytest

from sessions_app import records
from sessions_app.runtime.models import ModelError, Models, StreamEvent
from tests.sessions_app.runtime.models.asking import ASKED
from tests.support.model_replies import Reply as Heard
from tests.support.model_replies import hear
from tests.support.model_scripts import End, Event, Reply, Text
from tests.support.model_servers import ModelServer


def item(kind: str, index: int = 0, **members: Any) -> tuple[Event, Event]:
    whole = {"type": kind, **members}
    return (
        Event(
            {
                "type": "response.output_item.added",
                "output_index": index,
                "item": {**whole, "status": "in_progress"},
            }
        ),
        Event({"type": "response.output_item.done", "output_index": index, "item": whole}),
    )


def live(reply: Heard) -> list[dict[str, Any]]:
    return [msgspec.json.decode(event.payload) for event in reply.events if isinstance(event, StreamEvent)]


async def listen(server: ModelServer, models: Models, *steps: Event | Text) -> Heard:
    server.answer(Reply(*steps))
    return await hear(models.resolve("openai:gpt-5"), ASKED)


async def test_live_events_carry_what_the_wire_lists_and_no_more(server: ModelServer, models: Models) -> None:
    events = live(await listen(server, models, Text("Hel", "lo")))
    assert [event["type"] for event in events] == [
        "response.created",
        "response.output_item.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert set(events[2]) == {"type", "content_index", "delta", "item_id", "output_index"}
    assert set(events[0]["response"]) == {"id", "model", "status"}


async def test_annotations_get_the_shape_of_the_wire(server: ModelServer, models: Models) -> None:
    annotations = [
        {
            "type": "url_citation",
            "url": "https://example.org",
            "title": "T",
            "start_index": 3,
            "end_index": 9,
        },
        {"type": "file_citation", "file_id": "file_1", "filename": "a.txt", "index": 4},
        {
            "type": "container_file_citation",
            "container_id": "c",
            "file_id": "f",
            "start_index": 0,
            "end_index": 1,
        },
    ]
    part = {"type": "output_text", "text": "", "annotations": annotations, "logprobs": []}
    added, done = item("message", id="msg_1", role="assistant", content=[part], phase="final")
    (message,) = (await listen(server, models, added, done)).items
    assert isinstance(message, records.OutputMessageItem)
    assert message.phase == "final"
    assert message.content[0].annotations == (
        records.AnnotationUrlCitation(index=3, url="https://example.org"),
        records.AnnotationFileCitation(title="a.txt", start_index=4, end_index=4, file_id="file_1"),
    )


async def test_a_refusal_is_an_answer(server: ModelServer, models: Models) -> None:
    part = {"type": "refusal", "refusal": "I will not"}
    added, done = item("message", id="msg_1", role="assistant", content=[part])
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    deltas = [Event({"type": "response.refusal.delta", **at, "delta": delta}) for delta in ("I will", " not")]
    reply = await listen(server, models, added, *deltas, done)
    assert reply.text == "I will not"


async def test_an_open_models_reasoning_stands_for_a_summary(server: ModelServer, models: Models) -> None:
    content = [{"type": "reasoning_text", "text": "hm"}]
    reply = await listen(server, models, *item("reasoning", id="rs_1", summary=[], content=content))
    assert reply.thoughts == "hm"


async def test_a_search_is_kept_but_not_streamed(server: ModelServer, models: Models) -> None:
    web = item("web_search_call", id="ws_1", action={"type": "search", "query": "q"})
    files = item("file_search_call", 1, id="fs_1", queries=["q"], results=[{"file_id": "f", "score": 0.5}])
    searching = Event({"type": "response.web_search_call.searching", "item_id": "ws_1", "output_index": 0})
    reply = await listen(server, models, web[0], searching, web[1], *files)
    assert reply.items == [
        records.WebSearchCallItem(id="ws_1", status="completed"),
        records.FileSearchCallItem(id="fs_1", status="completed", queries=("q",), results=None),
    ]
    assert [event["type"] for event in live(reply)] == ["response.created", "response.completed"]


async def test_an_item_without_a_place_in_history_is_skipped(server: ModelServer, models: Models) -> None:
    added, done = item("image_generation_call", id="ig_1", result="aGk=")
    reply = await listen(server, models, added, done)
    assert (reply.items, reply.started) == ([], [])


async def test_unlisted_events_pass(server: ModelServer, models: Models) -> None:
    event = {"type": "response.reasoning_text.delta", "delta": {"any": "thing"}, "output_index": 7}
    assert event in live(await listen(server, models, Event(event)))


async def test_members_that_a_server_leaves_out_are_filled_in(server: ModelServer, models: Models) -> None:
    added, done = item(
        "message", id="msg_1", role="assistant", content=[{"type": "output_text", "text": "hi"}]
    )
    delta = Event({"type": "response.output_text.delta", "output_index": 0, "delta": "hi"})
    reply = await listen(server, models, added, delta, done)
    assert reply.text == "hi"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (
            {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "m"}}},
            "provider_unavailable",
        ),
        (
            {
                "type": "response.failed",
                "response": {"error": {"code": "rate_limit_exceeded", "message": "m"}},
            },
            "provider_limit",
        ),
        (
            {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "content_filter"}}},
            "provider_refused",
        ),
        (
            {"type": "error", "code": "context_length_exceeded", "message": "m", "param": None},
            "context_overflow",
        ),
        ({"type": "error", "error": {"code": "invalid_prompt", "message": "m"}}, "provider_refused"),
        ({"type": ["not an event"]}, "provider_unavailable"),
        ({"type": "response.output_text.delta", "delta": 7}, "provider_unavailable"),
    ],
    ids=str,
)
async def test_a_failed_response_has_a_reason(
    server: ModelServer, models: Models, event: dict[str, Any], reason: str
) -> None:
    server.answer(Reply(Text("Hel"), Event(event), End()))
    with pytest.raises(ModelError) as caught:
        await hear(models.resolve("openai:gpt-5"), ASKED)
    assert caught.value.reason == reason
