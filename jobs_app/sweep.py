"""The sweep: everything that is due by time, or that nobody looks after any more (behaviour 14.2).

Owns: the steps, their order, and the lease by which one process at a time acts. Does not own: the loop that calls it
(`jobs_app.background`) or what each step does to a session (commands, `recovery`, `permissions_app`).

Every step is bounded, idempotent and safe to run twice at once: the lease saves work, the rows' own states keep it right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from itertools import islice

import structlog
from django.db import transaction
from django.db.models import F, Q

from jobs_app import recovery, schedules
from permissions_app import audit, requests, watch
from sessions_app import (
    capacity,
    contents,
    erasure,
    leases,
    ledger,
    limits,
    participants,
    processes,
    workspaces,
)
from sessions_app.callers import system
from sessions_app.commands import attachments, lifecycle, logical, operations
from sessions_app.db import database_now
from sessions_app.erasure import purge
from sessions_app.errors import Refusal, SessionNotFound
from sessions_app.models import (
    Blob,
    Operation,
    Receipt,
    Session,
    SessionEvent,
    SweepLease,
)
from sessions_app.models.operations import ENDED

log = structlog.get_logger(__name__)

BATCH = 64
"""How many rows one step takes at most: a pass stays short, the next one follows."""

_UNCLAIMED_AFTER = timedelta(milliseconds=300)
"""A committed turn that no worker took for this long is dispatched again: its message was lost or all workers were busy."""

_AGAIN_FIRST, _AGAIN_LAST = timedelta(seconds=1), timedelta(seconds=30)
"""The pauses between two messages about one row: doubled each time, so that a long absence of workers fills no broker."""

_LOOKED_AT = 1024
"""How many unclaimed turns one pass knows of: those that nobody takes must not hide the ones behind them."""


def take_lease() -> bool:
    """Take or renew the sweep lease for this process; returns whether it holds it now."""
    now = database_now()
    expires = now + timedelta(milliseconds=limits.server().sweep_lease_ms)
    me = processes.current_id()
    row, made = SweepLease.objects.get_or_create(
        id=1, defaults={"process_id": me, "expires_at": expires, "covered_since": now}
    )
    if made:
        return True
    if row.process_id == me and row.expires_at - now > timedelta(
        milliseconds=limits.server().sweep_lease_ms / 2
    ):
        return True
    gap = now - row.expires_at > timedelta(milliseconds=limits.server().misfire_gap_ms)
    taken = SweepLease.objects.filter(Q(process_id=me) | Q(expires_at__lt=now), id=1).update(
        process_id=me, expires_at=expires, covered_since=now if gap else F("covered_since")
    )
    return bool(taken)


def give_up_lease() -> None:
    """Let another process act at once; for one that stops."""
    SweepLease.objects.filter(id=1, process_id=processes.current_id()).update(expires_at=database_now())


def run_due() -> None:
    """Run every step that is due now, each shielded from the failure of the others."""
    for step in _STEPS:
        _guarded(step)


def maintain() -> None:
    """Run the slow steps: removing what is expired or no longer retained (every `maintenance_ms`)."""
    for step in _MAINTENANCE:
        _guarded(step)


def maintain_machine() -> None:
    """Run what every machine must do for itself, whoever holds the lease (every `maintenance_ms`)."""
    _guarded(workspaces.tidy)


def next_due() -> datetime | None:
    """Return when the next step is due by time, if anything waits for a time."""
    retry = capacity.next_retry(database_now())
    deadlines = [requests.next_due(), schedules.next_due(), _next_lease_deadline(), retry]
    return min((due for due in deadlines if due is not None), default=None)


def dispatch_unclaimed() -> None:
    """Hand over turns that were committed and never claimed, and end those that were cancelled meanwhile."""
    now = database_now()
    waiting = Operation.objects.filter(process=None, parked=False, updated_at__lt=now - _UNCLAIMED_AFTER)
    found = list(
        waiting.exclude(state__in=ENDED)
        .order_by("updated_at")
        .values_list("session_id", "id", "state")[:_LOOKED_AT]
    )
    _told.keep(operation_id for _, operation_id, _ in found)
    for session_id in [session_id for session_id, _, state in found if state == "cancelling"][:BATCH]:
        _each("cancel", session_id, partial(_end_cancelled, session_id))
    if not found or not (processes.are_alive("worker") or processes.are_alive("local")):
        return
    lost = (operation_id for _, operation_id, state in found if state != "cancelling")
    for operation_id in islice((one for one in lost if _told.is_due(one, now)), BATCH):
        participants.dispatcher().operation(operation_id)


class _Told:
    """When the next message about an unclaimed operation is due; of the process that sweeps, and lost with it."""

    def __init__(self) -> None:
        self._next: dict[str, tuple[datetime, timedelta]] = {}

    def keep(self, operation_ids: Iterable[str]) -> None:
        """Forget every operation but these."""
        self._next = {one: self._next[one] for one in operation_ids if one in self._next}

    def is_due(self, operation_id: str, now: datetime) -> bool:
        """Tell whether to send one now, and count it as sent."""
        due, pause = self._next.get(operation_id, (now, _AGAIN_FIRST))
        if due > now:
            return False
        self._next[operation_id] = now + pause, min(2 * pause, _AGAIN_LAST)
        return True


_told = _Told()


def _end_cancelled(session_id: str) -> None:
    with ledger.session_txn(session_id, system("sweep")) as txn:
        operations.end_cancelled_if_unheld(txn)


def expire_owners() -> None:
    """Stop the sessions whose owner did not come back in time (behaviour 5.3)."""
    now = database_now()
    due = Session.objects.filter(
        Q(lease_grace_until__lte=now) | Q(lease_grace_until=None, lease_expires_at__lte=now)
    )
    for session_id in due.filter(archived_at=None).values_list("id", flat=True)[:BATCH]:
        _each("expire_owner", session_id, partial(_expire_owner, session_id))


def _expire_owner(session_id: str) -> None:
    with ledger.session_txn(session_id, system("owner_gone")) as txn:
        if leases.has_lapsed(txn.session):
            attachments.expire_owner(txn)


def activate_queued() -> None:
    """Start the sessions that wait for capacity and can have it now, in the order in which they were started (behaviour 3.3)."""
    for session_id in capacity.ready(database_now(), BATCH):
        _each("activate", session_id, partial(lifecycle.activate, session_id))


def end_idle_connections() -> None:
    """Close the logical connections that nobody uses (behaviour 1.4)."""
    for connection_id in logical.idle(BATCH):
        _each("end_idle", connection_id, partial(logical.end_idle, connection_id))


def drop_withdrawn() -> None:
    """Detach logical connections from the sessions that are no longer shared with them (behaviour 2.6).

    Whoever holds a stream or a socket looks after its own attachments.
    """
    for session_id, attachment_id in watch.withdrawn_unheld(BATCH):
        _each("withdrawn", session_id, partial(attachments.disconnect, [(session_id, attachment_id)]))


def expire_requests() -> None:
    """Apply the fallback of permission requests whose time is over."""
    requests.expire_due(database_now(), BATCH)


def deliver_schedules() -> None:
    """Deliver the schedules that are due; those whose time passed while nobody held the lease go by their misfire."""
    now = database_now()
    covered_since = SweepLease.objects.filter(id=1).values_list("covered_since", flat=True).first()
    for session_id, schedule_id in schedules.list_due(now, BATCH):
        _each(
            "deliver", session_id, partial(schedules.deliver, session_id, schedule_id, covered_since or now)
        )


def chain_audit() -> None:
    """Give waiting audit records their sequence and hash."""
    audit.settle_failures()
    audit.chain()


def prune_receipts() -> None:
    """Remove standard receipts past their expiry; protected ones have none (behaviour 11.5)."""
    purge(Receipt.objects.filter(expires_at__lt=database_now()))


def prune_events() -> None:
    """Remove events that no replay may use any more (behaviour 8.4)."""
    trimmed = SessionEvent.objects.filter(session__oldest_sequence__gt=1)
    purge(trimmed.filter(sequence__lt=F("session__oldest_sequence")))


def expire_blobs() -> None:
    """Remove uploads that nobody took (behaviour 13), and content that no row refers to."""
    expired = Blob.objects.filter(expires_at__lt=database_now(), session=None)
    for _ in range(erasure.PURGES):
        with transaction.atomic():
            found = dict(expired.values_list("pk", "sha256")[: erasure.PURGED_AT_ONCE])
            contents.loosen(found.values())
            expired.filter(pk__in=found).delete()
        if len(found) < erasure.PURGED_AT_ONCE:
            break
    contents.remove_loose()


def erase_removed() -> None:
    """Erase transient sessions that have stopped, and removed ones, a bounded number of rows at a time (behaviour 4.2, 9.5)."""
    erasure.erase_removed()


def _next_lease_deadline() -> datetime | None:
    held = Session.objects.filter(archived_at=None)
    grace = held.filter(lease_grace_until__isnull=False).order_by("lease_grace_until")
    lease = held.filter(lease_grace_until=None, lease_expires_at__isnull=False).order_by("lease_expires_at")
    found = [
        grace.values_list("lease_grace_until", flat=True).first(),
        lease.values_list("lease_expires_at", flat=True).first(),
    ]
    return min((due for due in found if due is not None), default=None)


def _each(step: str, session_id: str, action: Callable[[], object]) -> None:
    """Do one row's part of a step: a session that is busy, or broken, does not stop those behind it."""
    try:
        action()
    except Refusal as refusal:
        log.warning("sweep.row_refused", step=step, session=session_id, code=refusal.code)
    except Exception:
        log.exception("sweep.row_failed", step=step, session=session_id)


def _guarded(step: Callable[[], object]) -> None:
    """Run one step; whatever it meets, the others go on and it is tried again in the next pass."""
    try:
        step()
    except SessionNotFound:
        log.info("sweep.session_gone", step=step.__name__)
    except Refusal as refusal:
        log.warning("sweep.step_refused", step=step.__name__, code=refusal.code)
    except Exception:  # the boundary of the sweep: one failing step must not stop the rest
        log.exception("sweep.step_failed", step=step.__name__)


_STEPS: tuple[Callable[[], object], ...] = (
    recovery.end_dead_processes,
    dispatch_unclaimed,
    expire_requests,
    expire_owners,
    activate_queued,
    deliver_schedules,
    workspaces.tidy,
    end_idle_connections,
    drop_withdrawn,
    chain_audit,
)
_MAINTENANCE: tuple[Callable[[], object], ...] = (
    prune_receipts,
    prune_events,
    expire_blobs,
    erase_removed,
    workspaces.tidy,
)
