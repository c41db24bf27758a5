"""Schedules: one-shot things that a session is to be told at a time (behaviour 10.2).

Owns: the schedule's row as a record, making, cancelling, reading and delivering schedules, and their part in a session's
transactions. Does not own: when somebody looks for what is due (`jobs_app.sweep`), what a lost process leaves in delivery
(`jobs_app.recovery`), or whether a reader may see the session (`permissions_app`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import msgspec
from django.db.models import QuerySet
from msgspec import UNSET, Raw

from jobs_app import wake
from jobs_app.models import Schedule
from sessions_app import clock, ids, ledger, limits, processes, records
from sessions_app.callers import system
from sessions_app.clock import wire_time
from sessions_app.encoding import compact, encode
from sessions_app.errors import (
    AlreadyResolved,
    Interrupted,
    InvalidRequest,
    InvalidState,
    ResourceLimit,
    to_error,
)
from sessions_app.participants import Participant, SnapshotPart
from sessions_app.records import ScheduleDueAt
from sessions_app.rows import Select
from sessions_app.summaries import error_record

if TYPE_CHECKING:
    from sessions_app.ledger import Txn
    from sessions_app.models import Session
    from sessions_app.receipts import Call
    from sessions_app.records import Error, ScheduleDue, ScheduleMisfire
    from sessions_app.views import View

LATEST = datetime.max.replace(tzinfo=UTC)
"""The last instant that the wire can write: what is due still later is due then."""

NO_MODERATOR = to_error(InvalidState("the prompt of this session has no moderator to deliver to"))
MISSED = to_error(Interrupted("no server was there when the schedule was due"))

_STATUS: Mapping[str, Callable[[Schedule], records.ScheduleStatus]] = MappingProxyType(
    {
        "scheduled": lambda _: records.ScheduleStatusScheduled(),
        "delivering": lambda _: records.ScheduleStatusDelivering(),
        "delivered": lambda _: records.ScheduleStatusDelivered(),
        "cancelled": lambda _: records.ScheduleStatusCancelled(),
        "failed": lambda schedule: records.ScheduleStatusFailed(error=error_record(schedule.error)),
    }
)


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that was made or cancelled, as the mutation left the session."""

    schedule: records.Schedule
    revision: int
    latest_event_sequence: int


def create_schedule(
    call: Call, session_id: str, payload: bytes | Raw, due: ScheduleDue, misfire: ScheduleMisfire
) -> Changed:
    """Make a schedule, whatever the session's state: `schedule.created`. The due time is reckoned once, here.

    `payload` is free JSON. Raises, beside what `ledger.command` raises, ResourceLimit, not retryable, for a payload above
    256 KiB, white space aside.
    """

    kept = compact(payload)

    def body(txn: Txn) -> Changed:
        if len(kept) > limits.MAX_PAYLOAD_BYTES:
            raise ResourceLimit("a payload is at most 256 KiB", retryable=False)
        schedule = Schedule(
            id=ids.new_id("sch"),
            session=txn.session,
            generation=txn.session.generation,
            payload=kept,
            created_at=txn.now,
            next_due_at=_instant(due, txn.now),
            misfire=misfire,
            status="scheduled",
        )
        schedule.save(force_insert=True)
        txn.emit("schedule.created", schedule_record(schedule))
        wake.sweep_by(txn, schedule.next_due_at)
        return _changed(txn, schedule)

    return ledger.command(call, session_id, Changed, body)


def cancel_schedule(call: Call, session_id: str, schedule_id: str) -> Changed:
    """Withdraw a schedule that still waits for its time: `schedule.cancelled`.

    Raises, beside what `ledger.command` raises, InvalidRequest for an unknown schedule and AlreadyResolved for one that is
    being delivered or has ended (behaviour 4.6).
    """

    def body(txn: Txn) -> Changed:
        schedule = _schedule(txn.session, schedule_id)
        if schedule.status != "scheduled":
            raise AlreadyResolved("the schedule no longer waits for its time")
        schedule.status = "cancelled"
        schedule.save(update_fields=["status"])
        txn.emit("schedule.cancelled", schedule_record(schedule))
        return _changed(txn, schedule)

    return ledger.command(call, session_id, Changed, body)


def get_schedule(session: Session, schedule_id: str) -> records.Schedule:
    """Return one schedule. Raises InvalidRequest for an unknown one."""
    return schedule_record(_schedule(session, schedule_id))


def list_schedules(
    session: Session, *, status: str | None = None, after: str = "", limit: int
) -> list[records.Schedule]:
    """Return the schedules of a session behind id `after`: one more than `limit` when there are more.

    `status` is any text; one that names no status matches nothing.
    """
    if status is not None and status not in _STATUS:
        return []
    wanted = Schedule.objects.filter(session=session, pk__gt=after).order_by("pk")
    if status is not None:
        wanted = wanted.filter(status=status)
    return [schedule_record(row) for row in wanted[: limit + 1]]


