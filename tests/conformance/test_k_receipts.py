"""Scenarios K: idempotency, paging, recovery."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from ochat_client import methods, new_key
from ochat_site.dialects.ochat1.types import SessionCreateParams
from sessions_app.db import in_db
from sessions_app.models import Operation
from sessions_app.records import (
    HistoryWindow,
    HistoryWindowRequest,
    HistoryWindowRequestAfter,
    HistoryWindowRequestBefore,
    HistoryWindowRequestCursor,
    HistoryWindowRequestTail,
)
from tests.conformance.fixture import REJECTING, SETTINGS
from tests.conformance.peers import Hold, Peer, answered, code, history, refusal, shown, spec
from tests.conformance.sites import Site, SocketSite
from tests.support.model_scripts import Call, Reply, Text, Wait


async def test_k1(site: Site) -> None:
    """The same reset twice with one key: byte-equal answers, executed once."""
    hold = await (await site.peer()).create()
    keep = {f"keep_{name}": True for name in ("history", "tasks", "cache", "workspace", "grants", "labels")}
    params = hold.params(methods.SESSION_RESET, expected_revision=(await hold.counters())[0], **keep)
    one, two = [await hold.peer.client.request("session.reset", params) for _ in range(2)]

    assert bytes(one) == bytes(two)
    now = await hold.snapshot()
    assert (now.session.generation, len(now.archived_revisions)) == (1, 1)


async def test_k2(site: Site) -> None:
    """The same key with another parameter: idempotency_conflict."""
    peer = await site.peer()
    hold = await peer.create(start=True, key=(key := new_key()))
    assert await code(peer.client.create_session(spec(labels={"a": "b"}), key=key)) == "idempotency_conflict"

    await hold.say("one", key=(key := new_key()))
    assert await code(hold.say("two", key=key)) == "idempotency_conflict"
    await hold.until_ended()
    assert history(await hold.snapshot())[1] == "user: one"


async def test_k5(site: Site) -> None:
    """A refusal is kept with its key when its cause is gone; a new key succeeds."""
    peer = await site.peer()
    first = await peer.create()
    holds = [first, *[await peer.attach(first.session_id) for _ in range(_ROOM - 1)]]
    params = (await site.peer()).attach_params(first.session_id)
    other = await site.peer()

    full = await refusal(other.client.call(methods.SESSION_ATTACH, params))
    assert (full.code, full.retryable) == ("resource_limit", False)
    await holds[-1].detach()
    again = await refusal(other.client.call(methods.SESSION_ATTACH, params))
    assert (again.code, again.message) == (full.code, full.message)
    await other.attach(first.session_id)


_ROOM = SETTINGS["max_attachments_per_session"]


async def test_k5_of_a_start(site: Site) -> None:
    """A refusal is kept with its key when its cause is gone; a new key succeeds."""
    peer = await site.peer()
    first, second = [await peer.create(workspace=REJECTING) for _ in range(2)]
    await first.start()
    params = second.params(methods.SESSION_START, queue_if_limited=True)

    full = await refusal(peer.client.call(methods.SESSION_START, params))
    assert (full.code, full.retryable) == ("resource_limit", True)
    await first.stop()
    again = await refusal(peer.client.call(methods.SESSION_START, params))
    assert (again.code, again.message, again.retryable) == (full.code, full.message, True)
    await second.start()
    await second.stop()


async def test_k6(site: Site) -> None:
    """Two identical sends at once: one entry, equal answers."""
    hold = await (await site.peer()).create(start=True)
    params = hold.params(methods.SESSION_SEND_MESSAGE, text="once")

    one, two = await asyncio.gather(
        *(hold.peer.client.request("session.send_message", params) for _ in range(2))
    )
    await hold.until_ended()

    assert one == two
    assert history(await hold.snapshot())[1:-1] == ["user: once"]


async def test_k6_on_two_connections(site: Site) -> None:
    """Two identical sends at once: one entry, equal answers.

    A create belongs to no attachment, so that the same one can be sent over two connections.
    """
    peers = [await site.peer(), await site.peer()]
    params = SessionCreateParams(spec=spec(), subscribe=False, idempotency_key=new_key())

    one, two = await asyncio.gather(*(peer.client.request("session.create", params) for peer in peers))

    assert one == two


async def _requests(site: Site) -> tuple[Hold, set[str]]:
    """Let a turn wait on three requests."""
    site.model.answer(Reply(*(Call("clock", call_id=f"c{number}") for number in range(3))))
    hold = await (await site.peer()).create("interactive", start=True)
    await hold.say("go")
    await hold.until(lambda: len(hold.view.pending_permissions) == 3)
    return hold, set(hold.view.permissions)


@pytest.mark.parametrize("method", ["permission.list", "grant.list", "schedule.list"])
async def test_k8_of_one_session(site: Site, method: str) -> None:
    """A list without a limit or with 0 is refused; a walk by cursors finds every item once.

    Here those that have a session's own things in them.
    """
    hold, made = await _requests(site)
    if method == "grant.list":
        for request in list(hold.view.pending_permissions):
            await hold.answer(request, "durable_exact")
        await hold.until(lambda: len(hold.view.grants) == 3)
        made = set(hold.view.grants)
    elif method == "schedule.list":
        due = {"type": "after_ms", "delay_ms": 3_600_000}
        wanted = {"payload": None, "due": due, "misfire": "fail"}
        made = {(await hold.raw("schedule.create", **wanted))["schedule"]["id"] for _ in range(3)}
    filters = {"session_id": hold.session_id}

    assert await code(hold.peer.call(method, limit=0, **filters)) == "invalid_request"
    assert await code(hold.peer.call(method, **filters)) == "invalid_request"
    assert [item["id"] async for item in _walk(hold.peer, method, filters)] == sorted(made)
    await hold.stop("cancel")


async def test_k8_of_the_audit_log(site: Site) -> None:
    """A list without a limit or with 0 is refused; a walk by cursors finds every item once.

    Here by sequence, and while the log grows: by the walk itself.
    """
    peer = await site.peer()
    hold = await peer.create()
    for _ in range(5):
        await hold.stop()
    filters = {"session_id": hold.session_id, "name_prefix": "protocol.command.s"}
    assert await code(peer.call("audit.read", limit=0, **filters)) == "invalid_request"
    assert await code(peer.call("audit.read", **filters)) == "invalid_request"
    whole = (await peer.call("audit.read", limit=1000, **filters))["items"]
    stops = [item for item in whole if item["payload"]["method"] == "session.stop"]
    page = await peer.call("audit.read", limit=2, **filters)
    walked = list(page["items"])
    while "next_cursor" in page and len(walked) < len(whole):
        page = await peer.call("audit.read", limit=2, cursor=page["next_cursor"], **filters)
        walked += page["items"]

    assert len(stops) == 5
    assert walked[: len(whole)] == whole
    sequences = [item["sequence"] for item in walked]
    assert sequences == sorted(set(sequences))


@pytest.mark.parametrize("method", ["prompt.list", "workspace.list", "session.list"])
async def test_k8(site: Site, method: str) -> None:
    """A list without a limit or with 0 is refused; a walk by cursors finds every item once."""
    peer = await site.peer()
    if method == "session.list":
        label = new_key()
        made = {(await peer.client.create_session(spec(labels={"k8": label}))).session.id for _ in range(5)}
        filters: dict[str, Any] = {"labels": {"k8": label}}
    else:
        made, filters = set(), {}

    assert await code(peer.call(method, limit=0, **filters)) == "invalid_request"
    assert await code(peer.call(method, **filters)) == "invalid_request"
    whole = [item["id"] for item in (await peer.call(method, limit=1000, **filters))["items"]]
    walked = [item["id"] async for item in _walk(peer, method, filters)]
    assert walked == whole == sorted(whole)
    assert len(set(walked)) == len(walked) > 1
    assert not made or set(walked) == made


async def _walk(peer: Peer, method: str, filters: dict[str, Any]) -> Any:
    page = await peer.call(method, limit=1, **filters)
    while True:
        assert len(page["items"]) == 1
        yield page["items"][0]
        if "next_cursor" not in page:
            return
        cursor = page["next_cursor"]
        assert await code(peer.call(method, limit=2, cursor=cursor, **filters)) == "invalid_request"
        assert await code(peer.call(method, limit=1, cursor=cursor + "A", **filters)) == "invalid_request"
        page = await peer.call(method, limit=1, cursor=cursor, **filters)


async def test_k10(site: Site) -> None:
    """Windows: tail, before, after, cursor; an unknown anchor; the effective view."""
    peer = await site.peer()
    hold = await peer.create(start=True)
    for text in ("one", "two"):
        await hold.say(text)
        await hold.until_ended()
    whole = (await hold.snapshot()).canonical_history
    ids = [entry.id for entry in whole.entries]
    assert len(ids) == 5
    assert whole.structurally_complete

    async def window(request: HistoryWindowRequest) -> HistoryWindow:
        return (await peer.get(hold.session_id, request)).canonical_history

    def numbers(found: HistoryWindow) -> list[int]:
        return [ids.index(entry.id) for entry in found.entries]

    tail = await window(HistoryWindowRequestTail(tail_count=2, limit=10, effective=False))
    assert numbers(tail) == [3, 4]
    assert (tail.reached_start, tail.reached_end, tail.structurally_complete) == (False, True, False)
    limited = await window(HistoryWindowRequestTail(tail_count=4, limit=1, effective=False))
    assert numbers(limited) == [4]
    before = await window(HistoryWindowRequestBefore(history_id=ids[3], limit=2, effective=False))
    assert numbers(before) == [1, 2]
    assert (before.reached_start, before.reached_end) == (False, False)
    after = await window(HistoryWindowRequestAfter(history_id=ids[1], limit=2, effective=False))
    assert numbers(after) == [2, 3]
    assert after.next_cursor
    assert after.previous_cursor
    for cursor, expected in ((after.next_cursor, [4]), (after.previous_cursor, [0, 1])):
        following = HistoryWindowRequestCursor(window_cursor=cursor, limit=2, effective=False)
        assert numbers(await window(following)) == expected
        elsewhere = HistoryWindowRequestCursor(window_cursor=cursor, limit=3, effective=False)
        assert await code(window(elsewhere)) == "invalid_request"

    unknown = HistoryWindowRequestBefore(history_id=ids[0].replace(":0", ":77"), limit=1, effective=False)
    assert await code(window(unknown)) == "invalid_request"
    effective = await peer.get(
        hold.session_id, HistoryWindowRequestTail(tail_count=10, limit=10, effective=True)
    )
    assert effective.effective_history
    assert [shown(entry) for entry in effective.effective_history.entries] == history(whole.entries)
    nothing = effective.canonical_history
    assert nothing.entries == ()
    assert not (nothing.reached_start or nothing.reached_end or nothing.structurally_complete)


# Processes that die


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_k13(socket_site: SocketSite) -> None:
    """Every process is killed and started twice: the session, its history and states are there."""
    peer = await socket_site.peer()
    hold = await peer.create(start=True, labels={"row": "k13"})
    await hold.say("hello")
    await hold.until_ended()
    made = await peer.client.create_session(spec(labels={"row": "k13"}))
    before = [await peer.get(id) for id in (hold.session_id, made.session.id)]

    for _ in range(2):
        socket_site.processes.kill()
        socket_site.processes.start()
    again = await socket_site.peer()
    after = [await again.get(id) for id in (hold.session_id, made.session.id)]

    assert [_lasting(one) for one in after] == [_lasting(one) for one in before]
    later = await again.attach(hold.session_id)
    await later.say("still there?")
    await later.until_ended()


def _lasting(snapshot: Any) -> Any:
    """Return what outlives every process: not the counters, which attachments of the dead raise when they go."""
    session = snapshot.session
    return (
        session.id,
        session.spec,
        session.desired_state,
        session.observed_state,
        session.prompt_revision,
        snapshot.canonical_history.entries,
        snapshot.latest_event_sequence,
    )


def _saved(session_id: str, text: bytes) -> bool:
    """Tell whether the worker has saved so much of what it streams: it does so twice a second."""
    found = Operation.objects.filter(session=session_id).values_list("streamed", flat=True)
    return any(text in bytes(streamed or b"") for streamed in found)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_k14(socket_site: SocketSite) -> None:
    """The worker is killed in a turn, then the web process in another: interrupted, then completed."""
    site, processes = socket_site, socket_site.processes
    site.model.answer(Reply(Text("half ", Wait("never"), "more")))
    hold = await (await site.peer()).create(start=True)
    await hold.say("hello")
    await hold.until_text("half ")
    await answered(lambda: in_db(_saved, hold.session_id, b"half "), "what was streamed is saved")
    processes.worker.kill()
    processes.restart_worker()
    ended = await hold.until_ended()

    assert ended.kind == "operation.interrupted"
    state = msgspec.json.decode(ended.payload)["state"]
    assert state == {"type": "interrupted", "reason": "worker_lost", "retryable": True}
    assert history(await hold.snapshot())[1:] == ["user: hello", "assistant: half …"]
    assert len(site.model.requests) == 1
    assert hold.view.session.observed_state.__struct_config__.tag == "idle"

    site.model.answer(Reply(Text("whole ", Wait("gate"), "answer")))
    await hold.say("again")
    await hold.until_text("whole ")
    known = hold.sequence
    processes.serve.kill()
    site.model.open("gate")
    site.model.wait_request(2).wait_over()
    processes.restart_serve()
    later = await (await site.peer()).attach(hold.session_id, after=known)
    await later.until(lambda: "session.state_changed" in later.kinds)

    assert later.kinds == ["history.appended", "operation.completed", "session.state_changed"]
    assert history(await later.snapshot())[-1] == "assistant: whole answer"
    assert len(site.model.requests) == 2
