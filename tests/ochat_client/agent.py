"""A session as a server would keep it, small enough to be obviously right: what the client is compared with.

Each method is one transaction: it changes the state, appends its events to the log, and keeps the snapshot of the moment,
so that a test can ask for both sides of the replay law at any two sequences.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from sessions_app.encoding import encode
from sessions_app.events import DurableEvent, EventKind, LiveEvent, LiveEventKind
from sessions_app.records import (
    DesiredState,
    Error,
    Grant,
    HistoryEntry,
    HistoryEntryKind,
    HistoryProvenanceCanonical,
    HistoryRole,
    HistoryWindow,
    Job,
    JobDeliveryNotRequired,
    JobStatus,
    JobStatusQueued,
    LivenessDetached,
    ObservedFailed,
    ObservedIdle,
    ObservedRunningTurn,
    ObservedState,
    ObservedWaitingForPermission,
    Operation,
    OperationKindTurn,
    OperationRunning,
    OperationStarting,
    OperationState,
    Permission,
    PermissionResolution,
    PromptRefCatalog,
    RetryPolicyNever,
    Schedule,
    ScheduleStatusScheduled,
    Session,
    SessionSpec,
    Snapshot,
    WorkspaceRequestConfigured,
)

SESSION = "ses_AAAAAAAAAAAAAAAAAAAAAAAA"
OTHER_SESSION = "ses_BBBBBBBBBBBBBBBBBBBBBBBB"
PRINCIPAL = "pri_operator"
BEGAN = "2026-11-30T08:00:00.000000000Z"
NOW = "2026-11-30T09:00:00.000000000Z"
QUEUED = JobStatusQueued()


def raw(value: object) -> Raw:
    """Return a value encoded."""
    return Raw(encode(value))


def entry(
    number: int, text: str = "hello", role: HistoryRole = "user", kind: HistoryEntryKind = "message"
) -> HistoryEntry:
    """Return a history entry; calls and outputs have the call id `text`."""
    payloads: dict[tuple[str, str], dict[str, Any]] = {
        ("user", "message"): {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": text}],
        },
        ("assistant", "message"): {
            "type": "message",
            "role": "assistant",
            "id": f"msg_{number}",
            "status": "completed",
            "content": [{"type": "output_text", "annotations": [], "text": text}],
        },
        ("assistant", "tool_call"): {
            "type": "function_call",
            "name": "look",
            "arguments": "{}",
            "call_id": text,
        },
        ("tool", "tool_output"): {"type": "function_call_output", "output": "done", "call_id": text},
    }
    return HistoryEntry(
        id=f"{len(SESSION)}:{SESSION}:{number}",
        role=role,
        kind=kind,
        payload=raw(payloads[role, kind]),
        provenance=HistoryProvenanceCanonical(),
        redacted=False,
    )


def window(*entries: HistoryEntry) -> HistoryWindow:
    """Return a whole history."""
    return HistoryWindow(entries=entries, reached_start=True, reached_end=True, structurally_complete=True)


def spec(**changes: Any) -> SessionSpec:
    """Return what the session is created with."""
    members = {
        "execution_host": "daemon",
        "prompt": PromptRefCatalog(prompt_id="prd_demo"),
        "workspace": WorkspaceRequestConfigured(workspace_id="wsd_scratch"),
        "liveness": LivenessDetached(),
        "persistence": "durable",
        "start_immediately": True,
        "labels": {},
    }
    return SessionSpec(**{**members, **changes})


class Agent:
    """The session, its log and its live events."""

    def __init__(self) -> None:
        self.log: list[DurableEvent] = []
        self.snapshots: dict[int, Snapshot] = {}
        self.numbers = 0
        self.operations = 0
        self.position = 0
        self.revision = 1
        self.history = [entry(self.number(), "You help.")]
        self.deferred: list[HistoryEntry] = []
        self.effective: list[HistoryEntry] | None = None
        self.permissions: dict[str, Permission] = {}
        self.grants: dict[str, Grant] = {}
        self.jobs: dict[str, Job] = {}
        self.schedules: dict[str, Schedule] = {}
        self.halted = False
        self.halt_reason: str | UnsetType = UNSET
        self.failure: Error | UnsetType = UNSET
        self.session = Session(
            id=SESSION,
            creator=PRINCIPAL,
            created_at=BEGAN,
            updated_at=BEGAN,
            generation=0,
            spec=spec(),
            desired_state="running",
            observed_state=ObservedIdle(),
            prompt_revision="prv_1",
            revision=0,
            latest_event_sequence=0,
        )
        self._emit("session.created", self.session)
        self._commit()

    @property
    def sequence(self) -> int:
        """The newest sequence."""
        return len(self.log)

    @property
    def operation(self) -> Operation | None:
        """What runs."""
        return None if self.session.active_operation is UNSET else self.session.active_operation

    # Transactions

    def send(self, text: str) -> HistoryEntry:
        """A message that starts a turn, or waits for its end."""
        message = entry(self.number(), text)
        if self.operation is None:
            self._append(message)
            self.operations += 1
            self.position = 0
            self._operate("operation.started", OperationStarting())
            self._state(ObservedRunningTurn(operation_id=self._operation_id))
        else:
            self.deferred.append(message)
            self._emit("history.message_deferred", message)
        self._commit()
        return message

    def ready(self) -> None:
        """The worker reports; the summary holds the counters from before."""
        assert self.operation
        running = msgspec.structs.replace(self.operation, state=OperationRunning())
        self.session = msgspec.structs.replace(self.session, active_operation=running)
        self._emit("session.updated", self.session)
        self._commit()

    def append(self, *entries: HistoryEntry) -> None:
        """Finished items, or deferred messages that are taken up."""
        self._append(*entries)
        self._commit()

    def adopt(self) -> None:
        """Take up all deferred messages at a safe point."""
        entries, self.deferred = self.deferred, []
        self.append(*entries)

    def end(self, kind: EventKind, state: OperationState) -> None:
        """The operation ends."""
        self._operate(kind, state)
        self.session = msgspec.structs.replace(self.session, active_operation=UNSET)
        self._state(ObservedIdle())
        self._commit()

    def ask(self, id: str) -> None:
        """A tool call needs a person's word."""
        self.permissions[id] = Permission(
            id=id,
            session_id=SESSION,
            generation=0,
            operation_id=self._operation_id,
            call_id="call_1",
            tool_name="look",
            invocation_display="look(<redacted>)",
            effects=("tool_invocation",),
            choices=("approve_once", "deny"),
            created_at=NOW,
            state="pending",
        )
        self._emit("permission.requested", self.permissions[id])
        self._state(ObservedWaitingForPermission(permission_id=id))
        self._commit()

    def answer(self, id: str) -> None:
        """Somebody says yes, and for good."""
        resolution = PermissionResolution(choice="approve_once", principal_id=PRINCIPAL, resolved_at=NOW)
        self.permissions[id] = msgspec.structs.replace(
            self.permissions[id], state="approved", resolution=resolution
        )
        self._emit("permission.resolved", self.permissions[id])
        self._state(ObservedRunningTurn(operation_id=self._operation_id))
        self.grant(f"grt_{len(self.grants)}", commit=False)
        self._commit()

    def grant(self, id: str, *, commit: bool = True) -> None:
        """A grant comes to be."""
        self.grants[id] = Grant(
            id=id,
            session_id=SESSION,
            principal_id=PRINCIPAL,
            tool_name="look",
            identity_digest="d",
            scope="exact_session",
            state="active",
            created_at=NOW,
        )
        self._emit("grant.created", self.grants[id])
        if commit:
            self._commit()

    def revoke(self, id: str) -> None:
        """A grant ends."""
        self.grants[id] = msgspec.structs.replace(self.grants[id], state="revoked", revoked_at=NOW)
        self._emit("grant.revoked", self.grants[id])
        self._commit()

    def job(self, id: str, status: JobStatus = QUEUED) -> None:
        """A job begins or changes."""
        self.jobs[id] = Job(
            id=id,
            session_id=SESSION,
            generation=0,
            kind="model_call",
            payload=raw({}),
            status=status,
            retry_policy=RetryPolicyNever(),
            attempt=0,
            created_at=NOW,
            delivery=JobDeliveryNotRequired(),
        )
        self._emit("job.state_changed", self.jobs[id])
        self._commit()

    def schedule(self, id: str, **changes: Any) -> None:
        """A schedule is made or changes."""
        members = {
            "id": id,
            "session_id": SESSION,
            "generation": 0,
            "payload": raw({}),
            "created_at": NOW,
            "next_due_at": NOW,
            "misfire": "fail",
            "status": ScheduleStatusScheduled(),
            "delivery_count": 0,
        }
        kind: EventKind = "schedule.state_changed" if id in self.schedules else "schedule.created"
        self.schedules[id] = Schedule(**{**members, **changes})
        self._emit(kind, self.schedules[id])
        self._commit()

    def compact(self) -> None:
        """The history is replaced."""
        self.history = [entry(self.number(), "In short: hello.")]
        self._emit("history.replaced", window(*self.history))
        self._commit()

    def overlay(self, reason: str | UnsetType = UNSET) -> None:
        """A moderator halts the session, or takes everything back."""
        self.halted, self.halt_reason = reason is not UNSET, reason
        self.effective = [*self.history] if self.halted else None
        payload: dict[str, Any] = {"halted": self.halted}
        if self.effective is not None:
            payload |= {"effective_history": window(*self.effective), "halt_reason": reason}
        self._emit("moderator.overlay_changed", payload)
        self._commit()

    def notify(self) -> None:
        """A notice, of which nothing stays."""
        self._emit("moderator.notification", {"message": "note"})
        self._commit()

    def fail(self) -> None:
        """The session cannot go on."""
        self.failure = Error(code="workspace_unavailable", message="gone", retryable=False)
        self._emit("session.error", self.failure)
        self._state(ObservedFailed(error=self.failure))
        self._commit()

    def upgrade(self) -> None:
        """The prompt moves to another revision."""
        before = self.session.prompt_revision
        self.session = msgspec.structs.replace(self.session, prompt_revision=f"prv_{self.sequence}")
        self._emit(
            "prompt.upgraded",
            {
                "prompt_id": "prd_demo",
                "previous_revision": before,
                "current_revision": self.session.prompt_revision,
            },
        )
        self._commit()

    def reset(self) -> None:
        """Everything begins anew."""
        self.history = [self.history[0]]
        self.deferred, self.effective = [], None
        self.permissions, self.grants, self.jobs, self.schedules = {}, {}, {}, {}
        self.halted, self.halt_reason, self.failure = False, UNSET, UNSET
        self.session = msgspec.structs.replace(
            self.session,
            generation=self.session.generation + 1,
            active_operation=UNSET,
            observed_state=ObservedIdle(),
        )
        before = msgspec.to_builtins(msgspec.json.decode(encode(self.session)))
        self._count(1)
        self._log("session.updated", {**before, "replacement_snapshot": self.snapshot()})
        self._emit("history.replaced", window(*self.history))
        self._commit()

    def touch(self) -> None:
        """A change without an event."""
        self._commit()

    # What is seen of it

    def snapshot(self) -> Snapshot:
        """Everything, as it stands."""
        return Snapshot(
            session=self.session,
            canonical_history=window(*self.history),
            effective_history=UNSET if self.effective is None else window(*self.effective),
            deferred_entries=tuple(self.deferred),
            permissions=tuple(reversed(self.permissions.values())),
            grants=tuple(reversed(self.grants.values())),
            jobs=tuple(reversed(self.jobs.values())),
            schedules=tuple(reversed(self.schedules.values())),
            active_tool_calls=(),
            active_agent_calls=(),
            halted=self.halted,
            halt_reason=self.halt_reason,
            failure=self.failure,
            revision=self.session.revision,
            latest_event_sequence=self.session.latest_event_sequence,
        )

    def live(self, kind: LiveEventKind, payload: object, **changes: Any) -> LiveEvent:
        """Return the next live event of the operation."""
        self.position += 1
        members = {
            "session_id": SESSION,
            "operation_id": self._operation_id,
            "operation_sequence": self.position,
            "anchor_sequence": self.sequence,
            "timestamp": NOW,
            "kind": kind,
            "payload": raw(payload),
        }
        return LiveEvent(**{**members, **changes})

    def delta(self, text: str, entry_id: str | None, **changes: Any) -> LiveEvent:
        """Return a live event that says `text`."""
        event = {
            "type": "response.output_text.delta",
            "content_index": 0,
            "delta": text,
            "item_id": "m",
            "output_index": 0,
        }
        source = {"entry_id": entry_id, "invocation_id": None, "parent_call_id": None, **changes}
        return self.live("sourced.stream", {**source, "event": event})

    def number(self) -> int:
        """Return the next history number."""
        self.numbers += 1
        return self.numbers - 1

    # Inside

    @property
    def _operation_id(self) -> str:
        return f"op_{self.operations}"

    def _append(self, *entries: HistoryEntry) -> None:
        self.history.extend(entries)
        if self.effective is not None:
            self.effective.extend(entries)
        self._emit("history.appended", entries)

    def _operate(self, kind: EventKind, state: OperationState) -> None:
        operation = Operation(
            id=self._operation_id,
            generation=0,
            kind=OperationKindTurn(reason="user_submit"),
            state=state,
            started_at=NOW,
            updated_at=NOW,
        )
        self.session = msgspec.structs.replace(self.session, active_operation=operation)
        self._emit(kind, operation)

    def _state(self, observed: ObservedState, desired: DesiredState = "running") -> None:
        self.session = msgspec.structs.replace(self.session, observed_state=observed, desired_state=desired)
        self._emit("session.state_changed", {"desired_state": desired, "observed_state": observed})

    def _emit(self, kind: EventKind, payload: object) -> None:
        self._count(1)
        self._log(kind, payload)

    def _count(self, events: int) -> None:
        self.session = msgspec.structs.replace(
            self.session,
            revision=self.revision,
            latest_event_sequence=self.session.latest_event_sequence + events,
        )

    def _log(self, kind: EventKind, payload: object) -> None:
        self.log.append(
            DurableEvent(
                session_id=SESSION,
                sequence=self.session.latest_event_sequence,
                revision=self.revision,
                timestamp=NOW,
                kind=kind,
                payload=raw(payload),
            )
        )

    def _commit(self) -> None:
        self._count(0)
        self.snapshots[self.sequence] = self.snapshot()
        self.revision += 1
