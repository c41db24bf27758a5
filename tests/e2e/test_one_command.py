"""One command to a running agent: a client speaks to the whole system, loses its connection anywhere, and misses nothing.

Real processes under `manage.py up`, a real WebSocket, a prompt as it is shipped, and a model server that others wrote.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ochat_site.dialects.ochat1.types import AttachReplayEvents
from sessions_app.encoding import encode
from sessions_app.events import DurableEvent
from tests.conformance.fixture import CODING
from tests.conformance.peers import Hold, delta, history
from tests.conformance.sites import SocketTransport
from tests.e2e.installed import InstalledDoor

REPLY = "The answer is in the second word of this reply."


async def test_from_connecting_to_the_answer(door: InstalledDoor) -> None:
    peer = await door.peer()
    hold = await peer.create(CODING)
    assert history(hold.view.snapshot())[0].startswith("developer: \nYou are an experienced programmer")
    await hold.start()
    door.mock.reply(REPLY)

    sent = await hold.say("What is the answer?")
    ended = await hold.until_ended()

    assert sent.disposition == "started"
    assert ended.kind == "operation.completed"
    assert hold.streamed() == REPLY
    assert sum(bool(delta(live)) for live in hold.lives) > 1, "in more than one piece"
    now = await hold.snapshot()
    assert history(now)[1:] == ["user: What is the answer?", f"assistant: {REPLY}"]
    assert history(hold.view.snapshot()) == history(now)
    assert len(door.mock.requests) == 1
    door.mock.assert_resilient(strict=True)


@pytest.mark.timeout(300)
async def test_dropping_the_socket_at_every_event(door: InstalledDoor) -> None:
    """Index by index through a turn with text, a call, its output and more text, until a turn has no such index any more.

    A message is said, so many notifications are taken, the socket breaks off, and a new connection attaches behind the last
    durable event that came. Both together are what the log says of that turn: nothing is missing and nothing comes twice.
    """
    hold = await (await door.peer()).create("open", start=True)
    session_id, known = hold.session_id, hold.sequence
    seen: list[DurableEvent] = []
    index = 0
    was_over = False
    while not was_over:
        door.mock.reset().call_tool("clock", text="Wait.").reply("Noon now.")
        await hold.say("What time is it?")
        of_turn = len(seen)
        await _take(hold, seen, of_turn, index)
        was_over = _is_over(seen[of_turn:])
        _drop(hold)

        sequence = seen[-1].sequence if seen else known
        hold = await (await door.peer()).attach(session_id, after=sequence)
        assert isinstance(hold.attached.result.replay, AttachReplayEvents)
        seen += hold.events
        await _take(hold, seen, of_turn)
        index += 1
    log = await (await door.peer()).attach(session_id, after=known)

    assert index > 15, "a turn of this kind tells more than that"
    assert [event.kind for event in seen].count("operation.completed") == index
    assert [event.sequence for event in seen] == [*range(known + 1, seen[-1].sequence + 1)]
    assert list(map(encode, seen)) == list(map(encode, log.events))


async def _take(hold: Hold, seen: list[DurableEvent], of_turn: int, count: int | None = None) -> None:
    """Take notifications into `seen`, whose turn begins at `of_turn`: until it is over, or `count` of them have come."""
    taken = 0
    while taken != count and not _is_over(seen[of_turn:]):
        news = await hold.next()
        taken += 1
        if isinstance(news, DurableEvent):
            seen.append(news)


def _is_over(events: Sequence[DurableEvent]) -> bool:
    return [event.kind for event in events[-2:]] == ["operation.completed", "session.state_changed"]


def _drop(hold: Hold) -> None:
    transport = hold.peer.wire.transport
    assert isinstance(transport, SocketTransport)
    transport.drop()
