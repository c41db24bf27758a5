"""A session as a client knows it: a snapshot, and what events have made of it since.

Owns: the seven rules of the protocol's "Client synchronization": what is applied, in which order, and what is only
repaired by a snapshot. Does not own: getting snapshots and events (`client`, `reconnecting`), and whether two
projections say the same (`law`). Pure: no clock, no network.

Durable events are the truth and must be contiguous. Live events only decorate it: one that is late, early or lost costs
nothing but the look of a moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ochat_client.errors import ProtocolViolation, SequenceGap
from ochat_client.streams import Stream, said
from ochat_client.wire import decode
from sessions_app.encoding import encode
from sessions_app.events import (
    DurableEvent,
    DurablePayload,
    EventKind,
    LifecycleChange,
    LiveEvent,
    LivePayload,
    ModeratorOverlayPayload,
    PromptUpgrade,
    SessionUpdatedPayload,
    SourcedStreamPayload,
    ToolFinishedPayload,
    ToolStartedPayload,
    read_live_payload,
    read_payload,
)
from sessions_app.records import (
    Attachment,
    Grant,
    HistoryEntry,
    HistoryWindow,
    Job,
    ObservedFailed,
    Operation,
    OperationCancelled,
    OperationCompleted,
    OperationFailed,
    OperationInterrupted,
    Permission,
    Schedule,
    Session,
    Snapshot,
)

T = TypeVar("T", Permission, Grant, Job, Schedule)


class Durable(NamedTuple):
    """A durable event that was applied; no payload when it is hidden from this reader, or says that there is no owner."""

    event: DurableEvent
    payload: DurablePayload | None


class Live(NamedTuple):
    """A live event that was applied."""

    event: LiveEvent
    payload: LivePayload


class ActiveCall(NamedTuple):
    """A tool at work, and the event that said so."""

    event: LiveEvent
    payload: ToolStartedPayload


class _CallHead(Struct, frozen=True):
    call_id: str = ""


_ENDED = (OperationCompleted, OperationFailed, OperationCancelled, OperationInterrupted)

_read_call_head = msgspec.json.Decoder(_CallHead).decode


class Projection:
    """Everything this reader may see of a session, kept up to date by `apply`, `apply_live` and `replace`.

    The attributes are for reading; `snapshot` gives all of it as one value. Lists of records are in the order in which they
    became known, the oldest first.
    """

    session: Session
    sequence: int
    """The last durable event applied: what to give as `after_sequence`. No live event moves it (rule 5)."""
    revision: int
    """The newest revision heard of. For `expected_revision`: it counts changes that have no event (behaviour 0.3)."""
    owner: Attachment | UnsetType | None
    """Who holds the owner lease; unset until an event says, because snapshots do not."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Begin with what a snapshot says."""
        self.owner = UNSET
        self.replace(snapshot)

    def replace(self, snapshot: Snapshot) -> None:
        """Forget everything and begin again with a snapshot, calls and streams included (rule 6)."""
        self.session = snapshot.session
        self.history = View(snapshot.canonical_history)
        self.effective = _view(snapshot.effective_history)
        self.archived_revisions = snapshot.archived_revisions
        self.deferred = {entry.id: entry for entry in snapshot.deferred_entries}
        self.permissions = _by_id(snapshot.permissions)
        self.grants = _by_id(snapshot.grants)
        self.jobs = _by_id(snapshot.jobs)
        self.schedules = _by_id(snapshot.schedules)
        self.active_calls = {
            call.payload.call_id: call for call in map(_active_call, snapshot.active_tool_calls)
        }
        self.streams: dict[str, Stream] = {}
        self.halted = snapshot.halted
        self.halt_reason = snapshot.halt_reason
        self.failure = snapshot.failure
        self.sequence = snapshot.latest_event_sequence
        self.revision = snapshot.revision
        self._live_position: tuple[str, int] = ("", 0)

    @property
    def pending_permissions(self) -> list[Permission]:
        """The requests that wait for an answer, the oldest first."""
        return [permission for permission in self.permissions.values() if permission.state == "pending"]

    def note_revision(self, revision: int) -> None:
        """Take the revision of a mutation's result, which may have no event."""
        self.revision = max(self.revision, revision)
        self._set(revision=self.revision)

    def apply(self, event: DurableEvent) -> Durable | None:
        """Apply the next durable event and return it with its payload, or None for one that was applied before.

        Raises SequenceGap when events are missing before it, and ProtocolViolation when it is not of this session or its
        payload cannot be read; nothing is changed then.
        """
        if event.session_id != self.session.id:
            raise ProtocolViolation("an event of another session")
        if event.sequence <= self.sequence:
            return None
        if event.sequence != self.sequence + 1:
            raise SequenceGap(self.sequence + 1, event.sequence)
        payload = None if event.visibility == "hidden" else _payload(event)
        if event.visibility != "hidden":
            _APPLY[event.kind](self, payload)
        self.sequence = event.sequence
        self.revision = max(self.revision, event.revision)
        # A summary in a payload may hold the counters from before its transaction (wire 9).
        self._set(revision=self.revision, latest_event_sequence=self.sequence)
        return Durable(event, payload)

    def apply_live(self, event: LiveEvent) -> Live | None:
        """Apply a live event and return it with its payload, or None when its moment is over or has not come.

        That is: it belongs to no running operation, its anchor is not applied yet, or a later one came before.
        """
        active = self.session.active_operation
        operation_id, position = self._live_position
        if (
            active is UNSET
            or active.id != event.operation_id
            or event.anchor_sequence > self.sequence
            or (operation_id == event.operation_id and event.operation_sequence <= position)
        ):
            return None
        try:
            payload = read_live_payload(event)
        except ValueError as error:
            raise ProtocolViolation(f"a live event of kind {event.kind} cannot be read: {error}") from None
        follows = event.operation_sequence == (position if operation_id == event.operation_id else 0) + 1
        self._live_position = event.operation_id, event.operation_sequence
        if not follows:
            for stream in self.streams.values():
                stream.has_gap = True
        match payload:
            case SourcedStreamPayload():
                self._stream(event, payload, missed=not follows)
            case ToolStartedPayload():
                self.active_calls[payload.call_id] = ActiveCall(event, payload)
            case ToolFinishedPayload():
                self._end_call(payload.call_id)
            case _:
                pass  # Shown by whoever shows it; leaves nothing behind.
        return Live(event, payload)

    def snapshot(self) -> Snapshot:
        """Return the whole as a snapshot of the server would say it, lists newest first; compare with `law`."""
        calls = tuple(Raw(encode(call.event)) for call in self.active_calls.values())
        agents = (call.payload.agent_page_kind is not None for call in self.active_calls.values())
        return Snapshot(
            session=self.session,
            canonical_history=self.history.window(),
            effective_history=UNSET if self.effective is None else self.effective.window(),
            archived_revisions=self.archived_revisions,
            deferred_entries=tuple(self.deferred.values()),
            permissions=_newest_first(self.permissions.values()),
            grants=_newest_first(self.grants.values()),
            jobs=_newest_first(self.jobs.values()),
            schedules=_newest_first(self.schedules.values()),
            active_tool_calls=calls,
            active_agent_calls=tuple(call for call, is_agent in zip(calls, agents, strict=True) if is_agent),
            halted=self.halted,
            halt_reason=self.halt_reason,
            failure=self.failure,
            revision=self.revision,
            latest_event_sequence=self.sequence,
        )

    # Durable kinds

    def _updated(self, payload: Session) -> None:
        if isinstance(payload, SessionUpdatedPayload) and payload.replacement_snapshot is not UNSET:
            self.replace(payload.replacement_snapshot)
        else:
            self.session = _summary(payload)
            self._drop_ended()

    def _state_changed(self, change: LifecycleChange) -> None:
        self._set(desired_state=change.desired_state, observed_state=change.observed_state)
        # Not by `session.error`, which also tells of a session that could not be loaded this time (behaviour 14.4).
        if isinstance(change.observed_state, ObservedFailed):
            self.failure = change.observed_state.error

    def _owner_changed(self, owner: Attachment | None) -> None:
        self.owner = owner

    def _deferred(self, entry: HistoryEntry) -> None:
        self.deferred[entry.id] = entry

    def _appended(self, entries: Sequence[HistoryEntry]) -> None:
        for view in (self.history, self.effective):
            if view is not None:
                view.entries.extend(entries)
        for entry in entries:
            self.deferred.pop(entry.id, None)
            if entry.kind == "tool_output" and self.active_calls:
                self._end_call(_call_id(entry))  # its `tool.finished` may have been dropped
        arrived = {entry.id for entry in entries}
        if any(entry.role == "assistant" for entry in entries):
            # A server that does not say which entry it streams streams one at a time.
            self._keep_streams(
                lambda stream: stream.parent_call_id is not None or stream.entry_id not in {*arrived, None}
            )

    def _replaced(self, window: HistoryWindow) -> None:
        self.history = View(window)

    def _overlay(self, overlay: ModeratorOverlayPayload) -> None:
        self.halted = overlay.halted
        self.halt_reason = overlay.halt_reason
        self.effective = _view(overlay.effective_history)

    def _operation(self, operation: Operation) -> None:
        self._set(active_operation=UNSET if isinstance(operation.state, _ENDED) else operation)
        self._drop_ended()

    def _permission(self, permission: Permission) -> None:
        self.permissions[permission.id] = permission

    def _grant(self, grant: Grant) -> None:
        self.grants[grant.id] = grant

    def _job(self, job: Job) -> None:
        self.jobs[job.id] = job

    def _schedule(self, schedule: Schedule) -> None:
        self.schedules[schedule.id] = schedule

    def _upgraded(self, upgrade: PromptUpgrade) -> None:
        self._set(prompt_revision=upgrade.current_revision)

    def _only_told(self, _: object) -> None:
        """A notice, an error, or a workspace: what no member of a snapshot shows."""

    # Inside

    def _set(self, **members: Any) -> None:
        self.session = msgspec.structs.replace(self.session, **members)

    def _drop_ended(self) -> None:
        """Drop what belonged to an operation that runs no more: no stale loading indicator stays (rule 6)."""
        active = self.session.active_operation
        running = None if active is UNSET else active.id
        self._keep_streams(lambda stream: stream.operation_id == running)
        self.active_calls = {
            call_id: call for call_id, call in self.active_calls.items() if call.event.operation_id == running
        }

    def _stream(self, event: LiveEvent, payload: SourcedStreamPayload, *, missed: bool) -> None:
        piece = said(payload.event)
        if piece is None:
            return
        key = payload.entry_id or payload.invocation_id or payload.parent_call_id or event.operation_id
        if key not in self.streams:
            stream = Stream(event.operation_id, payload.entry_id, payload.parent_call_id)
            stream.has_gap = missed
            self.streams[key] = stream
        self.streams[key].add(piece)

    def _end_call(self, call_id: str) -> None:
        self.active_calls.pop(call_id, None)
        self._keep_streams(lambda stream: stream.parent_call_id != call_id)

    def _keep_streams(self, rule: Callable[[Stream], bool]) -> None:
        self.streams = {key: stream for key, stream in self.streams.items() if rule(stream)}


