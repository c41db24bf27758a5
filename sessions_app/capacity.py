"""How many sessions run at once, where, and who is next (behaviour 3.2, 3.3).

Owns: taking and giving back capacity, the line of those that wait, and which of them may be tried. Does not own: the states of
a session (`commands.lifecycle`), or when the line is looked at (`jobs_app.sweep`).

Taking happens under one lock for all sessions, behind the session's own; giving back needs none, so that what was read under the
lock may be too full by a moment, never too empty. A ticket keeps what it lacked last: what came free since goes to it, and
whoever comes later stands behind it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec
from django.db import connection
from django.db.models import Q

from sessions_app import broadcast, limits, rows
from sessions_app.errors import ResourceLimit, WorkspaceUnavailable
from sessions_app.models import CapacityLock, HeldCapacity, StartTicket, WorkspaceDefinition
from sessions_app.records import PromptLimit

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from sessions_app.ledger import Txn
    from sessions_app.models import Session

CAPACITY_SIGNAL = "capacity"
"""Wakes the sweep: capacity came free while somebody waits, or somebody began to wait."""

Resource = Literal["server", "prompt", "principal", "lease"]
"""In the order in which they are looked at."""

BEHIND = "line"
"""What a ticket lacks that stands behind another one of its line."""
FAILED = "failed"

_FULL = {
    "server": "the server runs as many sessions as it may",
    "prompt": "the workspace runs as many sessions of this prompt as it may",
    "principal": "you run as many sessions as you may",
    "lease": "the workspace is in use",
    BEHIND: "others wait for the workspace",
}

_RETRY_FIRST, _RETRY_LAST = timedelta(seconds=1), timedelta(seconds=60)
"""The pauses before a session that could not be loaded is tried again: doubled each time."""

_READ_AT_ONCE = 512
_LOOKED_AT = 8192
"""How much of the line one look goes through: those that cannot be helped must not hide the ones behind them."""


@dataclass(frozen=True, slots=True)
class Want:
    """What a session needs to run."""

    session_id: str
    principal_id: str
    prompt_id: str
    domain: str
    exclusive: bool
    most: int | None
    """How many sessions of its prompt its workspace takes."""
    rejects: bool
    """Whether that limit refuses whoever comes when it is full."""

    @property
    def line(self) -> tuple[str, str]:
        """The line in which it waits: first come, first served."""
        return self.domain, self.prompt_id


class _Builds:
    """The sessions that this process loads just now (`max_concurrent_starts`)."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: self._running < limits.server().max_concurrent_starts)
            self._running += 1
        try:
            yield
        finally:
            with self._condition:
                self._running -= 1
                self._condition.notify()


building = _Builds().one
"""Hold it around a transaction that loads a session: further ones wait for their turn, holding nothing."""


def want(session: Session) -> Want:
    """Return what a session needs, by its workspace as configured now: lowered limits only affect later starts.

    Raises WorkspaceUnavailable for a session without a workspace.
    """
    instance = session.workspace_instance
    definition = _DEFINITION.first(session.workspace_id)
    if instance is None or definition is None:
        raise WorkspaceUnavailable("the session has no workspace")
    limit = _limit(definition.prompt_limits, session.prompt_id)
    return Want(
        session_id=session.id,
        principal_id=session.creator,
        prompt_id=session.prompt_id,
        domain=sha256(instance.conflict_domain.encode()).hexdigest(),
        exclusive=definition.access == "exclusive",
        most=limit.max_root_agents if limit else None,
        rejects=limit is not None and limit.overflow == "reject",
    )


_DEFINITION = rows.Select(WorkspaceDefinition, "id = %s")


@lru_cache(maxsize=1024)
def _limit(limits_of_workspace: bytes, prompt_id: str) -> PromptLimit | None:
    known = msgspec.json.decode(limits_of_workspace, type=tuple[PromptLimit, ...])
    return next((limit for limit in known if limit.prompt_id == prompt_id), None)


def is_held(session: Session) -> bool:
    """Tell whether a session has what it needs to run."""
    return _HELD.any(session.id)


_HELD = rows.Select(HeldCapacity, "session_id = %s")


def take(txn: Txn, session: Session, *, queue: bool) -> bool:
    """Take all that a session needs, or put it into its line; returns whether it has it.

    Raises ResourceLimit (retryable) when something is full and `queue` is false, or the prompt's limit does not let it wait.
    """
    needed = want(session)
    _lock()
    full, prompt_full = _full(needed)
    if not full:
        _hold(needed)
        return True
    if prompt_full and needed.rejects:
        raise ResourceLimit(_FULL["prompt"], retryable=True)
    if not queue:
        raise ResourceLimit(_FULL[full], retryable=True)
    rows.insert([StartTicket(**_claimed(needed), session_id=needed.session_id, blocked_on=full)])
    # What it waits for may have come free before this commit, unseen from both sides.
    txn.after_commit(_tell)
    return False


