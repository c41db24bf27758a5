"""How this server is doing: real probes of everything that a session needs (behaviour 14.1).

Owns: the components, their probes and the rule that makes one status of them. Does not own: who is shown the components
(`diagnostics.read`), or who asks (`server.health`, `/v1/health`, `/healthz`, `/readyz`): all of them ask `Health.check`.

A look costs a few short queries and every few seconds one durable write, however many ask: looks are shared for a second, and
one that does not come back holds up nobody but the one who began it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import structlog
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.db.models.functions import Coalesce

from jobs_app import schedules
from jobs_app.models import Job
from ochat_site.dialects.ochat1.types import HealthComponent, HealthResult
from permissions_app import audit, requests
from sessions_app import capacity, catalog, clock, limits
from sessions_app.db import database_now
from sessions_app.models import Operation, Process, Receipt, Session, Store, SweepLease
from sessions_app.models.operations import ENDED

if TYPE_CHECKING:
    from permissions_app.audit_batch import AuditBatch
    from sessions_app.broadcast import Broadcast
    from sessions_app.records import HealthStatus

log = structlog.get_logger(__name__)

SLOW_SECONDS = 1.0
"""A write that takes longer is felt by everybody who sends."""
LATE = timedelta(seconds=30)
"""What is overdue for longer is not being looked after; sweeps come at least once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often a process looks, in seconds."""

    look: float = 1.0
    """So long a look is shared: whoever may ask without credentials may ask in any number."""
    write: float = 5.0
    """So long a write probe counts: each one costs the disk a sync."""
    patience: float = 5.0
    """A look that takes longer says by that what there is to say: the store hangs."""


class Serving(Protocol):
    """What a process knows of itself."""

    @property
    def ready(self) -> bool:
        """Whether it has started."""
        ...

    @property
    def draining(self) -> bool:
        """Whether it takes no new work."""
        ...


_USUAL = Pace()


class Health:
    """The health of one process and of the store that it serves."""

    def __init__(self, broadcast: Broadcast, batch: AuditBatch, pace: Pace = _USUAL) -> None:
        """`broadcast` and `batch` are those of the process."""
        self._broadcast = broadcast
        self._batch = batch
        self._pace = pace
        self._looking = threading.Lock()
        self._began: float | None = None
        self._ended = float("-inf")
        self._checked_at = clock.now()
        self._storage = _degraded("storage", "not looked at yet")
        self._wrote = float("-inf")
        self._seen: tuple[HealthComponent, ...] = (self._storage,)

    def check(self, process: Serving) -> HealthResult:
        """Return the health with every component, about a second old at most. Never raises.

        It uses the store: call it in a database thread.
        """
        if time.monotonic() - self._ended >= self._pace.look and self._looking.acquire(blocking=False):
            try:
                self._began = time.monotonic()
                self._seen = tuple(self._look())
                self._ended, self._checked_at = time.monotonic(), clock.now()
            finally:
                self._began = None
                self._looking.release()
        components = (_daemon(process), *self._latest())
        status = _worst(components)
        return HealthResult(
            status=status,
            ready=process.ready and not process.draining and status != "unhealthy",
            draining=process.draining,
            checked_at=clock.wire_time(self._checked_at),
            components=components,
        )

    def _latest(self) -> tuple[HealthComponent, ...]:
        """Return what was seen last, or that the look under way does not come back."""
        began = self._began
        if began is not None and time.monotonic() - began >= self._pace.patience:
            return (_unhealthy("storage", "does not answer"), *self._seen[1:])
        return self._seen

    def _look(self) -> Iterator[HealthComponent]:
        storage = self._write()
        yield storage
        for name, probe in self._probes().items():
            if storage.status == "unhealthy":
                yield _degraded(name, "not looked at: the storage fails")
            else:
                yield _probed(name, probe)

    def _write(self) -> HealthComponent:
        """Return what became of the newest write probe; one that failed is tried again by the next look."""
        if time.monotonic() - self._wrote >= self._pace.write or self._storage.status != "healthy":
            self._wrote = time.monotonic()
            self._storage = _probed("storage", _storage)
        return self._storage

    def _probes(self) -> dict[str, Probe]:
        return {
            "session_registry": _session_registry,
            "start_scheduler": lambda: _scheduler(capacity.oldest_retry()),
            "job_scheduler": lambda: _scheduler(_oldest_job()),
            "schedule_scheduler": lambda: _scheduler(schedules.next_due()),
            "permission_scheduler": lambda: _scheduler(requests.next_due()),
            "maintenance": lambda: _scheduler(_oldest_receipt(), within=_maintenance_pause()),
            "configuration": catalog.error,
            "workers": _workers,
            "broker": self._broker,
            "audit": self._audit,
        }

    def _broker(self) -> str:
        return "" if self._broadcast.reachable else "does not answer; work is found by looking for it"

    def _audit(self) -> str:
        if self._batch.lost:
            return f"{self._batch.lost} records were lost since this process began"
        return _late("the oldest record that waits for the chain", audit.oldest_waiting())


Probe = Callable[[], str]
"""Looks at one component: returns what is wrong with it, empty for nothing. Raises when it cannot look."""


def _probed(name: str, probe: Probe) -> HealthComponent:
    try:
        problem = probe()
    except Exception:  # the boundary of the probes: whatever one meets is its result
        log.exception("health.probe_failed", component=name)
        return _unhealthy(name, "fails")
    return _degraded(name, problem) if problem else HealthComponent(name=name, status="healthy")


def _storage() -> str:
    """Write a row and a file, durably."""
    began = time.monotonic()
    Store.objects.update(probed_at=clock.now())
    default_storage.delete(default_storage.save("health/probe", ContentFile(b"probe")))
    seconds = time.monotonic() - began
    return f"a write took {seconds:.1f} s" if seconds > SLOW_SECONDS else ""


def _session_registry() -> str:
    running = Session.objects.filter(desired="running", archived_at=None).count()
    most = limits.server().max_running_sessions
    return f"all {most} places for running sessions are taken" if running >= most else ""


def _scheduler(oldest: datetime | None, within: timedelta = timedelta()) -> str:
    """Look at what only the sweep moves on: whether anybody sweeps, and the oldest item that is due."""
    lease = SweepLease.objects.filter(id=1).first()
    if (
        lease is None
        or lease.expires_at + timedelta(milliseconds=limits.server().sweep_lease_ms) < database_now()
    ):
        return "no process holds the sweep lease"
    return _late("the oldest item", oldest and oldest + within)


def _late(what: str, due: datetime | None) -> str:
    late = database_now() - due if due else timedelta()
    return f"{what} is {late.total_seconds():.0f} s overdue" if late > LATE else ""


def _oldest_job() -> datetime | None:
    due = Coalesce("next_run_at", "created_at")
    # Jobs of a session that is to stop wait until it is started again (behaviour 10.1).
    waiting = Job.objects.filter(status="queued", session__desired="running", session__archived_at=None)
    return waiting.order_by(due).values_list(due, flat=True).first()


def _oldest_receipt() -> datetime | None:
    kept = Receipt.objects.filter(expires_at__isnull=False).exclude(state="pending").order_by("expires_at")
    return kept.values_list("expires_at", flat=True).first()


def _maintenance_pause() -> timedelta:
    return timedelta(milliseconds=limits.server().maintenance_ms)


def _workers() -> str:
    """Look for a process that runs turns, and for turns that none of them takes."""
    alive = database_now() - timedelta(milliseconds=limits.server().process_expiry_ms)
    if not Process.objects.filter(kind__in=("worker", "local"), beat_at__gte=alive, draining=False).exists():
        return "no worker is running"
    waiting = Operation.objects.filter(process=None, parked=False).exclude(state__in=ENDED)
    return _late(
        "the oldest turn", waiting.order_by("updated_at").values_list("updated_at", flat=True).first()
    )


def _daemon(process: Serving) -> HealthComponent:
    if process.draining:
        return _degraded("daemon", "draining")
    return (
        HealthComponent(name="daemon", status="healthy") if process.ready else _degraded("daemon", "starting")
    )


def _worst(components: tuple[HealthComponent, ...]) -> HealthStatus:
    found = {component.status for component in components}
    return "unhealthy" if "unhealthy" in found else "degraded" if "degraded" in found else "healthy"


def _degraded(name: str, message: str) -> HealthComponent:
    return HealthComponent(name=name, status="degraded", message=message)


def _unhealthy(name: str, message: str) -> HealthComponent:
    return HealthComponent(name=name, status="unhealthy", message=message)
