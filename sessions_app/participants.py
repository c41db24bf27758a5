"""The ports through which the layers above the kernel take part in its transactions.

Owns: `Participant` (permissions, jobs, schedules, grants) and `Dispatcher` (look at this committed row), and the one place
where they are installed. Does not own: any implementation; `ochat_site.wiring` installs them once, at start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from sessions_app.callers import Caller
    from sessions_app.ledger import Txn
    from sessions_app.models import Operation, Session
    from sessions_app.records import ErrorCode, Grant, Job, Permission, Schedule, StopMode
    from sessions_app.views import View


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """How one command ended: what its audit record says (behaviour 15)."""

    command: str
    """The method's name on the wire, or `operator.<command>`."""
    session_id: str | None
    code: ErrorCode | Literal["success"]


OperationOutcome = Literal["completed", "failed", "cancelled", "interrupted"]


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """What one participant adds to a snapshot; the lists of the others stay empty."""

    permissions: Sequence[Permission] = ()
    grants: Sequence[Grant] = ()
    jobs: Sequence[Job] = ()
    schedules: Sequence[Schedule] = ()


class Participant:
    """A layer above the kernel that has rows of its own in a session. A hook that is not overridden has nothing to do.

    Each hook but the last runs inside the session's transaction, under its lock, and may emit events through `txn`. A hook
    that raises rolls the whole transaction back.
    """

    def on_command(self, txn: Txn, caller: Caller, outcome: CommandOutcome) -> None:
        """Take note of a command, refused or not: the audit row."""

    def on_operation_end(self, txn: Txn, operation: Operation, outcome: OperationOutcome) -> None:
        """Settle what the ended operation left open (behaviour 6.5, steps 5 and 6)."""

    def on_stop(self, txn: Txn, mode: StopMode) -> None:
        """Follow a stop: mode cancel ends unfinished jobs (behaviour 4.5)."""

    def on_reset(self, txn: Txn, *, keep_grants: bool) -> None:
        """Drop what a reset or rebuild clears (behaviour 9.4)."""

    def on_upgrade(self, txn: Txn, revision_id: str) -> None:
        """Follow a prompt upgrade."""

    def on_delete(self, txn: Txn, policy: Literal["archive", "remove"]) -> None:
        """Follow a deletion; rows that reference the session go with it anyway."""

    def snapshot_part(self, session: Session, view: View) -> SnapshotPart:
        """Return this participant's lists: live items first, newest first, at most 256, empty where `view` may not see them."""
        return SnapshotPart()


class Dispatcher(Protocol):
    """Tells workers to look at a committed row. The row is the queue of record; a lost message costs only time."""

    def operation(self, operation_id: str) -> None:
        """Say that an operation waits to be claimed. Never blocks and never raises for want of a broker."""
        ...


class _NoDispatcher:
    """Before wiring: rows wait for the sweep."""

    def operation(self, operation_id: str) -> None:
        return


class _Installed:
    participants: tuple[Participant, ...] = ()
    dispatcher: Dispatcher = _NoDispatcher()


def install(participants: tuple[Participant, ...], dispatcher: Dispatcher) -> None:
    """Install the ports of this process; `ochat_site.wiring` calls it once."""
    _Installed.participants = participants
    _Installed.dispatcher = dispatcher


def installed() -> tuple[Participant, ...]:
    """Return the participants in the order of their events: permissions, jobs, schedules, grants."""
    return _Installed.participants


def dispatcher() -> Dispatcher:
    """Return the dispatcher of this process."""
    return _Installed.dispatcher
