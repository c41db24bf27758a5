"""Jobs and schedules over the protocol (behaviour 10; scenarios H10, J1, K8)."""

from __future__ import annotations

from typing import Any

import pytest

from jobs_app import sweep
from jobs_app.wake import SWEEP_SIGNAL
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.records import Scope
from tests.support.serving import Held, Host, Peer, identity
from tests.support.waiting import eventually
from tests.support.world import SCOPES, World

READER: tuple[Scope, ...] = ("session.transcript.read",)
SOON = {"type": "after_ms", "delay_ms": 60_000}


async def schedule(held: Held, **changed: Any) -> Any:
    wanted = {"payload": {"say": "hello"}, "due": SOON, "misfire": "fail", **changed}
    return await held.call("schedule.create", **wanted)


async def walk(peer: Peer, method: str, **wanted: Any) -> list[str]:
    """Return the ids of a whole listing, read one by one."""
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await peer.call(method, {**wanted, "limit": 1}, **cursor)
        seen += [item["id"] for item in page["items"]]
        if "next_cursor" not in page:
            return seen
        cursor = {"cursor": page["next_cursor"]}


async def test_a_schedule_lives_over_the_protocol(host: Host, served_world: World) -> None:
    """J1: "scheduled; listed; cancelled, +1/+1; `already_resolved`"."""
    held = await (await host.client()).create(served_world)
    made = await schedule(held, idempotency_key="k")
    assert await schedule(held, idempotency_key="k") == made
    shown = made["schedule"]
    assert shown["payload"] == {"say": "hello"}
    assert shown["status"] == {"type": "scheduled"}
    named = {"session_id": held.session_id, "schedule_id": shown["id"]}
    assert await held.peer.call("schedule.get", named) == shown
    assert await held.peer.call("schedule.list", session_id=held.session_id, limit=9) == {"items": [shown]}

    cancelled = await held.call("schedule.cancel", schedule_id=shown["id"])
    assert cancelled["schedule"] == {**shown, "status": {"type": "cancelled"}}
    assert cancelled["revision"] == made["revision"] + 1
    assert cancelled["latest_event_sequence"] == made["latest_event_sequence"] + 1
    assert await held.refusal("schedule.cancel", schedule_id=shown["id"]) == "already_resolved"
    told = await held.peer.told(2)
    assert [(event["kind"], event["payload"]) for event in told] == [
        ("schedule.created", shown),
        ("schedule.cancelled", cancelled["schedule"]),
    ]


async def test_a_schedule_that_is_due_wakes_the_sweep(host: Host, served_world: World) -> None:
    """14.2: "Latency under 1 s"; what comes later is found by looking."""
    assert await in_db(sweep.take_lease)
    woken: list[str] = []
    host.broadcast.on_signal(SWEEP_SIGNAL, woken.append)
    held = await (await host.client()).create(served_world)
    await schedule(held)
    await held.peer.told(1)
    assert woken == []
    await schedule(held, due={"type": "after_ms", "delay_ms": 0})
    await eventually(lambda: woken, "the signal")

    await in_db(sweep.run_due)
    told = await held.peer.told(4)
    assert [event["kind"] for event in told[2:]] == ["schedule.state_changed"] * 2
    assert [event["payload"]["status"]["type"] for event in told[2:]] == ["delivering", "failed"]


async def test_what_a_schedule_says_is_shown_to_who_may_send(host: Host, served_world: World) -> None:
    """H10: "event hidden, `{}`, sequence kept; marker in neither snapshot, get, replay; ADMIN sees it"."""
    held = await (await host.client()).create(served_world)
    reader = await host.client(identity(scopes=READER))
    watching = await reader.attach(held.session_id, "read_only")
    made = await schedule(held, payload="the marker")
    await in_db(lambda: served_world.job(held.session_id, payload=b'"the marker"'))

    [event] = await reader.told(1)
    assert event["sequence"] == watching.latest + 1
    assert (event["kind"], event["payload"], event["visibility"]) == ("schedule.created", {}, "hidden")
    replay = await (await host.client(identity(scopes=READER))).attach(
        held.session_id, "read_only", after_sequence=watching.latest
    )
    assert replay.answer["replay"]["events"] == [event]
    snapshot = await reader.call("session.get", session_id=held.session_id)
    assert (snapshot["schedules"], snapshot["jobs"]) == ([], [])
    named = {"session_id": held.session_id, "schedule_id": made["schedule"]["id"]}
    assert await reader.refusal("schedule.get", **named) == "permission_denied"
    whole = await held.peer.call("session.get", session_id=held.session_id)
    assert whole["schedules"] == [made["schedule"]]
    assert [job["payload"] for job in whole["jobs"]] == ["the marker"]


