"""Schedules: their records and their part in a session's transactions (behaviour 10.2).

Owns: the schedule's row as a record. Does not own: finding what is due (`jobs_app.sweep`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from msgspec import UNSET, Raw

from jobs_app.models import Schedule
from sessions_app import limits, records
from sessions_app.clock import wire_time
from sessions_app.participants import Participant, SnapshotPart
from sessions_app.rows import Select
from sessions_app.summaries import error_record

if TYPE_CHECKING:
    from sessions_app.ledger import Txn
    from sessions_app.models import Session
    from sessions_app.views import View

_STATUS: Mapping[str, Callable[[Schedule], records.ScheduleStatus]] = MappingProxyType(
    {
        "scheduled": lambda _: records.ScheduleStatusScheduled(),
        "delivering": lambda _: records.ScheduleStatusDelivering(),
        "delivered": lambda _: records.ScheduleStatusDelivered(),
        "cancelled": lambda _: records.ScheduleStatusCancelled(),
        "failed": lambda schedule: records.ScheduleStatusFailed(error=error_record(schedule.error)),
    }
)


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


def newest(session: Session) -> list[Schedule]:
    """Return the schedules a snapshot shows: those still to come first, newest first, at most 256 (behaviour 8.8)."""
    live = _NEWEST_LIVE.all(session.id, *_LIVE, at_most=limits.MAX_SNAPSHOT_ITEMS)
    return live + _NEWEST_OVER.all(session.id, *_LIVE, at_most=limits.MAX_SNAPSHOT_ITEMS - len(live))


_LIVE = ("scheduled", "delivering")
_NEWEST_FIRST = "created_at DESC, id DESC"
_NEWEST_LIVE = Select(Schedule, "session_id = %s AND status IN (%s, %s)", order=_NEWEST_FIRST)
_NEWEST_OVER = Select(Schedule, "session_id = %s AND status NOT IN (%s, %s)", order=_NEWEST_FIRST)


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
