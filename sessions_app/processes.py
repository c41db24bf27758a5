"""The processes that serve a store: who they are and whether they live (behaviour 0.8, 14.4).

Owns: registering this process, its heartbeat, and the judgement that another one is dead. Does not own: what a dead process
held (`jobs_app.sweep` ends it), nor the loop that beats.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta

from sessions_app import ids, limits
from sessions_app.db import database_now
from sessions_app.models import Process

_current: list[str] = []


def register(kind: str) -> str:
    """Enter this process among those that serve the store and return its id. `kind`: web, worker, local or command."""
    now = database_now()
    row = Process.objects.create(
        id=ids.new_id("prc"),
        kind=kind,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_at=now,
        beat_at=now,
    )
    _current[:] = [row.id]
    return row.id


def current_id() -> str:
    """Return the id of this process, entering it first where nobody has (management commands)."""
    return _current[0] if _current else register("command")


def is_current(process_id: str) -> bool:
    """Tell whether `process_id` is this process, without asking the store."""
    return bool(_current) and _current[0] == process_id


def beat(*, draining: bool = False) -> bool:
    """Say that this process lives. Returns False when its row is gone: it was taken for dead and must stop what it holds."""
    return bool(Process.objects.filter(id=current_id()).update(beat_at=database_now(), draining=draining))


def leave() -> None:
    """Take this process off the list; what it held must have been given up before."""
    if _current:
        Process.objects.filter(id=_current[0]).delete()
        forget()


def forget() -> None:
    """Forget which process this is; for one that turns to another store (tests, the embedded host)."""
    _current.clear()


def is_alive(process_id: str) -> bool:
    """Tell whether the process beat within `process_expiry_ms`; an unknown one is dead."""
    if is_current(process_id):
        return True
    return Process.objects.filter(id=process_id, beat_at__gte=_oldest_living_beat()).exists()


def are_alive(kind: str) -> bool:
    """Tell whether any process of a kind beat within `process_expiry_ms` and takes new work."""
    return Process.objects.filter(kind=kind, draining=False, beat_at__gte=_oldest_living_beat()).exists()


def pids_here(kind: str) -> frozenset[int]:
    """Return the pids of the processes of a kind on this host, those that may be dead included."""
    rows = Process.objects.filter(kind=kind, host=socket.gethostname())
    return frozenset(rows.values_list("pid", flat=True))


def expired(limit: int = 16) -> list[str]:
    """Return the ids of processes that have not beaten for `process_expiry_ms`, oldest first."""
    rows = Process.objects.filter(beat_at__lt=_oldest_living_beat()).order_by("beat_at")
    return list(rows.values_list("id", flat=True)[:limit])


def others() -> list[str]:
    """Return the ids of all processes but this one."""
    return list(Process.objects.exclude(id=current_id()).values_list("id", flat=True))


def forget_other(process_id: str) -> None:
    """Remove a process that is known to be gone, once everything it held has been ended."""
    Process.objects.filter(id=process_id).delete()


def bury(process_id: str) -> None:
    """Remove a dead process, once everything it held has been ended."""
    Process.objects.filter(id=process_id, beat_at__lt=_oldest_living_beat()).delete()


def _oldest_living_beat() -> datetime:
    return database_now() - timedelta(milliseconds=limits.server().process_expiry_ms)
