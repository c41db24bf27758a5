"""Who asks the kernel for something, and by which rule the asking is checked.

Owns: `Caller` and the four kinds of access. Does not own: principals, tokens, scopes and shares, which `permissions_app`
turns into a `Caller`; the check itself is `ledger`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sessions_app.views import View

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from sessions_app.models import Session
    from sessions_app.records import AttachmentMode, Scope


class Visible(Protocol):
    """Which sessions a caller may see (behaviour 2.6): the one filter from an id to a session."""

    def sees(self, session: Session) -> bool:
        """Tell whether the caller may see this session."""
        ...

    def covers(self, session: Session, mode: AttachmentMode) -> bool:
        """Tell whether the caller's share, creation or token is wide enough for an attachment of `mode`."""
        ...

    def restrict(self, sessions: QuerySet[Session]) -> QuerySet[Session]:
        """Return those of `sessions` that the caller may see, as a query."""
        ...

    @property
    def everything(self) -> bool:
        """Whether the caller sees every session."""
        ...

    def ids(self, after: str, limit: int) -> list[str]:
        """Return the ids behind `after` of what the caller may see, in order, at most `limit`; not for one that sees everything.

        Read from indexes alone, at a cost that follows `limit`. Archived sessions may be among them.
        """
        ...


@dataclass(frozen=True, slots=True)
class Attached:
    """An Ochat client, through an attachment of its connection: the rule of behaviour 5.5."""

    connection_id: str
    attachment_id: str
    writes: bool = True
    """False for the calls that any attachment may make (detach, export, blob.read)."""


@dataclass(frozen=True, slots=True)
class Connected:
    """An Ochat client, before or without an attachment: create, attach and reads."""

    connection_id: str
    logical: bool = False
    """No process holds the connection but for its event stream: who holds its attachments is in its row."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A client of a dialect without attachments; its own specification says what it may do."""

    name: str


@dataclass(frozen=True, slots=True)
class Operator:
    """A person at the console or the command line, audited by name."""

    name: str


@dataclass(frozen=True, slots=True)
class System:
    """The server itself, for a stored reason: sweep, worker, recurring schedule, parent session."""

    cause: str


Access = Attached | Connected | Dialect | Operator | System


class SeesEverything:
    """Whoever sees every session needs no list of them."""

    @property
    def everything(self) -> bool:
        """True."""
        return True

    def ids(self, after: str, limit: int) -> list[str]:
        """Return none: not asked."""
        return []


class _Everything(SeesEverything):
    """The server itself sees every session."""

    def sees(self, session: Session) -> bool:
        return True

    def covers(self, session: Session, mode: AttachmentMode) -> bool:
        return True

    def restrict(self, sessions: QuerySet[Session]) -> QuerySet[Session]:
        return sessions


EVERYTHING: Visible = _Everything()


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal together with the rule by which its calls are checked."""

    principal_id: str | None
    """None only where nobody is behind the call (the sweep)."""
    scopes: frozenset[Scope]
    visible: Visible
    access: Access

    @property
    def view(self) -> View:
        """What this caller may see of a session that it may read."""
        return View(
            security_read="security.read" in self.scopes,
            grant_manage="grant.manage" in self.scopes,
            message_send="session.message.send" in self.scopes,
        )


def system(cause: str, principal_id: str | None = None) -> Caller:
    """Return the server itself as the caller; `principal_id` is the stored principal it acts for, if any."""
    return Caller(principal_id=principal_id, scopes=frozenset(), visible=EVERYTHING, access=System(cause))
