"""A client of a site, and its hold on a session: what the scenarios are written in.

Owns: short forms of the typed client's calls, bounded waits for events, a projection of what came. Does not own: the client
(`ochat_client`), or how it reaches a server (`sites`).
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw

from ochat_client import AttachedSession, Client, Projection, ProtocolError, differences, methods, new_key
from ochat_client.calls import W
from ochat_client.methods import Method, R
from ochat_site.dialects.ochat1.types import (
    AttachReplayEvents,
    AttachReplaySnapshot,
    MutationResult,
    PermissionRespondResult,
    SendMessageResult,
    SessionAttachParams,
    SessionCreateParams,
    SessionGetParams,
    SessionMutationResult,
)
from sessions_app.events import DurableEvent, LiveEvent
from sessions_app.records import (
    AttachmentMode,
    HistoryEntry,
    HistoryWindowRequest,
    Liveness,
    LivenessDetached,
    MessageContentKind,
    Permission,
    PermissionChoice,
    PromptRefCatalog,
    SessionSpec,
    Snapshot,
    StopMode,
    WorkspaceRequestConfigured,
)
from tests.conformance import fixture
from tests.conformance.checked import TERMINAL_KINDS, Checked

T = TypeVar("T")

PAUSE_SECONDS = 0.02
WAIT_SECONDS = 30.0
"""The bound on every wait: far above what a loaded machine needs, so that reaching it is a failure."""


def spec(
    prompt: str = fixture.SMOKE,
    *,
    start: bool = False,
    liveness: Liveness | None = None,
    labels: Mapping[str, str] | None = None,
    workspace: str = fixture.PHYSICAL,
    **other: Any,
) -> SessionSpec:
    """Return a session as the fixture makes them: detached, durable, not started, unless said otherwise."""
    return SessionSpec(
        **{
            "execution_host": "daemon",
            "prompt": PromptRefCatalog(prompt_id=fixture.prompt(prompt)),
            "workspace": WorkspaceRequestConfigured(workspace_id=fixture.workspace(workspace)),
            "liveness": liveness or LivenessDetached(),
            "persistence": "durable",
            "start_immediately": start,
            "labels": dict(labels or {}),
            **other,
        }
    )


async def answered(question: Callable[[], Awaitable[T]], what: str, seconds: float = WAIT_SECONDS) -> T:
    """Ask until the answer is true and return it; fail with `what` when that takes too long."""
    deadline = time.monotonic() + seconds
    while not (answer := await question()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        await asyncio.sleep(PAUSE_SECONDS)
    return answer


async def refusal(call: Awaitable[object]) -> ProtocolError:
    """Return the error that a call is refused with."""
    try:
        answer = await call
    except ProtocolError as refused:
        return refused
    raise AssertionError(f"the call was not refused: {answer}")


async def code(call: Awaitable[object]) -> str:
    """Return the code that a call is refused with."""
    return (await refusal(call)).code


class Peer:
    """One connection to a site."""

    def __init__(self, client: Client, wire: Checked) -> None:
        self.client = client
        self.wire = wire
        self.holds: list[Hold] = []

    async def close(self) -> None:
        """End the connection."""
        await self.client.close()

    async def call(self, method: str, **params: Any) -> Any:
        """Call a method with params as they are; return its result as plain JSON."""
        return msgspec.json.decode(await self.client.request(method, params))

    async def create(
        self,
        prompt: str = fixture.SMOKE,
        *,
        mode: AttachmentMode = "read_write",
        key: str | None = None,
        **options: Any,
    ) -> Hold:
        """Create a session and attach to it."""
        made = await self.client.create_session(spec(prompt, **options), key=key)
        return await self.attach(made.session.id, mode)

    async def create_attached(self, mode: AttachmentMode, **options: Any) -> Any:
        """Create a session and attach in one call; the result as plain JSON."""
        params = SessionCreateParams(
            spec=spec(**options), requested_mode=mode, subscribe=True, idempotency_key=new_key()
        )
        return msgspec.json.decode(await self.client.request("session.create", params))

    async def attach(
        self,
        session_id: str,
        mode: AttachmentMode = "read_write",
        *,
        after: int | None = None,
        token: str | None = None,
    ) -> Hold:
        """Attach to a session."""
        attached = await self.client.attach(session_id, mode, after_sequence=after, reclaim_token=token)
        return Hold(self, attached)

    def attach_params(self, session_id: str, mode: AttachmentMode = "read_write") -> SessionAttachParams:
        """Return the params of an attach, to be called more than once."""
        return SessionAttachParams(
            session_id=session_id, requested_mode=mode, subscribe=True, idempotency_key=new_key()
        )

    async def get(self, session_id: str, window: HistoryWindowRequest | None = None) -> Snapshot:
        """Return a snapshot, with a window of the history if one is asked for."""
        params = SessionGetParams(session_id=session_id, history=UNSET if window is None else window)
        return await self.client.call(methods.SESSION_GET, params)


class Hold:
    """An attachment of a peer: what it has been told, and what that makes of the session."""

    def __init__(self, peer: Peer, attached: AttachedSession) -> None:
        self.peer = peer
        self.attached = attached
        self.session_id = attached.session_id
        self.attachment_id = attached.attachment_id
        self.events: list[DurableEvent] = []
        """The durable events of the replay and those that came since."""
        self.lives: list[LiveEvent] = []
        self.projection: Projection | None = None
        """There when the attach was answered by a snapshot."""
        self._left = False
        match attached.result.replay:
            case AttachReplaySnapshot(snapshot=snapshot):
                self.projection = Projection(snapshot)
            case AttachReplayEvents(events=events):
                self.events.extend(events)
        peer.holds.append(self)

    @property
    def sequence(self) -> int:
        """The last sequence it has been told."""
        if self.events:
            return self.events[-1].sequence
        return self.attached.result.latest_event_sequence

    @property
    def view(self) -> Projection:
        """The session as far as it was read."""
        assert self.projection is not None, "this attach was answered by events"
        return self.projection

    @property
    def kinds(self) -> list[str]:
        """The kinds of the durable events so far."""
        return [event.kind for event in self.events]

    async def next(self) -> DurableEvent | LiveEvent:
        """Return the next notification."""
        async with asyncio.timeout(WAIT_SECONDS):
            news = await anext(self.attached.notifications)
        if isinstance(news, DurableEvent):
            self.events.append(news)
            if self.projection is not None:
                self.projection.apply(news)
        else:
            self.lives.append(news)
            if self.projection is not None:
                self.projection.apply_live(news)
        return news

    async def until(self, condition: Callable[[], object]) -> None:
        """Read notifications until a condition is true; it may be true at once."""
        while not condition():
            await self.next()

    async def until_kind(self, kind: str) -> DurableEvent:
        """Read until the next event of a kind, and return it."""
        while True:
            news = await self.next()
            if isinstance(news, DurableEvent) and news.kind == kind:
                return news

    async def until_ended(self) -> DurableEvent:
        """Read until the running operation has ended and the session shows it; return the terminal event."""
        ended: DurableEvent | None = None
        while True:
            news = await self.next()
            if isinstance(news, LiveEvent):
                continue
            if news.kind in TERMINAL_KINDS:
                ended = news
            elif ended is not None and news.kind == "session.state_changed":
                return ended

    async def until_text(self, text: str) -> None:
        """Read until so much has been streamed of a reply."""
        await self.until(lambda: text in self.streamed())

    async def until_asked(self) -> Permission:
        """Read until a request for permission is open, and return it."""
        await self.until(lambda: self.view.pending_permissions)
        return self.view.pending_permissions[0]

    def streamed(self) -> str:
        """Return the text of all deltas that came."""
        return "".join(delta(live) for live in self.lives)

    async def say(
        self, text: str = "hello", kind: MessageContentKind = "plain_text", key: str | None = None
    ) -> SendMessageResult:
        """Send a message."""
        if key is None:
            return await self.attached.send_message(text, kind=kind)
        return await self.mutate(methods.SESSION_SEND_MESSAGE, text=text, idempotency_key=key)

    async def start(self, **options: Any) -> SessionMutationResult:
        """Start the session."""
        options = {"queue_if_limited": True, **options}
        return await self.mutate(methods.SESSION_START, **options)

    async def stop(self, mode: StopMode = "graceful", **options: Any) -> SessionMutationResult:
        """Stop the session."""
        return await self.mutate(methods.SESSION_STOP, mode=mode, **options)

    async def detach(self) -> MutationResult:
        """Give the attachment up."""
        self._left = True
        return await self.attached.detach()

    def leave(self) -> None:
        """Expect nothing of this attachment any more: its session is about to go."""
        self._left = True

    async def check_law(self) -> None:
        """Check the replay law over the wire: what was told makes of the first snapshot what a snapshot says now."""
        if self.projection is None or self._left or self.peer.client.is_closed:
            return
        now = await self.snapshot()
        operation = now.session.active_operation
        if operation is not UNSET and operation.state.__struct_config__.tag == "cancelling":
            # A stop that cancels tells the state of the session only; the end of the operation follows (behaviour 6.6).
            await self.until(lambda: self.view.session.active_operation is UNSET)
            now = await self.snapshot()
        while self.projection.sequence < now.latest_event_sequence:
            await self.next()
            if self.projection.sequence > now.latest_event_sequence:
                now = await self.snapshot()
        found = differences(self.projection.snapshot(), now)
        assert not found, "; ".join(found)

    async def cancel(self, operation_id: str) -> SessionMutationResult:
        """Cancel an operation."""
        return await self.attached.cancel_operation(operation_id)

    async def answer(
        self, permission: Permission, choice: PermissionChoice, reason: str | None = None
    ) -> PermissionRespondResult:
        """Answer a request for permission."""
        return await self.attached.respond(permission, choice, reason=reason)

    async def mutate(self, method: Method[W, R], **members: Any) -> R:
        """Make a mutation through the attachment."""
        return await self.attached.mutate(method, **members)

    async def raw(self, method: str, **members: Any) -> Any:
        """Call a method through the attachment with members that need not be right."""
        named = {"session_id": self.session_id, "attachment_id": self.attachment_id}
        return await self.peer.call(method, **{**named, "idempotency_key": new_key(), **members})

    def params(self, method: Method[W, R], **members: Any) -> W:
        """Return the params of a mutation, to be called more than once."""
        return self.attached.params_of(method, **members)

    async def snapshot(self) -> Snapshot:
        """Return the session as this peer may see it now."""
        return await self.peer.get(self.session_id)

    async def counters(self) -> tuple[int, int]:
        """Return revision and newest sequence as they are now."""
        now = await self.snapshot()
        return now.revision, now.latest_event_sequence


class _Item(msgspec.Struct):
    type: str = ""
    role: str = ""
    status: str = ""
    call_id: str = ""
    content: Any = ""
    output: Any = ""


class _Delta(msgspec.Struct):
    type: str = ""
    delta: str = ""


class _Streamed(msgspec.Struct):
    event: Raw = Raw(b"{}")


def delta(live: LiveEvent) -> str:
    """Return the text that a live event adds to an answer."""
    if live.kind != "sourced.stream":
        return ""
    event = msgspec.json.decode(msgspec.json.decode(live.payload, type=_Streamed).event, type=_Delta)
    return event.delta if event.type == "response.output_text.delta" else ""


def shown(entry: HistoryEntry) -> str:
    """Return an entry in a few words: `user: hello`, `call c1`, `output c1: text`; `…` marks an incomplete one."""
    if entry.redacted:
        return f"[{entry.kind}]"
    item = msgspec.json.decode(entry.payload, type=_Item)
    match item.type:
        case "message":
            text = item.content if isinstance(item.content, str) else "+".join(_text(p) for p in item.content)
            return f"{item.role}: {text}{'…' if item.status == 'incomplete' else ''}"
        case "function_call" | "custom_tool_call":
            return f"call {item.call_id}"
        case "function_call_output" | "custom_tool_call_output":
            return f"output {item.call_id}: {item.output}"
        case other:
            return other


def history(snapshot: Snapshot | Sequence[HistoryEntry]) -> list[str]:
    """Return a canonical history, each entry as `shown`."""
    entries = snapshot.canonical_history.entries if isinstance(snapshot, Snapshot) else snapshot
    return [shown(entry) for entry in entries]


def told(events: Sequence[DurableEvent]) -> list[list[str]]:
    """Return events in a few words, those of one transaction together."""
    return [
        [_told(event) for event in group]
        for _, group in itertools.groupby(events, key=lambda event: event.revision)
    ]


def _told(event: DurableEvent) -> str:
    payload = msgspec.json.decode(event.payload)
    if event.kind == "session.state_changed":
        return f"state({payload['desired_state']},{payload['observed_state']['type']})"
    if event.kind == "session.updated":
        active = payload.get("active_operation")
        return f"updated({active['state']['type'] if active else ''})"
    return event.kind


def _text(part: Any) -> str:
    return str(part.get("text", part.get("image_url", "")))
