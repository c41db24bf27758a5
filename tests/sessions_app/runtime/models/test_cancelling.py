"""A reply that nobody wants any more costs nothing: its connection closes at once."""

import asyncio
from contextlib import aclosing

import pytest

from sessions_app.runtime.models import ModelEvent, Models, StreamEvent
from tests.sessions_app.runtime.models.asking import ASKED
from tests.support.model_replies import hear
from tests.support.model_scripts import Hang, Reply, Text, Wait
from tests.support.model_servers import ModelServer


async def test_closing_the_stream_hangs_up(server: ModelServer, models: Models, dialect: str) -> None:
    server.answer(Reply(Text("Hel", Hang())))
    async with aclosing(models.resolve(dialect).stream(ASKED)) as events:
        async for event in events:
            if isinstance(event, StreamEvent) and event.text:
                break
    request = server.wait_request()
    await asyncio.to_thread(request.wait_over)
    assert request.hung_up


@pytest.mark.parametrize(
    "reply", [Reply(Hang()), Reply(Text("Hel", Hang()))], ids=["before", "in the middle"]
)
async def test_cancelling_the_task_hangs_up(
    server: ModelServer, models: Models, dialect: str, reply: Reply
) -> None:
    server.answer(reply)
    task = asyncio.create_task(hear(models.resolve(dialect), ASKED))
    request = await asyncio.to_thread(server.wait_request)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(request.wait_over)
    assert request.hung_up


async def test_each_piece_is_there_before_the_next_is_sent(
    server: ModelServer, models: Models, dialect: str
) -> None:
    server.answer(Reply(Text("one ", Wait("second"), "two")))
    seen: list[str] = []
    events: list[ModelEvent] = []
    async with aclosing(models.resolve(dialect).stream(ASKED)) as stream:
        async for event in stream:
            events.append(event)
            if isinstance(event, StreamEvent) and event.text:
                seen.append(event.text)
                server.open("second")
    assert seen == ["one ", "two"], "the second piece was sent only because the first had been seen"


async def test_replies_share_connections(server: ModelServer, models: Models, dialect: str) -> None:
    for _ in range(3):
        await hear(models.resolve(dialect), ASKED)
    assert len({request.connection for request in server.requests}) == 1


async def test_replies_run_side_by_side(server: ModelServer, models: Models, dialect: str) -> None:
    server.answer(*(Reply(Text("a", Wait("all here"), "b")) for _ in range(5)))
    tasks = [asyncio.create_task(hear(models.resolve(dialect), ASKED)) for _ in range(5)]
    await asyncio.to_thread(server.wait_request, 5)
    server.open("all here")
    assert [(await task).text for task in tasks] == ["ab"] * 5