class View:
    """One view of the history, growing at its end."""

    def __init__(self, window: HistoryWindow) -> None:
        """Begin with a window, whose start is where this view starts for good."""
        self._window = window
        self.entries = list(window.entries)

    @property
    def reached_start(self) -> bool:
        """Whether there is nothing older; if there is, page with `before` the first entry (behaviour 8.1)."""
        return self._window.reached_start

    def window(self) -> HistoryWindow:
        """Return it as a window."""
        return msgspec.structs.replace(self._window, entries=tuple(self.entries))


def _view(window: HistoryWindow | UnsetType) -> View | None:
    return None if window is UNSET else View(window)


def _by_id(newest_first: tuple[T, ...]) -> dict[str, T]:
    return {item.id: item for item in reversed(newest_first)}


def _newest_first(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(reversed(list(items)))


def _active_call(encoded: Raw) -> ActiveCall:
    event = decode(encoded, LiveEvent)
    return ActiveCall(event, decode(event.payload, ToolStartedPayload))


def _call_id(output: HistoryEntry) -> str:
    try:
        return _read_call_head(output.payload).call_id
    except msgspec.DecodeError:
        return ""


def _payload(event: DurableEvent) -> DurablePayload:
    try:
        return read_payload(event)
    except ValueError as error:
        raise ProtocolViolation(
            f"event {event.sequence} of kind {event.kind} cannot be read: {error}"
        ) from None


def _summary(payload: Session) -> Session:
    return Session(**{name: getattr(payload, name) for name in Session.__struct_fields__})


_APPLY: Mapping[EventKind, Callable[[Projection, Any], None]] = MappingProxyType(
    {
        "session.created": Projection._updated,
        "session.state_changed": Projection._state_changed,
        "session.updated": Projection._updated,
        "attachment.owner_changed": Projection._owner_changed,
        "history.message_deferred": Projection._deferred,
        "history.appended": Projection._appended,
        "history.replaced": Projection._replaced,
        "moderator.overlay_changed": Projection._overlay,
        "moderator.notification": Projection._only_told,
        "permission.requested": Projection._permission,
        "permission.resolved": Projection._permission,
        "grant.created": Projection._grant,
        "grant.revoked": Projection._grant,
        "operation.started": Projection._operation,
        "operation.completed": Projection._operation,
        "operation.failed": Projection._operation,
        "operation.cancelled": Projection._operation,
        "operation.interrupted": Projection._operation,
        "job.state_changed": Projection._job,
        "schedule.created": Projection._schedule,
        "schedule.state_changed": Projection._schedule,
        "schedule.cancelled": Projection._schedule,
        "prompt.upgraded": Projection._upgraded,
        "workspace.state_changed": Projection._only_told,
        "session.error": Projection._only_told,
    }
)
"""What each durable kind does, total over `EventKind`."""
