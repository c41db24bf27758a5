"""Scenarios H: events, replay, projection."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from ochat_client import ConnectionLost, methods, new_key
from ochat_site.dialects.ochat1.types import AttachReplayEvents, AttachReplaySnapshot
from sessions_app.encoding import encode
from sessions_app.events import DurableEvent
from sessions_app.records import ScheduleDueAfterMs
from tests.conformance.checked import Checked
from tests.conformance.fixture import ADMIN, READER, SETTINGS, WRITER, Person
from tests.conformance.peers import WAIT_SECONDS, Hold, code, history, shown
from tests.conformance.sites import Site
from tests.conformance.test_a_envelope import INITIALIZE
from tests.support.model_scripts import Call, Reply, Text, Wait


async def test_h1(site: Site) -> None:
    """attach without a cursor, at the latest, at 0, beyond: snapshot, nothing, everything, nothing."""
    peer = await site.peer()
    hold = await peer.create(start=True)
    await hold.stop()
    latest = (await hold.counters())[1]

    without = (await peer.attach(hold.session_id)).attached.result
    assert isinstance(without.replay, AttachReplaySnapshot)
    assert without.latest_event_sequence == latest
    for after, sequences in ((latest, []), (0, [*range(1, latest + 1)]), (latest + 7, []), (1, [2])):
        result = (await peer.attach(hold.session_id, after=after)).attached.result
        assert isinstance(result.replay, AttachReplayEvents)
        assert [event.sequence for event in result.replay.events] == sequences
        assert result.latest_event_sequence == latest


@pytest.mark.parametrize("person", [ADMIN, WRITER, READER], ids=["admin", "writer", "reader"])
async def test_h2(site: Site, person: Person) -> None:
    """What a subscriber was sent is what a later replay says."""
    site.model.answer(Reply(Text("I look."), Call("clock")), Reply(Text("done")))
    hold = await (await site.peer()).create("open", start=True)
    watching = await (await site.peer(person)).attach(hold.session_id, "read_only", after=0)
    await hold.say("go")
    await watching.until_ended()
    await hold.stop()
    await watching.until(lambda: watching.kinds[-2:] == ["session.state_changed"] * 2)

    later = await (await site.peer(person)).attach(hold.session_id, "read_only", after=0)

    assert list(map(encode, watching.events)) == list(map(encode, later.events))
    assert later.events[0].kind == "session.created"


async def _tell(wire: Checked, method: str, params: Any) -> None:
    await wire.send(encode({"jsonrpc": "2.0", "id": method, "method": method, "params": params}))


async def test_h8(framed_site: Site) -> None:
    """A stalled subscriber is closed as slow; a healthy one and the writer notice nothing."""
    framed_site.model.answer(Reply(Text("one", Wait("first"))), Reply(Text("two", Wait("second"))))
    writer = await (await framed_site.peer()).create(start=True)
    healthy = await (await framed_site.peer()).attach(writer.session_id, "read_only")
    stalled = await framed_site.wire(narrow=True)
    await _tell(stalled, "protocol.initialize", INITIALIZE)
    attach = {"session_id": writer.session_id, "requested_mode": "read_only", "subscribe": True}
    await _tell(stalled, "session.attach", {**attach, "idempotency_key": new_key()})
    assert [json.loads(await stalled.receive())["id"] for _ in range(2)] == [
        "protocol.initialize",
        "session.attach",
    ]

    await writer.say("go")
    for number in range(LARGE):
        sent = await writer.say(f"{number} " + "x" * 100_000)
        assert sent.disposition == "deferred"
    # What waited becomes one event, beyond what the system holds for a client that does not read.
    framed_site.model.open("first")
    await healthy.until(lambda: healthy.kinds.count("operation.started") == 2)
    for number in range(2 * SETTINGS["subscriber_queue_capacity"]):
        await writer.say(f"{number}")
    latest = (await writer.counters())[1]
    await healthy.until(lambda: healthy.sequence == latest)
    with pytest.raises(ConnectionLost) as lost:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                await stalled.receive()

    assert lost.value.close_code == framed_site.slow_code
    events = [message["params"] for message in stalled.received if message.get("method") == "session.event"]
    received = [event["sequence"] for event in events]
    assert received
    assert received[-1] < latest
    await writer.stop("cancel")
    await healthy.until_ended()


LARGE = 32
"""Messages of 100 kB, which together are less than may be deferred."""


async def test_h10(site: Site) -> None:
    """A reader is told only that something happened when a schedule is made; an admin sees it."""
    marker = "the marker"
    hold = await (await site.peer()).create()
    reader = await (await site.peer(READER)).attach(hold.session_id, "read_only")
    made = await hold.mutate(
        methods.SCHEDULE_CREATE,
        payload=msgspec.Raw(encode(marker)),
        due=ScheduleDueAfterMs(delay_ms=3_600_000),
        misfire="fail",
    )
    hidden = await reader.until_kind("schedule.created")
    shown_whole = await hold.until_kind("schedule.created")

    assert (hidden.visibility, bytes(hidden.payload)) == ("hidden", b"{}")
    assert hidden.sequence == shown_whole.sequence == made.latest_event_sequence
    later = await (await site.peer(READER)).attach(hold.session_id, "read_only", after=0)
    assert encode(later.events[-1]) == encode(hidden)
    for seen in (await reader.snapshot(), later.attached.result):
        assert marker.encode() not in encode(seen)
    assert (await hold.snapshot()).schedules == (made.schedule,)
    named = {"session_id": hold.session_id, "schedule_id": made.schedule.id}
    assert await code(reader.peer.call("schedule.get", **named)) == "permission_denied"


async def test_h11(site: Site) -> None:
    """A reader sees text, tool entries without their payload, and no live events."""
    site.model.answer(Reply(Text("I look."), Call("clock", call_id="c1")), Reply(Text("done")))
    hold = await (await site.peer()).create("open", start=True)
    reader = await (await site.peer(READER)).attach(hold.session_id, "read_only")
    await hold.say("go")
    await reader.until_ended()
    await hold.until_ended()

    said = ["user: go", "assistant: I look.", "[tool_call]", "[tool_output]", "assistant: done"]
    assert history(reader.view.snapshot())[1:] == said
    assert history(await reader.snapshot())[1:] == said
    assert reader.lives == []
    assert hold.lives
    assert {event.visibility for event in reader.events} <= {"redacted", "hidden"}
    entries = [entry for entry in _appended(reader) if entry["kind"] in ("tool_call", "tool_output")]
    assert [(entry["payload"], entry["redacted"]) for entry in entries] == [({}, True)] * 2
    assert [shown(entry) for entry in hold.view.history.entries][3] == "call c1"


def _appended(hold: Hold) -> list[Any]:
    def entries(event: DurableEvent) -> list[Any]:
        return list(msgspec.json.decode(event.payload)) if event.kind == "history.appended" else []

    return [entry for event in hold.events for entry in entries(event)]