def take_waiting(session: Session) -> bool:
    """Take what a session in the line needs and remove its ticket; False, and nothing taken, while something is full."""
    needed = want(session)
    _lock()
    full = _lacking(needed, _counts(needed))
    if full:
        StartTicket.objects.filter(session=session).update(blocked_on=full, retry_at=None)
        return False
    StartTicket.objects.filter(session=session).delete()
    _hold(needed)
    return True


def postpone(session: Session, now: datetime) -> None:
    """Let a session that could not be loaded wait before it is tried again; those behind it go on meanwhile."""
    ticket = StartTicket.objects.get(session=session)
    pause = min(_RETRY_FIRST * 2 ** min(ticket.failures, 16), _RETRY_LAST)
    ticket.failures += 1
    ticket.blocked_on, ticket.retry_at = FAILED, now + pause
    ticket.save(update_fields=["failures", "blocked_on", "retry_at"])


def release(txn: Txn) -> None:
    """Give back what a session has or waits for: it is stopped. Safe for one that has nothing."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM sessions_app_heldcapacity WHERE session_id = %s", [txn.session.id])
        cursor.execute("DELETE FROM sessions_app_startticket WHERE session_id = %s", [txn.session.id])
    if _WAITING.any():
        txn.after_commit(_tell)


def _tell() -> None:
    broadcast.signal(CAPACITY_SIGNAL, "")


def _lock() -> None:
    if _LOCK.first() is None:
        CapacityLock.objects.get_or_create(id=1)
        _LOCK.first()


_LOCK = rows.Select(CapacityLock, "id = 1", lock=True)


def _hold(needed: Want) -> None:
    rows.insert([HeldCapacity(**_claimed(needed), session_id=needed.session_id)])


def _claimed(needed: Want) -> dict[str, str | bool]:
    return {
        "principal_id": needed.principal_id,
        "prompt_id": needed.prompt_id,
        "domain": needed.domain,
        "exclusive": needed.exclusive,
    }


@dataclass(frozen=True, slots=True)
class _Counts:
    """What is held of the things that a session needs."""

    server: int
    prompt: int
    principal: int
    lease: bool
    waiting: bool
    """Whether anybody stands in any line."""


def _counts(needed: Want) -> _Counts:
    """Return what is held, in one statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT COUNT(*) FROM sessions_app_heldcapacity),"
            " (SELECT COUNT(*) FROM sessions_app_heldcapacity WHERE domain = %s AND prompt_id = %s),"
            " (SELECT COUNT(*) FROM sessions_app_heldcapacity WHERE principal_id = %s),"
            " EXISTS (SELECT 1 FROM sessions_app_heldcapacity WHERE domain = %s AND (exclusive OR %s)),"
            " EXISTS (SELECT 1 FROM sessions_app_startticket)",
            [
                needed.domain,
                needed.prompt_id,
                needed.principal_id,
                needed.domain,
                needed.exclusive,
            ],
        )
        server, prompt, principal, lease, waiting = cursor.fetchone()
    return _Counts(server, prompt, principal, bool(lease), bool(waiting))


def _lacking(needed: Want, held: _Counts) -> Resource | Literal[""]:
    """Return the first thing that is full."""
    settings = limits.server()
    if held.server >= settings.max_running_sessions:
        return "server"
    if needed.most is not None and held.prompt >= needed.most:
        return "prompt"
    if needed.principal_id and held.principal >= settings.max_running_sessions_per_principal:
        return "principal"
    return "lease" if held.lease else ""


def _full(needed: Want) -> tuple[str, bool]:
    """Return what a session that comes now lacks, those that wait counted before it, and whether its prompt's limit is full."""
    held = _counts(needed)
    prompt_full = needed.most is not None and held.prompt >= needed.most
    lacking: str = _lacking(needed, held)
    if held.waiting and lacking != "server":
        lacking = _promised(needed, lacking)
    return lacking, prompt_full


def _promised(needed: Want, lacking: str) -> str:
    """Return what a session lacks when what came free is for those that wait for it already."""
    if _BLOCKED_ON_SERVER.any():
        return "server"
    if _LINE.any(*needed.line):
        return lacking or BEHIND
    if lacking == "prompt":
        return lacking
    if _BLOCKED_ON_PRINCIPAL.any(needed.principal_id):
        return "principal"
    if lacking:
        return lacking
    return "lease" if _BLOCKED_ON_LEASE.any(needed.domain) else ""


_WAITING = rows.Select(StartTicket, "id > 0")
_LINE = rows.Select(
    StartTicket, "domain = %s AND prompt_id = %s AND blocked_on <> 'failed' AND blocked_on <> 'principal'"
)
_BLOCKED_ON_SERVER = rows.Select(StartTicket, "blocked_on = 'server'")
_BLOCKED_ON_PRINCIPAL = rows.Select(StartTicket, "blocked_on = 'principal' AND principal_id = %s")
_BLOCKED_ON_LEASE = rows.Select(StartTicket, "blocked_on = 'lease' AND domain = %s")


# The line


def next_retry(now: datetime) -> datetime | None:
    """Return when the next session that could not be loaded is tried again; one whose time has come waits for capacity."""
    return _first_retry(StartTicket.objects.filter(retry_at__gt=now))