def list_due(now: datetime, limit: int) -> list[tuple[str, str]]:
    """Return (session id, id) of at most `limit` schedules that are due at `now`, the longest due first."""
    return list(_waiting().filter(next_due_at__lte=now).values_list("session_id", "pk")[:limit])


def deliver(session_id: str, schedule_id: str, covered_since: datetime) -> bool:
    """End a due schedule, by its misfire if it came due before `covered_since`, while nobody looked.

    Only a moderator takes what a schedule says, and no prompt has one: those that declare scripts are unavailable (behaviour
    6.8). So each is claimed and fails, two revisions that are durable together. False when somebody else has ended it.
    """
    with ledger.session_txn(session_id, system("schedule")) as txn:
        schedule = Schedule.objects.filter(pk=schedule_id, status="scheduled").first()
        if schedule is None:
            return False
        missed = schedule.next_due_at < covered_since
        if missed and schedule.misfire == "skip_if_expired":
            move(txn, schedule, "delivered")
        elif missed and schedule.misfire == "fail":
            move(txn, schedule, "failed", MISSED)
        else:
            move(txn, schedule, "delivering")
            txn.next_revision()
            move(txn, schedule, "failed", NO_MODERATOR)
        return True


def next_due() -> datetime | None:
    """Return when the next schedule is due, or since when the longest has been; None when none waits."""
    return _waiting().values_list("next_due_at", flat=True).first()


def schedule_record(schedule: Schedule) -> records.Schedule:
    """Return a schedule as the protocol shows it."""
    return records.Schedule(
        id=schedule.id,
        session_id=schedule.session_id,
        generation=schedule.generation,
        payload=Raw(schedule.payload),
        created_at=wire_time(schedule.created_at),
        next_due_at=wire_time(schedule.next_due_at),
        misfire=cast("records.ScheduleMisfire", schedule.misfire),
        status=_STATUS[schedule.status](schedule),
        delivery_count=schedule.delivery_count,
        last_delivery_at=wire_time(schedule.last_delivery_at) if schedule.last_delivery_at else UNSET,
    )


def move(txn: Txn, schedule: Schedule, status: str, error: Error | None = None) -> None:
    """Give a schedule its next status and emit `schedule.state_changed`; this process holds it while it is `delivering`."""
    schedule.status = status
    schedule.error = None if error is None else encode(error)
    schedule.process = None
    if status == "delivering":
        schedule.process_id = processes.current_id()
    schedule.save(update_fields=["status", "error", "process"])
    txn.emit("schedule.state_changed", schedule_record(schedule))


def newest(session: Session) -> list[Schedule]:
    """Return the schedules a snapshot shows: those still to come first, newest first, at most 256 (behaviour 8.8)."""
    # What goes beyond the bytes that all lists share is cut where they are put together (`queries.snapshot`).
    most, room = limits.MAX_SNAPSHOT_ITEMS, limits.MAX_SNAPSHOT_LIST_BYTES
    live = _NEWEST_LIVE.within(session.id, *_LIVE, at_most=most, max_bytes=room)
    return live + _NEWEST_OVER.within(session.id, *_LIVE, at_most=most - len(live), max_bytes=room)


_LIVE = ("scheduled", "delivering")
_NEWEST_FIRST = "created_at DESC, id DESC"
_NEWEST_LIVE = Select(
    Schedule, "session_id = %s AND status IN (%s, %s)", order=_NEWEST_FIRST, heavy="payload"
)
_NEWEST_OVER = Select(
    Schedule, "session_id = %s AND status NOT IN (%s, %s)", order=_NEWEST_FIRST, heavy="payload"
)


class ScheduleParticipant(Participant):
    """The schedules' part in the transactions of a session."""

    def on_reset(self, txn: Txn, *, keep_grants: bool) -> None:
        """Drop the session's schedules."""
        Schedule.objects.filter(session=txn.session).delete()

    def snapshot_part(self, session: Session, view: View) -> SnapshotPart:
        """Return the schedules, for readers with session.message.send."""
        return SnapshotPart(
            schedules=tuple(map(schedule_record, newest(session))) if view.message_send else ()
        )


def _instant(due: ScheduleDue, now: datetime) -> datetime:
    try:
        if isinstance(due, ScheduleDueAt):
            return clock.parse_wire_time(due.timestamp)
        return now + timedelta(milliseconds=due.delay_ms)
    except OverflowError:
        return LATEST


def _schedule(session: Session, schedule_id: str) -> Schedule:
    schedule = Schedule.objects.filter(session=session, pk=schedule_id).first()
    if schedule is None:
        raise InvalidRequest("no such schedule in this session")
    return schedule


def _changed(txn: Txn, schedule: Schedule) -> Changed:
    return Changed(
        schedule=schedule_record(schedule),
        revision=txn.session.revision,
        latest_event_sequence=txn.session.latest_sequence,
    )


def _waiting() -> QuerySet[Schedule]:
    """Return what waits for its time, the next first; what belongs to archived sessions waits until they are restored."""
    return Schedule.objects.filter(status="scheduled", session__archived_at=None).order_by("next_due_at")
