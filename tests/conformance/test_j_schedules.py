"""Scenarios J: schedules, in prompts without a moderator."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec import UNSET, Raw

from jobs_app.models import Schedule
from ochat_client import methods
from ochat_site.dialects.ochat1.types import ScheduleMutationResult
from sessions_app.db import database_now, in_db
from sessions_app.records import ScheduleDueAfterMs, ScheduleMisfire, ScheduleStatusFailed
from tests.conformance.fixture import SETTINGS
from tests.conformance.peers import Hold, answered, code
from tests.conformance.sites import Site, SocketSite


async def schedule(
    hold: Hold, delay_ms: int = 60_000, misfire: ScheduleMisfire = "deliver_once_immediately", **more: Any
) -> ScheduleMutationResult:
    """Make a schedule."""
    due = ScheduleDueAfterMs(delay_ms=delay_ms)
    wanted = {"payload": Raw(b'{"say":"hello"}'), "due": due, "misfire": misfire, **more}
    return await hold.mutate(methods.SCHEDULE_CREATE, **wanted)


async def test_j1(site: Site) -> None:
    """A schedule is made, read, listed and cancelled, once."""
    hold = await (await site.peer()).create()
    before = await hold.counters()
    made = await schedule(hold, idempotency_key="j1")
    shown = made.schedule

    assert (made.revision, made.latest_event_sequence) == (before[0] + 1, before[1] + 1)
    assert await schedule(hold, idempotency_key="j1") == made
    assert shown.status.__struct_config__.tag == "scheduled"
    session = {"session_id": hold.session_id}
    read = await hold.peer.call("schedule.get", **session, schedule_id=shown.id)
    assert read["next_due_at"] == shown.next_due_at
    for status, found in (("scheduled", [read]), ("cancelled", []), ("whatever", [])):
        listed = await hold.peer.call("schedule.list", **session, limit=10, status=status)
        assert listed == {"items": found}

    cancelled = await hold.mutate(methods.SCHEDULE_CANCEL, schedule_id=shown.id)
    assert (cancelled.revision, cancelled.latest_event_sequence) == (before[0] + 2, before[1] + 2)
    assert cancelled.schedule.status.__struct_config__.tag == "cancelled"
    again = hold.mutate(methods.SCHEDULE_CANCEL, schedule_id=shown.id)
    assert await code(again) == "already_resolved"
    await hold.until_kind("schedule.cancelled")
    assert hold.view.schedules == {shown.id: cancelled.schedule}
    assert await hold.counters() == (before[0] + 2, before[1] + 2)


async def test_j1_when_it_is_due(site: Site) -> None:
    """A schedule is made, read, listed and cancelled, once.

    Nobody takes it where no moderator is: delivering, then failed (behaviour 10.2).
    """
    hold = await (await site.peer()).create()
    made = await schedule(hold, 0)
    await hold.until(lambda: hold.kinds.count("schedule.state_changed") == 2)
    ended = hold.view.schedules[made.schedule.id]

    assert isinstance(ended.status, ScheduleStatusFailed)
    assert ended.status.error.code == "invalid_state"
    assert (ended.delivery_count, ended.last_delivery_at) == (0, UNSET)
    cancel = hold.mutate(methods.SCHEDULE_CANCEL, schedule_id=made.schedule.id)
    assert await code(cancel) == "already_resolved"


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_j6(socket_site: SocketSite) -> None:
    """All processes are down over the due time: each misfire decides for itself."""
    hold = await (await socket_site.peer()).create()
    misfires: tuple[ScheduleMisfire, ...] = ("deliver_once_immediately", "skip_if_expired", "fail")
    made = {misfire: (await schedule(hold, 3_600_000, misfire)).schedule.id for misfire in misfires}
    socket_site.processes.kill()
    due = await in_db(_make_due, hold.session_id)
    gap = timedelta(milliseconds=SETTINGS["sweep_lease_ms"] + SETTINGS["misfire_gap_ms"])
    await answered(lambda: in_db(lambda: database_now() > due + 2 * gap), "the gap")
    socket_site.processes.start()
    later = await (await socket_site.peer()).attach(hold.session_id)
    await later.until(lambda: all(_has_ended(later, id) for id in made.values()))

    ends = {misfire: later.view.schedules[id] for misfire, id in made.items()}
    assert {misfire: _end(end) for misfire, end in ends.items()} == {
        "deliver_once_immediately": "invalid_state",
        "skip_if_expired": "delivered",
        "fail": "interrupted",
    }
    assert {end.delivery_count for end in ends.values()} == {0}


def _make_due(session_id: str) -> datetime:
    """Let the schedules of a session be due now, and return when that is."""
    now = database_now()
    Schedule.objects.filter(session=session_id).update(next_due_at=now)
    return now


def _has_ended(hold: Hold, id: str) -> bool:
    return hold.view.schedules[id].status.__struct_config__.tag in ("delivered", "failed")


def _end(ended: Any) -> str:
    failed = isinstance(ended.status, ScheduleStatusFailed)
    return str(ended.status.error.code if failed else ended.status.__struct_config__.tag)
