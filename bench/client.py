"""What clients do, timed: make a session, attach, send a message and hear the reply.

Owns: the calls and what is stamped in them. Does not own: frames (`wire`), how often and in which order (`measures`).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bench.wire import BenchError, Peer
from ochat_client import methods
from ochat_site.dialects.ochat1.types import (
    PromptListParams,
    SessionAttachParams,
    SessionCreateParams,
    SessionGetParams,
    SessionSendMessageParams,
    WorkspaceListParams,
)
from sessions_app.records import (
    HistoryWindowRequestTail,
    LivenessDetached,
    PromptRefCatalog,
    SessionSpec,
    WorkspaceRequestConfigured,
)

TURN_SECONDS = 30.0

DELTA = b"response.output_text.delta"
COMPLETED = b'"kind":"operation.completed"'
ENDS = (COMPLETED, b'"kind":"operation.failed"', b'"kind":"operation.interrupted"')


@dataclass(frozen=True, slots=True)
class Turn:
    """The times of one turn, in seconds since the message was sent."""

    answered: float
    """Until the answer to `session.send_message`: the message is durable."""
    first_delta: float | None
    """None when nothing of it was streamed: live events may be dropped (behaviour 8.5)."""
    completed: float
    deltas: int


class Session:
    """One session, attached through one client."""

    def __init__(self, peer: Peer, session_id: str, attachment_id: str, latest: int) -> None:
        """Take a session that is attached with a subscription behind sequence `latest`."""
        self.peer = peer
        self.id = session_id
        self.attachment_id = attachment_id
        self.latest = latest

    async def turn(self) -> Turn:
        """Send a message and wait for the end of its turn. Raises BenchError for any other end than a completed one."""
        told = self.peer.told
        told.clear()
        params = SessionSendMessageParams(
            session_id=self.id, attachment_id=self.attachment_id, idempotency_key=_key(), text="hello"
        )
        ended = self.peer.watch(*ENDS)
        sent = time.perf_counter()
        await self.peer.call(methods.SESSION_SEND_MESSAGE, params)
        answered = time.perf_counter()
        async with asyncio.timeout(TURN_SECONDS):
            last = await ended
        if COMPLETED not in last.frame:
            raise BenchError(f"a turn did not complete: {last.frame.decode()}")
        deltas = [one.at for one in told if DELTA in one.frame]
        return Turn(answered - sent, deltas[0] - sent if deltas else None, last.at - sent, len(deltas))


class Desk:
    """Makes sessions and attaches to them, as the operator's client on one installation."""

    def __init__(self, port: int, token: str) -> None:
        """Speak to the server on `port`."""
        self._port = port
        self._token = token
        self._spec: SessionSpec | None = None

    async def connect(self) -> Peer:
        """Return a new, initialized client."""
        return await Peer.connect(self._port, self._token)

    async def create(self, peer: Peer) -> Session:
        """Make a session and attach to it in the same call."""
        params = SessionCreateParams(
            spec=await self._ready_spec(peer),
            requested_mode="read_write",
            subscribe=True,
            idempotency_key=_key(),
        )
        made = await peer.call(methods.SESSION_CREATE, params)
        assert made.attachment is not msgspec.UNSET
        return Session(
            peer, made.session.id, made.attachment.attachment.id, made.attachment.latest_event_sequence
        )

    async def attach(self, peer: Peer, session_id: str) -> Session:
        """Attach to a session, with a snapshot."""
        made = await peer.call(methods.SESSION_ATTACH, _attach(session_id))
        return Session(peer, session_id, made.attachment.id, made.latest_event_sequence)

    async def timed_create(self, peer: Peer) -> float:
        """Return the seconds until a new session is durable and attached."""
        await self._ready_spec(peer)
        begun = time.perf_counter()
        await self.create(peer)
        return time.perf_counter() - begun

    async def timed_attach(self, peer: Peer, session_id: str, after: int | None = None) -> tuple[float, int]:
        """Return the seconds of an attach and the bytes of its answer: a snapshot, or the events behind `after`."""
        params = _attach(session_id, after)
        begun = time.perf_counter()
        answer = await peer.ask("session.attach", params)
        return time.perf_counter() - begun, len(bytes(answer))

    async def timed_tail(self, peer: Peer, session_id: str, count: int) -> float:
        """Return the seconds of a `session.get` with the newest `count` entries."""
        window = HistoryWindowRequestTail(tail_count=count, limit=count, effective=False)
        params = SessionGetParams(session_id=session_id, history=window)
        begun = time.perf_counter()
        await peer.ask("session.get", params)
        return time.perf_counter() - begun

    async def _ready_spec(self, peer: Peer) -> SessionSpec:
        if self._spec is None:
            prompts = await peer.call(methods.PROMPT_LIST, PromptListParams(limit=1))
            workspaces = await peer.call(methods.WORKSPACE_LIST, WorkspaceListParams(limit=1))
            self._spec = SessionSpec(
                execution_host="daemon",
                prompt=PromptRefCatalog(prompt_id=prompts.items[0].id),
                workspace=WorkspaceRequestConfigured(workspace_id=workspaces.items[0].id),
                liveness=LivenessDetached(),
                persistence="durable",
                start_immediately=True,
                labels={},
            )
        return self._spec


def _attach(session_id: str, after: int | None = None) -> SessionAttachParams:
    return SessionAttachParams(
        session_id=session_id,
        requested_mode="read_write",
        subscribe=True,
        after_sequence=msgspec.UNSET if after is None else after,
        idempotency_key=_key(),
    )


def _key() -> str:
    return secrets.token_urlsafe(18)


async def close_all(peers: Sequence[Peer]) -> None:
    """Close many clients."""
    await asyncio.gather(*(peer.close() for peer in peers))
