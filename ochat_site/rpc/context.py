"""What one call is made of: its row of the method table, who asks, and what its handler is given (behaviour 1.1).

Owns: the types between the dispatcher, the method table and the handlers of the dialects. Does not own: the table
(`methods`), the order of the checks (`dispatch`), connections (`connection`), or any handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

from sessions_app import store
from sessions_app.db import read_snapshot

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import HealthResult
    from permissions_app.audit_batch import AuditBatch
    from permissions_app.principals import Identity
    from sessions_app.callers import Caller
    from sessions_app.receipts import Call
    from sessions_app.records import AttachmentMode, Scope
    from sessions_app.views import View

Runs = Literal["loop", "thread", "snapshot", "command"]
"""Where a handler runs: in the event loop, touching nothing that waits; in a database thread; there, inside one
read-only transaction; there, as a command, which opens its own transactions and leaves its own audit record.
"""

Idempotency = Literal["none", "standard", "protected"]
AttachmentRule = Literal["none", "any", "writable"]


class Client(Protocol):
    """One client's connection as handlers see it. Confined to the event loop: change it by `Context.afterwards`."""

    initialized: bool
    max_event_bytes: int | None

    @property
    def connection_id(self) -> str:
        """The id of its row."""
        ...

    @property
    def transport(self) -> str:
        """What carries it: `websocket`, `http`."""
        ...

    @property
    def logical(self) -> bool:
        """Whether it is a row that any process serves, and holds nothing in this one (behaviour 1.4)."""
        ...

    @property
    def identity(self) -> Identity:
        """Who is connected, with the scopes of now."""
        ...

    def open_attachment(
        self, attachment_id: str, session_id: str, mode: AttachmentMode, *, view: View, after: int
    ) -> None:
        """Subscribe an attachment behind a sequence; nothing is sent before the answer of this call."""
        ...

    def close_attachment(self, attachment_id: str) -> None:
        """End the subscription of an attachment, if it is open here."""
        ...


@dataclass(slots=True, kw_only=True)
class Server:
    """This process as the methods about the server show it; made once, by the wiring."""

    id: str
    version: str
    transports: Sequence[str]
    """`unix_socket`, `http`, `websocket`: those that are enabled."""
    health: Callable[[Server], HealthResult]
    """Looks at every component of this process and its store; called in a database thread."""
    ready: bool = True
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a handler is given beside the params."""

    server: Server
    client: Client
    identity: Identity
    call: Call
    audit: AuditBatch
    """What this process has yet to write to the audit log."""
    effects: list[Callable[[], None]] = field(default_factory=list)

    @property
    def caller(self) -> Caller:
        """Who asks, and by which rule."""
        return self.call.caller

    @property
    def view(self) -> View:
        """What of a session the caller may see."""
        return self.call.caller.view

    def afterwards(self, effect: Callable[[], None]) -> None:
        """Run `effect` in the event loop once the handler has succeeded, before its answer leaves."""
        self.effects.append(effect)


@contextmanager
def reading() -> Iterator[None]:
    """Read the store as it is at one moment, in the block. Raises what a store that fails raises (`store.errors`)."""
    with store.errors(), read_snapshot():
        yield


Handler = Callable[[Context, Any], Struct]
"""Takes the context and the decoded params, returns the result, refuses with a Refusal."""


def no_scopes(_params: Any) -> Sequence[Scope]:
    """Ask for nothing, whatever the params."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One row of the method table: everything the dispatcher has to know of a method."""

    name: str
    params: type[Struct]
    result: Any
    """A struct type; Any, because a page is a generic alias and no class."""
    handler: Handler
    runs: Runs
    scope: Scope | None = None
    more_scopes: Callable[[Any], Sequence[Scope]] = no_scopes
    """What certain params ask for on top."""
    idempotency: Idempotency = "none"
    attachment: AttachmentRule = "none"
    new_work: bool = False
    """Refused while the process drains."""
    opens: bool = False
    """Answered on a connection that is not initialized."""

    def scopes(self, params: Any) -> Sequence[Scope]:
        """Return what a call with these params asks for, in the order in which a missing scope is told."""
        more = self.more_scopes(params)
        return more if self.scope is None else (self.scope, *more)