async def test_jobs_are_listed_read_and_cancelled(host: Host, served_world: World) -> None:
    """K8; 10.1: "job.cancel answer: job + mutation"."""
    held = await (await host.client()).create(served_world)
    made = [
        (await in_db(served_world.job, held.session_id, status)).id for status in ("queued", "running") * 2
    ]
    session = {"session_id": held.session_id}
    assert await walk(held.peer, "job.list", **session) == sorted(made)
    assert await walk(held.peer, "job.list", **session, status="running", kind="model_call") == sorted(
        made[1::2]
    )
    assert await walk(held.peer, "job.list", **session, kind="compaction") == []
    job = await held.peer.call("job.get", session, job_id=made[0])

    cancelled = await held.call("job.cancel", job_id=made[0])
    assert cancelled["job"]["status"] == {"type": "cancelled"}
    assert cancelled["job"]["payload"] == job["payload"]
    assert [event["payload"] for event in await held.peer.told(1)] == [cancelled["job"]]
    assert await walk(held.peer, "job.list", **session, status="cancelled") == [made[0]]
    again = await held.call("job.cancel", job_id=made[0])
    assert again == cancelled


async def test_schedules_are_walked_by_id(host: Host, served_world: World) -> None:
    """K8: "lists with limit 0, absent, 1; walk with cursors"."""
    held = await (await host.client()).create(served_world)
    made = [(await schedule(held))["schedule"]["id"] for _ in range(4)]
    session = {"session_id": held.session_id}
    assert await walk(held.peer, "schedule.list", **session) == sorted(made)
    assert await walk(held.peer, "schedule.list", **session, status="nonsense\0") == []
    for method in ("permission.list", "job.list", "schedule.list"):
        assert await held.peer.refusal(method, **session) == "invalid_request"
        assert await held.peer.refusal(method, **session, limit=0) == "invalid_request"


@pytest.mark.parametrize(
    ("method", "named"),
    [
        ("job.list", {"limit": 1}),
        ("job.get", {"job_id": "job_none"}),
        ("schedule.list", {"limit": 1}),
        ("schedule.get", {"schedule_id": "sch_none"}),
    ],
)
async def test_who_may_not_see_a_session_reads_nothing_of_it(
    host: Host, served_world: World, method: str, named: dict[str, Any]
) -> None:
    """2.6, before whether what is named is there."""
    held = await (await host.client()).create(served_world)
    other = await host.client(identity("bob"))
    assert await other.refusal(method, session_id=held.session_id, **named) == "permission_denied"
    assert await other.refusal(method, session_id="ses_none", **named) == "session_not_found"
    root = await host.client(identity("root", scopes=(*SCOPES, "configuration.admin")))
    if "limit" in named:
        assert await root.call(method, named, session_id=held.session_id) == {"items": []}
    else:
        assert await root.refusal(method, session_id=held.session_id, **named) == "invalid_request"


@pytest.mark.parametrize(
    ("method", "named"),
    [
        ("job.cancel", {"job_id": "job_none"}),
        ("schedule.create", {"payload": 1, "due": SOON, "misfire": "fail"}),
        ("schedule.cancel", {"schedule_id": "sch_none"}),
    ],
)
async def test_a_read_only_client_changes_nothing(
    host: Host, served_world: World, method: str, named: dict[str, Any]
) -> None:
    """E3: "all `permission_denied`; snapshot unchanged"."""
    held = await (await host.client()).create(served_world)
    reader = await (await host.client()).attach(held.session_id, "read_only")
    before = await held.peer.call("session.get", session_id=held.session_id)
    assert await reader.refusal(method, **named) == "permission_denied"
    assert await held.peer.call("session.get", session_id=held.session_id) == before


async def test_a_payload_that_is_too_large_is_refused(host: Host, served_world: World) -> None:
    held = await (await host.client()).create(served_world)
    assert (
        await held.refusal("schedule.create", payload="x" * 2**18, due=SOON, misfire="fail")
        == "resource_limit"
    )
    assert len(encode((await schedule(held, payload="x" * (2**18 - 2)))["schedule"]["payload"])) == 2**18
