"""Live events of turns: which entry, which order, which anchor, and what leaves together (behaviour 8.5, wire 10).

That numbers grow and that no anchor is ahead of the log is checked by `turns` for every turn of every test.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from sessions_app import ids
from sessions_app.db import in_db
from sessions_app.events import (
    LiveEvent,
    LivePayload,
    SourcedStreamPayload,
    ToolFinishedPayload,
    ToolProgressPayload,
    ToolStartedPayload,
    read_live_payload,
)
from sessions_app.limits import MAX_ACTIVE_CALL_BYTES
from sessions_app.models import HistoryEntry, ToolCall
from tests.support.scripts import Gate, Say, Think, Use
from tests.support.turns import Turns
from tests.support.world import Client

P = TypeVar("P", bound=LivePayload)


def payload(event: LiveEvent, of: type[P]) -> P:
    """Return the payload of an event that must be of this kind."""
    found = read_live_payload(event)
    assert isinstance(found, of)
    return found


def streamed(event: LiveEvent) -> tuple[str | None, str]:
    """Return the entry and the type of a stream event."""
    found = payload(event, SourcedStreamPayload)
    return found.entry_id, msgspec.json.decode(found.event)["type"].removeprefix("response.")


async def entry_ids(turns: Turns, client: Client) -> list[str]:
    """Return the ids of the history behind the prompt and the first message."""
    rows = HistoryEntry.objects.filter(session_id=client.session_id).order_by("position")
    numbers = await in_db(lambda: list(rows.values_list("number", flat=True)))
    return [ids.history_id(client.session_id, number) for number in numbers][2:]


async def test_what_streams_names_the_entry_that_it_will_be(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Think("Hm."), Say("One."), Say("Two."))
    await turns.turn(client)
    expected = await entry_ids(turns, client)
    told = [streamed(event) for event in turns.live(client)]
    assert list(dict.fromkeys(entry for entry, _ in told)) == expected
    for entry in expected:
        kinds = [kind for found, kind in told if found == entry]
        assert (kinds[0], kinds[-1]) == ("output_item.added", "output_item.done")


async def test_text_that_is_cut_off_keeps_its_entry(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Say("Hel", Gate("here"), "lo"))
    await turns.send(client)
    await turns.gates.reached("here")
    await turns.cancel(client)
    await turns.idle(client)
    assert {streamed(event)[0] for event in turns.live(client)} == set(await entry_ids(turns, client))


async def test_numbers_go_on_over_every_claim(turns: Turns) -> None:
    """8.5: "operation sequence (1, 2, … per operation)"."""
    client = await turns.session("ask")
    turns.model.will(Say("May I?"), Use("read"))
    turns.model.will(Say("Again?"), Use("read"))
    await turns.send(client)
    for _ in range(2):
        await turns.parked(client)
        (permission_id,) = await turns.pending(client)
        await turns.answer(client, permission_id)
        await turns.until(lambda: _all_taken_up(client), "the answered call is taken up")
    await turns.idle(client)
    told = [event.operation_sequence for event in turns.live(client)]
    assert told == list(range(1, len(told) + 1))


def _all_taken_up(client: Client) -> bool:
    return not ToolCall.objects.filter(session_id=client.session_id, state="proposed").exists()


async def test_a_tool_is_told_from_its_start_to_its_end(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Use("read", '{"gate":"here"}', call_id="a"))
    await turns.send(client)
    await turns.told(client, "tool.progress")
    turns.gates.open("here")
    await turns.idle(client)
    started, progress, finished = [e for e in turns.live(client) if e.kind.startswith("tool.")]
    assert payload(started, ToolStartedPayload) == ToolStartedPayload(
        call_id="a", name="read", kind="function", payload='{"gate":"here"}', agent_page_kind=None
    )
    assert payload(progress, ToolProgressPayload).progress.text == "waiting at here"
    assert payload(finished, ToolFinishedPayload).outcome == "returned"
    assert payload(finished, ToolFinishedPayload).output == 'did {"gate":"here"}'


async def test_a_snapshot_shows_the_very_event_of_a_running_call(turns: Turns) -> None:
    """Wire 11: "complete live event objects of kind tool.started"."""
    client = await turns.session()
    turns.model.will(Use("read", '{"gate":"here"}'))
    await turns.send(client)
    (told,) = await turns.told(client, "tool.started")
    kept = await in_db(ToolCall.objects.filter(state="running").values_list("started", flat=True).get)
    assert msgspec.json.decode(kept or b"", type=LiveEvent) == told
    turns.gates.open("here")
    await turns.idle(client)


async def test_long_arguments_are_replaced_by_a_note(turns: Turns) -> None:
    """Wire 11: "payload text above 4096 bytes replaced by a short note"."""
    client = await turns.session()
    text = f'{{"a":"{"x" * MAX_ACTIVE_CALL_BYTES}"}}'
    turns.model.will(Use("read", text))
    await turns.turn(client)
    (told,) = await turns.told(client, "tool.started")
    assert payload(told, ToolStartedPayload).payload == f"[{len(text)} bytes of arguments]"


async def test_calls_beside_each_other_are_told_in_order(turns: Turns) -> None:
    """One starts, and its start is committed, while another makes progress."""
    client = await turns.session()
    turns.model.will(Use("read", '{"gate":"here"}', call_id="a"), Use("danger", call_id="b"))
    await turns.send(client)
    await turns.gates.reached("here")
    (permission_id,) = await turns.pending(client)
    await turns.answer(client, permission_id)
    await turns.told(client, "tool.finished")
    turns.gates.open("here")
    await turns.idle(client)
    assert [e.kind for e in turns.live(client) if e.kind.startswith("tool.")] == [
        "tool.started",
        "tool.progress",
        "tool.started",
        "tool.finished",
        "tool.finished",
    ]


async def test_what_comes_in_one_tick_leaves_as_one_message(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Say(*(f"{number} " for number in range(200))))
    await turns.turn(client)
    (batch,) = turns.layer.batches
    assert len(batch) > 200


async def test_a_burst_is_told_whole(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Say(*(f"{number} " for number in range(3000))))
    await turns.turn(client)
    told = [streamed(event)[1] for event in turns.live(client)]
    assert told.count("output_text.delta") == 3000


async def test_the_first_event_waits_for_nothing(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Say("Hel", Gate("here"), "lo"))
    await turns.send(client)
    told = await turns.told(client, "sourced.stream", 2)
    assert [streamed(event)[1] for event in told] == ["output_item.added", "output_text.delta"]
    turns.gates.open("here")
    await turns.idle(client)


async def test_nothing_is_told_after_the_end(turns: Turns) -> None:
    """8.5: a connection drops what comes after the terminal event, so everything leaves before it."""
    client = await turns.session()
    turns.model.will(Use("read"), Use("keep", '{"gate":"here"}'))
    await turns.send(client)
    await turns.gates.reached("here")
    await turns.cancel(client)
    await turns.told(client, "tool.finished", 2)
    await turns.idle(client)
    before = list(turns.live(client))
    assert before[-1].kind == "tool.finished"
    await turns.turn(client, "again")
    assert {e.operation_id for e in turns.live(client)[len(before) :]}.isdisjoint(
        e.operation_id for e in before
    )
