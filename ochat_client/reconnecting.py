"""One session that outlives its connections.

Owns: connecting again with back-off, attaching again behind the last durable event, starting over when that is not
possible, and what becomes of a mutation whose answer did not come. Does not own: one connection (`client`) and what
events mean (`projection`).

**Attaching again.** Every attempt initializes, then attaches with a new key and `after_sequence` of the last event
applied. The server answers with events or with a snapshot; either is applied before any notification. No cursor is given
to a server with another id, and an answer that lies before the cursor, or leaves a gap behind it, is a log from
another life: then a snapshot replaces everything. Whatever goes wrong on a connection, lost notifications and gaps too, it
is dropped and the next one repairs it; there is no second way.

**Uncertain mutations.** When a connection ends before the answer, the mutation may have been committed or not. A new
attachment makes other params, so the key alone would be a conflict (behaviour 11.2). The identical request is sent again,
the old attachment included: receipts are looked up before attachments are checked, so the server either repeats the stored
outcome, success or refusal, or refuses with `permission_denied`, because the attachment is gone, and stores that. Such a
refusal proves that the first request took no effect and, its key now being spent, never will: only then is the mutation
made anew, with a new key and the new attachment. So nothing is ever done twice, and nothing is lost but what answers
`interrupted`: work that left its transaction and whose process died. That is raised, for a person to decide.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

from msgspec import UNSET

from ochat_client.calls import SessionCalls, W, new_key
from ochat_client.client import AttachedSession, Client
from ochat_client.errors import (
    ClientError,
    ConnectionLost,
    ConnectionRefused,
    Lagged,
    ProtocolError,
    ProtocolViolation,
    SequenceGap,
)
from ochat_client.methods import Method, P, R
from ochat_client.projection import Durable, Live, Projection
from ochat_site.dialects.ochat1.types import AttachReplayEvents, AttachReplaySnapshot, MutationResult
from sessions_app.events import DurableEvent, LiveEvent
from sessions_app.records import AttachmentMode, SessionId, Snapshot

Dial = Callable[[], Awaitable[Client]]
"""Connects and initializes; see `Client.connect`."""


@dataclass(frozen=True)
class Backoff:
    """How long to wait between attempts, in seconds: first not at all, then doubling, each up to a quarter longer or shorter."""

    first: float = 0.25
    limit: float = 10.0

    def delays(self) -> Iterator[float]:
        """Return the pauses before the attempts, without end."""
        yield 0.0
        delay = self.first
        while True:
            yield delay * random.uniform(0.75, 1.25)  # noqa: S311 - keeps clients of one server apart, hides nothing
            delay = min(2 * delay, self.limit)


class Replaced(NamedTuple):
    """The projection was replaced by a snapshot."""

    snapshot: Snapshot


class Lost(NamedTuple):
    """The connection is gone; another one is about to be made."""

    error: ClientError


class Restored(NamedTuple):
    """There is a connection again; what was missed comes next, as events or as one snapshot."""

    missed: int
    """How many events it lies behind, 0 when nothing was missed."""


Update = Durable | Live | Replaced | Lost | Restored


class _Link:
    """An attachment, with what its answer holds and has not been applied yet."""

    def __init__(self, attached: AttachedSession) -> None:
        self.attached = attached
        self.client = attached.client
        self._replay: deque[DurableEvent | Snapshot] = deque()
        match attached.result.replay:
            case AttachReplayEvents(events=events):
                self._replay.extend(events)
            case AttachReplaySnapshot(snapshot=snapshot):
                self._replay.append(snapshot)

    @property
    def snapshot(self) -> Snapshot | None:
        first = self._replay[0] if self._replay else None
        return first if isinstance(first, Snapshot) else None

    async def next(self) -> DurableEvent | LiveEvent | Snapshot:
        return self._replay.popleft() if self._replay else await anext(self.attached.notifications)


class ReconnectingSession(SessionCalls):
    """A session with its projection, followed by one reader; calls may come from any task.

    Iterate over it to keep `projection` up to date: each step applies one thing and returns it. What is not iterated over is
    not applied, and memory stays bounded (`Subscription`). Steps and calls wait while there is no connection, and raise
    what makes trying again pointless: ConnectionRefused (`final`) and ProtocolError that is not retryable.
    """

    def __init__(self, dial: Dial, link: AttachedSession, *, backoff: Backoff) -> None:
        """Hold a first attachment; made by `open`."""
        self.session_id: SessionId = link.session_id
        self._dial = dial
        self._backoff = backoff
        self.mode: AttachmentMode = link.result.attachment.mode
        self._reclaim_token = link.result.reclaim_token
        self._server_id = link.client.server.server_id
        self._link = _Link(link)
        self._reading: _Link | None = self._link
        self._linking = asyncio.Lock()
        self._may_resume = True
        """Whether the log is known to go on behind the projection."""
        self._delays = backoff.delays()
        """The pauses still to come; they begin anew whenever a connection has been of use."""
        self._closed = False
        snapshot = self._link.snapshot
        if snapshot is None:
            raise ProtocolViolation("the first attach to a session is answered by a snapshot")
        self.projection = Projection(snapshot)
        """The session as far as it was iterated."""

    @classmethod
    async def open(
        cls,
        dial: Dial,
        session_id: SessionId,
        *,
        mode: AttachmentMode = "read_write",
        backoff: Backoff = Backoff(),
    ) -> ReconnectingSession:
        """Connect and attach, once: whoever opens a session wants to hear at once why it cannot be done.

        Raises what `Client.connect` and `Client.attach` raise.
        """
        client = await dial()
        try:
            return cls(dial, await client.attach(session_id, mode), backoff=backoff)
        except BaseException:
            await client.close()
            raise

    async def __aenter__(self) -> ReconnectingSession:
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the session."""
        await self.close()

    async def close(self) -> None:
        """Leave the session, which detaches; the iteration ends."""
        self._closed = True
        await self._link.client.close()

    def __aiter__(self) -> ReconnectingSession:
        """Return itself."""
        return self

    async def __anext__(self) -> Update:
        """Apply the next thing that is new to `projection` and return it."""
        while not self._closed:
            link = self._reading
            if link is None:
                link = self._reading = await self._linked()
                return Restored(max(0, link.attached.result.latest_event_sequence - self.projection.sequence))
            try:
                update = self._apply(await link.next())
            except (ConnectionLost, Lagged, SequenceGap, ProtocolViolation) as error:
                self._may_resume = self._may_resume and not isinstance(error, SequenceGap | ProtocolViolation)
                self._reading = None
                await link.client.close()
                if not self._closed:
                    return Lost(error)
            else:
                if update is not None:
                    return update
        raise StopAsyncIteration

    async def call(self, method: Method[P, R], params: P) -> R:
        """Call a method that reads, as often as it takes; for methods that name no attachment."""
        while True:
            link = await self._linked()
            try:
                return await link.client.call(method, params)
            except (ConnectionLost, ProtocolViolation):
                if not link.client.is_closed:
                    raise

    async def mutate(self, method: Method[W, R], /, **members: Any) -> R:
        """Make a mutation once, whatever happens to connections meanwhile; see the head of this module.

        Raises ProtocolError with the refusal of the server, `interrupted` included.
        """
        link = await self._linked()
        params = link.attached.params_of(method, **members)
        while True:
            try:
                result = await link.client.call(method, params)
            except (ConnectionLost, ProtocolViolation):
                if not link.client.is_closed:
                    raise
            except ProtocolError as refusal:
                if refusal.code == "server_shutting_down":
                    await (
                        link.client.close()
                    )  # Nothing was done or stored; another process, or the next, will do it.
                elif (
                    refusal.code == "permission_denied"
                    and params.attachment_id != link.attached.attachment_id
                ):
                    params = link.attached.params_of(method, **{**members, "idempotency_key": new_key()})
                    continue
                else:
                    raise
            else:
                self._delays = self._backoff.delays()
                if isinstance(result, MutationResult):
                    self.projection.note_revision(result.revision)
                return result
            link = await self._linked()

    def _apply(self, news: DurableEvent | LiveEvent | Snapshot) -> Update | None:
        if isinstance(news, Snapshot):
            self.projection.replace(news)
            self._may_resume = True
            return Replaced(news)
        self._delays = self._backoff.delays()
        return (
            self.projection.apply(news)
            if isinstance(news, DurableEvent)
            else self.projection.apply_live(news)
        )

    async def _linked(self) -> _Link:
        """Return an attachment whose connection is there; make one if need be, for all who wait."""
        async with self._linking:
            while self._link.client.is_closed:
                if self._closed:
                    raise ConnectionLost("the session was left")
                await asyncio.sleep(next(self._delays))
                try:
                    client = await self._dial()
                    try:
                        self._link = await self._attach(client)
                    except BaseException:
                        await client.close()
                        raise
                except ConnectionRefused as refusal:
                    if refusal.final:
                        raise
                except ProtocolError as refusal:
                    if not refusal.retryable:
                        raise
                except ConnectionLost:
                    pass  # The next attempt comes after a longer pause.
            return self._link

    async def _attach(self, client: Client) -> _Link:
        after = self.projection.sequence
        if self._may_resume and client.server.server_id == self._server_id:
            attached = await self._attached(client, after)
            if attached.result.latest_event_sequence >= after:
                return _Link(attached)
            await attached.detach()
        self._server_id = client.server.server_id
        return _Link(await self._attached(client, None))

    async def _attached(self, client: Client, after: int | None) -> AttachedSession:
        token = None if self._reclaim_token is UNSET else self._reclaim_token
        attached = await client.attach(self.session_id, self.mode, after_sequence=after, reclaim_token=token)
        self._reclaim_token = attached.result.reclaim_token
        return attached
