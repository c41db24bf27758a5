"""Clients that race each other and the worker, over real sockets: two that send at once, and a cancel at every step of a turn."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ochat_client import ProtocolError
from ochat_site.dialects.ochat1.types import SendMessageResult
from sessions_app.encoding import encode
from tests.conformance.checked import TERMINAL_KINDS
from tests.conformance.peers import WAIT_SECONDS, Hold, code, history, told
from tests.conformance.sites import Site, SocketDoor, SocketSite
from tests.support.model_scripts import Call, Reply, Text, Wait

ROUNDS = 4


async def test_two_clients_send_at_once(socket_site: SocketSite) -> None:
    """Each client has a thread and a loop of its own, and both are let go by one barrier."""
    dispositions: Counter[tuple[str, str]] = Counter()
    creator = await socket_site.peer()
    with ThreadPoolExecutor(2) as threads:
        for number in range(ROUNDS):
            socket_site.model.reset()
            socket_site.model.answer(Reply(Text("one ", Wait("gate"), "answer")), Reply(Text("another")))
            observer = await creator.create(start=True)
            start, sent = threading.Barrier(2), threading.Barrier(2, lambda: socket_site.model.open("gate"))
            port = socket_site.processes.installation.port
            loop = asyncio.get_running_loop()
            racing = [
                loop.run_in_executor(threads, _race, port, observer.session_id, text, start, sent)
                for text in (f"left {number}", f"right {number}")
            ]
            (left, of_left), (right, of_right) = await asyncio.gather(*racing)
            await _until_both_are_over(observer)

            dispositions[left.disposition, right.disposition] += 1
            first, second = sorted((left, right), key=lambda one: one.revision)
            assert (first.disposition, second.disposition) == ("started", "deferred")
            assert first.operation_id
            assert not second.operation_id
            now = await observer.snapshot()
            said = [entry.id for entry in now.canonical_history.entries if entry.role == "user"]
            assert said == [first.history_id, second.history_id]
            of_observer = list(map(encode, observer.events))
            assert of_left == of_right == of_observer[-len(of_left) :]
            assert len(of_left) >= 11
    assert sum(dispositions.values()) == ROUNDS


def _race(
    port: int, session_id: str, text: str, start: threading.Barrier, sent: threading.Barrier
) -> tuple[SendMessageResult, list[bytes]]:
    async def race() -> tuple[SendMessageResult, list[bytes]]:
        door = SocketDoor(port)
        try:
            hold = await (await door.peer()).attach(session_id)
            start.wait(WAIT_SECONDS)
            answer = await hold.say(text)
            sent.wait(WAIT_SECONDS)
            await _until_both_are_over(hold)
            await door.check_laws()
            return answer, list(map(encode, hold.events))
        finally:
            await door.close()

    return asyncio.run(race())


async def _until_both_are_over(hold: Hold) -> None:
    await hold.until(
        lambda: hold.kinds.count("operation.completed") == 2 and hold.kinds[-1] == "session.state_changed"
    )


# Cancelling

FIRST = Reply(Text("one ", Wait("g1"), "two ", Wait("g2"), "three"), Call("clock", call_id="c1"))
SECOND = Reply(Text("four ", Wait("g3"), "five"))

Bring = Callable[[Site, Hold], Awaitable[None]]


async def _sent(site: Site, hold: Hold) -> None:
    """Nothing more than the answer to the message has come."""


async def _first_text(site: Site, hold: Hold) -> None:
    await hold.until_text("one ")


async def _more_text(site: Site, hold: Hold) -> None:
    site.model.open("g1")
    await hold.until_text("two ")


async def _parked(site: Site, hold: Hold) -> None:
    site.model.open("g1")
    site.model.open("g2")
    await hold.until_asked()


async def _answered(site: Site, hold: Hold) -> None:
    await _parked(site, hold)
    await hold.answer(hold.view.pending_permissions[0], "approve_once")


async def _going_on(site: Site, hold: Hold) -> None:
    await _answered(site, hold)
    await hold.until_text("four ")


async def _all_said(site: Site, hold: Hold) -> None:
    await _going_on(site, hold)
    site.model.open("g3")
    await hold.until_text("five")


async def _over(site: Site, hold: Hold) -> None:
    await _all_said(site, hold)
    await hold.until_ended()


STEPS: dict[str, tuple[Bring, str]] = {
    "sent": (_sent, ""),
    "first text": (_first_text, "one "),
    "more text": (_more_text, "one two "),
    "parked": (_parked, "one two three"),
    "answered": (_answered, "one two three"),
    "going on": (_going_on, "four "),
    "all said": (_all_said, "four five"),
    "over": (_over, "four five"),
}
"""The steps of a turn: what brings it there, and the text that must be kept from then on."""


@pytest.mark.parametrize("way", ["cancel", "stop"])
@pytest.mark.parametrize("step", STEPS)
async def test_cancel_at_every_step(socket_site: SocketSite, step: str, way: str) -> None:
    """One terminal event, whatever comes first; what was streamed is kept, every call has an output, the next turn works."""
    site = socket_site
    site.model.answer(FIRST, SECOND)
    hold = await (await site.peer()).create("patient", start=True)
    sent = await hold.say("go")
    bring, kept = STEPS[step]
    await bring(site, hold)

    assert sent.operation_id
    found = await _end(hold, sent.operation_id, way)
    await hold.until(lambda: TERMINAL_KINDS & {*hold.kinds})
    after = "idle" if way == "cancel" else "stopped"
    await hold.until(lambda: hold.view.session.observed_state.__struct_config__.tag == after)
    latest = (await hold.counters())[1]
    await hold.until(lambda: hold.sequence == latest)

    terminal = [kind for kind in hold.kinds if kind in TERMINAL_KINDS]
    assert len(terminal) == 1
    if step == "over":
        assert found == ("operation_not_found" if way == "cancel" else "")
    if step not in ("all said", "over"):
        assert terminal == ["operation.cancelled"]
    assert hold.view.pending_permissions == []
    said = history(await hold.snapshot())
    assert any(kept in entry for entry in said), said
    assert said.count("user: go") == 1
    await _next_turn_works(site, hold)


async def _end(hold: Hold, operation_id: str, way: str) -> str:
    """Cancel or stop; the code of the refusal, if it is one."""
    try:
        await (hold.cancel(operation_id) if way == "cancel" else hold.stop("cancel"))
    except ProtocolError as refused:
        return refused.code
    return ""


async def _next_turn_works(site: Site, hold: Hold) -> None:
    """Let a turn run, and check that what its model is asked is well formed."""
    site.model.reset()
    await hold.start()
    await hold.say("again")
    assert (await hold.until_ended()).kind == "operation.completed"
    (request,) = site.model.requests
    items: list[dict[str, Any]] = request.body["input"]
    called = [item["call_id"] for item in items if item["type"] == "function_call"]
    answered = [item["call_id"] for item in items if item["type"] == "function_call_output"]
    assert called == answered
    assert len(set(answered)) == len(answered)


@pytest.mark.long
async def test_cancel_behind_every_event(socket_site: SocketSite) -> None:
    """Nothing holds the turn back: a cancel comes behind each of its events, and before or behind its end."""
    site = socket_site
    outcomes: Counter[str] = Counter()
    hold = await (await site.peer()).create("open", start=True)
    index = 0
    while True:
        site.model.answer(Reply(Text("a ", "b ", "c"), Call("clock")), Reply(Text("d ", "e")))
        sent = await hold.say("go")
        assert sent.operation_id
        before = len(hold.events)
        taken = 0
        while taken < index and not TERMINAL_KINDS & {*hold.kinds[before:]}:
            await hold.next()
            taken += 1
        was_over = bool(TERMINAL_KINDS & {*hold.kinds[before:]})
        found = await _end(hold, sent.operation_id, "cancel")
        await hold.until(lambda: TERMINAL_KINDS & {*hold.kinds[before:]})  # noqa: B023 - awaited at once
        latest = (await hold.counters())[1]
        await hold.until(lambda: hold.sequence == latest)  # noqa: B023 - awaited at once
        terminal = [kind for kind in hold.kinds[before:] if kind in TERMINAL_KINDS]
        assert len(terminal) == 1, told(hold.events[before:])
        assert found in ("", "operation_not_found")
        assert found or terminal == ["operation.cancelled"]
        outcomes[terminal[0]] += 1
        site.model.reset()
        if was_over:
            break
        index += 1
    assert index > 10
    assert outcomes["operation.cancelled"] > 3
    entries = (await hold.snapshot()).canonical_history.entries
    kinds = Counter(entry.kind for entry in entries)
    assert kinds["tool_call"] == kinds["tool_output"]
    assert await code(hold.cancel("op_none")) == "operation_not_found"
