"""Erasing sessions of which nothing is to be kept (behaviour 4.2, 9.5).

Owns: the order in which rows and files go, a bounded number at a time. Does not own: which sessions those are, which is committed
with them (`Session.removed`), or the loop that takes up what an interrupted process left (`jobs_app.sweep`).

Each step may be broken off and done again, also by two processes at once. Receipts are never erased: a key keeps its outcome.
The content of blobs is not the session's alone, as anybody may have brought the same: it is loosened with their rows (`contents`).
"""

from __future__ import annotations

from typing import Any

import structlog
from django.db import transaction
from django.db.models import QuerySet

from sessions_app import archives, contents, store, workspaces
from sessions_app.db import database_now
from sessions_app.errors import Refusal
from sessions_app.models import Archive, Blob, HistoryEntry, Operation, Session, SessionEvent, ToolCall

log = structlog.get_logger(__name__)

PURGED_AT_ONCE = 2000
"""Rows that go in one statement: the store's lock is held for milliseconds."""

PURGES = 50
"""Statements of one step at most: a minute's rows of a busy installation, several times over."""

_ERASED_AT_ONCE = 4
"""Sessions that one pass of maintenance takes up."""


def purge(rows: QuerySet[Any]) -> bool:
    """Remove rows for good, a bounded number in each statement and in all; tells whether none is left."""
    for _ in range(PURGES):
        found = list(rows.values_list("pk", flat=True)[:PURGED_AT_ONCE])
        rows.model._default_manager.filter(pk__in=found).delete()
        if len(found) < PURGED_AT_ONCE:
            return True
    return False


def erase_soon(session_id: str) -> None:
    """Erase a removed session as far as that goes now; what fails or is left over, maintenance takes up."""
    try:
        with store.errors():
            session = _removed().filter(id=session_id).first()
            if session is not None:
                _erase(session)
    except Refusal as refusal:
        log.warning("erasure.put_off", session_id=session_id, code=refusal.code)


def erase_removed() -> None:
    """Take up some of the sessions that are to be erased. Raises what the store raises."""
    with store.errors():
        for session in _removed().order_by("id")[:_ERASED_AT_ONCE]:
            _erase(session)


def _removed() -> QuerySet[Session]:
    return Session.objects.filter(removed=True).select_related("workspace_instance__definition")


def _erase(session: Session) -> None:
    archives.clear(session.id)
    Archive.objects.filter(session=session).delete()
    for model in (SessionEvent, HistoryEntry, ToolCall, Operation):
        if not purge(model.objects.filter(session=session)):
            return
    instance = session.workspace_instance
    with transaction.atomic():
        contents.loosen(Blob.objects.filter(session=session).values_list("sha256", flat=True))
        session.delete()
    if instance is not None:
        workspaces.give_up(instance, database_now())
        workspaces.clear(instance)
