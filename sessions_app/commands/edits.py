"""Taking an entry out of a history (behaviour 9.1), and what every change of a history asks of a session first.

Owns: `session.delete_history`, and the checks of revision and state in the order of behaviour 4.6. Does not own: replacing a
whole history (`commands.compaction`, `commands.administration`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from sessions_app import ledger
from sessions_app.commands import entries
from sessions_app.commands.messages import Changed, changed
from sessions_app.errors import Conflict, InvalidRequest, InvalidState
from sessions_app.ids import history_number
from sessions_app.models import HistoryEntry

if TYPE_CHECKING:
    from sessions_app.ledger import Txn
    from sessions_app.models import Session
    from sessions_app.receipts import Call

QUIET = ("idle", "stopped")
"""The observed states in which a history may be edited or compacted."""
STOPPED = ("stopped",)
"""The one in which a session may be administered or deleted."""


def check_at_rest(session: Session, expected_revision: int | None, states: Collection[str]) -> None:
    """Refuse unless the session stands at a revision, nothing runs in it and it is in one of `states`.

    Raises, in this order: Conflict for another revision than the expected one, if one is expected; Conflict while an operation is
    active; InvalidState.
    """
    if expected_revision is not None and expected_revision != session.revision:
        raise Conflict("the session is at another revision")
    if session.active_operation_id:
        raise Conflict("an operation is active")
    if session.observed not in states:
        raise InvalidState(f"the session is not {' or '.join(states)}")


def delete_history(call: Call, session_id: str, entry_id: str, expected_revision: int) -> Changed:
    """Remove an entry of the canonical history and, of a call or an output, its partner: `history.replaced`.

    Nothing is taken back that a tool did, and archives stay. Raises, beside what `ledger.command` raises, what `check_at_rest`
    raises, and InvalidRequest for an unknown entry.
    """

    def body(txn: Txn) -> Changed:
        check_at_rest(txn.session, expected_revision, QUIET)
        entry = _entry(txn.session, entry_id)
        partner = _partner(entry)
        doomed = [entry.pk] if partner is None else [entry.pk, partner.pk]
        HistoryEntry.objects.filter(pk__in=doomed).delete()
        entries.tell_replaced(txn)
        return changed(txn)

    return ledger.command(call, session_id, Changed, body)


def _entry(session: Session, entry_id: str) -> HistoryEntry:
    number = history_number(session.id, entry_id)
    found = HistoryEntry.objects.filter(session=session, number=-1 if number is None else number).first()
    if found is None:
        raise InvalidRequest("no such history entry")
    return found


def _partner(entry: HistoryEntry) -> HistoryEntry | None:
    """Return the nearest output behind a call, or call before an output, of the same family and call id.

    Another entry of the same direction in between has that partner, so then there is none.
    """
    if not entry.call_key:
        return None
    same = HistoryEntry.objects.filter(session=entry.session_id, call_key=entry.call_key)
    if entry.kind == "tool_call":
        nearest = same.filter(position__gt=entry.position).order_by("position").first()
    else:
        nearest = same.filter(position__lt=entry.position).order_by("-position").first()
    return None if nearest is None or nearest.kind == entry.kind else nearest