def oldest_retry() -> datetime | None:
    """Return when the first of those was to be tried again; None while the server is full, because nobody is tried then."""
    return (
        None if _BLOCKED_ON_SERVER.any() else _first_retry(StartTicket.objects.filter(retry_at__isnull=False))
    )


def _first_retry(tickets: QuerySet[StartTicket]) -> datetime | None:
    return tickets.order_by("retry_at").values_list("retry_at", flat=True).first()


def ready(now: datetime, limit: int) -> list[str]:
    """Return the sessions whose turn it is, in the order of their tickets, at most `limit`; takes no lock.

    Whoever lacks something holds up those behind it that need the same, and nobody else. What they lack is noted, so that what
    comes free is kept for them. Whether a session gets it is decided under the lock, by `take_waiting`.
    """
    if not _WAITING.any():
        return []
    look = _Look()
    found: list[str] = []
    changed: dict[str, list[int]] = {}
    for ticket in _tickets(now):
        lacking = look.lacking(ticket)
        if not lacking:
            found.append(ticket.session_id)
        elif ticket.blocked_on != lacking:
            changed.setdefault(lacking, []).append(ticket.id)
        if lacking == "server" or len(found) == limit:
            break
    for lacking, tickets in changed.items():
        # One that was to be tried again waits for what it lacks now, and no longer for a time.
        StartTicket.objects.filter(id__in=tickets).update(blocked_on=lacking, retry_at=None)
    return found


class _Ticket(NamedTuple):
    """What a look at the line reads of a ticket."""

    id: int
    session_id: str
    principal_id: str
    prompt_id: str
    domain: str
    exclusive: bool
    blocked_on: str
    prompt_limits: bytes


def _tickets(now: datetime) -> Iterator[_Ticket]:
    """Yield the tickets that may be tried, in order."""
    due = StartTicket.objects.filter(Q(retry_at=None) | Q(retry_at__lte=now)).order_by("id")
    columns = (*_Ticket._fields[:-1], "session__workspace__prompt_limits")
    last = 0
    for _ in range(_LOOKED_AT // _READ_AT_ONCE):
        page = [_Ticket(*found) for found in due.filter(id__gt=last).values_list(*columns)[:_READ_AT_ONCE]]
        yield from page
        if len(page) < _READ_AT_ONCE:
            return
        last = page[-1].id


class _Look:
    """What is held, and what those that were looked at would take or lack."""

    def __init__(self) -> None:
        waiting = StartTicket.objects.all()
        held = HeldCapacity.objects.filter(
            Q(domain__in=waiting.values("domain")) | Q(principal_id__in=waiting.values("principal_id"))
        )
        self._server = 0
        self._principals: Counter[str] = Counter()
        self._lines: Counter[tuple[str, str]] = Counter()
        self._shared: Counter[str] = Counter()
        self._exclusive: set[str] = set()
        self._blocked_lines: set[tuple[str, str]] = set()
        self._blocked_principals: set[str] = set()
        self._blocked_domains: set[str] = set()
        for principal_id, prompt_id, domain, exclusive in held.values_list(
            "principal_id", "prompt_id", "domain", "exclusive"
        ):
            self._take(principal_id, prompt_id, domain, exclusive=exclusive)
        self._server = HeldCapacity.objects.count()

    def lacking(self, ticket: _Ticket) -> str:
        """Return what a ticket lacks; when nothing, it counts as running from now on."""
        line = ticket.domain, ticket.prompt_id
        lacking = BEHIND if line in self._blocked_lines else self._lacking(ticket)
        if not lacking:
            self._take(ticket.principal_id, ticket.prompt_id, ticket.domain, exclusive=ticket.exclusive)
            return ""
        if lacking == "principal":
            # Theirs alone: somebody else's session in the same line may run.
            self._blocked_principals.add(ticket.principal_id)
            return lacking
        self._blocked_lines.add(line)
        if lacking == "lease":
            self._blocked_domains.add(ticket.domain)
        return lacking

    def _lacking(self, ticket: _Ticket) -> str:
        settings = limits.server()
        domain, principal = ticket.domain, ticket.principal_id
        if self._server >= settings.max_running_sessions:
            return "server"
        limit = _limit(ticket.prompt_limits, ticket.prompt_id)
        if limit is not None and self._lines[domain, ticket.prompt_id] >= limit.max_root_agents:
            return "prompt"
        full = self._principals[principal] >= settings.max_running_sessions_per_principal
        if principal in self._blocked_principals or (principal and full):
            return "principal"
        taken = domain in self._exclusive or (ticket.exclusive and self._shared[domain] > 0)
        return "lease" if taken or domain in self._blocked_domains else ""

    def _take(self, principal_id: str, prompt_id: str, domain: str, *, exclusive: bool) -> None:
        self._server += 1
        self._principals[principal_id] += 1
        self._lines[domain, prompt_id] += 1
        if exclusive:
            self._exclusive.add(domain)
        else:
            self._shared[domain] += 1
