"""Shortening a history to a summary (behaviour 9.2).

Owns: beginning a compaction, and the transaction that completes one. Does not own: the summary (`runtime.compaction`), the
archive's file (`archives`), or how an operation is claimed, cancelled and ended otherwise (`commands.operations`), which leaves
the history as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessions_app import archives, ledger
from sessions_app.callers import system
from sessions_app.commands import entries, operations
from sessions_app.commands.edits import QUIET, check_at_rest
from sessions_app.commands.messages import Changed, changed
from sessions_app.commands.operations import Claim, Ending
from sessions_app.ledger import session_txn
from sessions_app.models import HistoryEntry

if TYPE_CHECKING:
    from sessions_app.archives import Written
    from sessions_app.history import NewEntry
    from sessions_app.ledger import Txn
    from sessions_app.models import Session
    from sessions_app.receipts import Call


def compact(call: Call, session_id: str, expected_revision: int | None) -> Changed:
    """Begin a compaction: `operation.started`, then the state. A worker does the rest, and what is wanted of the session stays.

    Raises, beside what `ledger.command` raises, what `check_at_rest` raises.
    """

    def body(txn: Txn) -> Changed:
        check_at_rest(txn.session, expected_revision, QUIET)
        operations.begin_compaction(txn, origin="ochat", principal_id=txn.caller.principal_id or "")
        return changed(txn)

    return ledger.command(call, session_id, Changed, body)


def complete(claim: Claim, summary: NewEntry, archive: Written) -> None:
    """Put a summary in the place of everything behind the prompt's own instructions, as the worker that holds the claim.

    One transaction: the archive, under the revision just before; `history.replaced`; `operation.completed`; the state. Raises
    ClaimLost and Cancelling; InternalError when `archive` is not of this history.
    """
    with session_txn(claim.session_id, system("worker")) as txn:
        operations.held(txn, claim)
        archives.keep(txn, archive)
        HistoryEntry.objects.filter(
            session=txn.session, position__gte=_behind_instructions(txn.session)
        ).delete()
        entries.append(txn, [summary], operation_id=claim.operation_id)
        entries.tell_replaced(txn)
        promised = range(claim.first_number, claim.first_number + claim.numbers)
        operations.end(txn, Ending("completed", promised=promised[1:]))


def _behind_instructions(session: Session) -> int:
    """Return the first position that is not one of the prompt's own leading system and developer messages."""
    rows = HistoryEntry.objects.filter(session=session).order_by("position")
    for position, initial, role, kind in rows.values_list("position", "initial", "role", "kind").iterator(64):
        if not (initial and role == "system" and kind == "message"):
            return position
    return session.next_position
