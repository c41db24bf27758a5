"""This app's part in the transactions of the kernel: audit record, requests, grants (design 2).

Owns: `PermissionParticipant` and `GrantParticipant`, installed first and last because that is the order of their
events. Does not own: what they do, which is `audit.py`, `requests.py` and `grants.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from permissions_app import audit, grants, requests
from sessions_app import rows
from sessions_app.participants import Participant, SnapshotPart

if TYPE_CHECKING:
    from sessions_app.callers import Caller
    from sessions_app.ledger import Txn
    from sessions_app.models import Operation, Session
    from sessions_app.participants import CommandOutcome, OperationOutcome
    from sessions_app.views import View


class PermissionParticipant(Participant):
    """Audits commands; closes the requests of an operation that ends."""

    def on_command(self, txn: Txn, caller: Caller, outcome: CommandOutcome) -> None:
        """Insert the audit record, unchained: if it cannot be written, nothing is committed (behaviour 15)."""
        rows.insert([audit.command_record(caller, outcome, txn.now)])

    def on_operation_end(self, txn: Txn, operation: Operation, outcome: OperationOutcome) -> None:
        """Cancel what the operation left pending."""
        requests.cancel_requests(txn, operation, outcome)

    def on_reset(self, txn: Txn, *, keep_grants: bool) -> None:
        """Drop the session's requests."""
        requests.clear(txn.session)

    def snapshot_part(self, session: Session, view: View) -> SnapshotPart:
        """Return the requests, for readers with `security.read`."""
        return SnapshotPart(permissions=requests.newest(session) if view.security_read else ())


class GrantParticipant(Participant):
    """Shows grants, and drops them with a reset that does not keep them."""

    def on_reset(self, txn: Txn, *, keep_grants: bool) -> None:
        """Drop grants and deny rules unless they are kept."""
        if not keep_grants:
            grants.clear(txn.session)

    def snapshot_part(self, session: Session, view: View) -> SnapshotPart:
        """Return the grants, for readers with `grant.manage`."""
        return SnapshotPart(grants=grants.newest(session) if view.grant_manage else ())
