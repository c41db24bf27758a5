"""A small world for the kernel's tests: a catalog, clients, sessions and turns, made of real rows by real functions.

Nothing is patched: the clock and the ids are injected where the kernel takes them, the participants are the real ones, and
the gate and the dispatcher are doubles at their ports. What must hold for every log and history is checked when a world ends.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import msgspec
from django.db import connections

from jobs_app.models import Job, Schedule
from ochat_site import wiring
from permissions_app.decisions import PermissionGate
from permissions_app.models import PermissionRequest
from permissions_app.scopes import EverySession, OwnAndShared
from sessions_app import clock, history, ids, ledger, participants, pinned, processes, store, workspaces
from sessions_app.callers import Access, Attached, Caller, Connected, Visible
from sessions_app.chatmd.pin import PinnedPrompt, capture
from sessions_app.commands import (
    administration,
    attachments,
    calls,
    compaction,
    deletion,
    edits,
    lifecycle,
    messages,
    operations,
    sessions,
)
from sessions_app.commands.calls import Finished, Progress, Proposed
from sessions_app.commands.operations import Claim, Ending
from sessions_app.db import database_now
from sessions_app.encoding import encode
from sessions_app.events import LiveEvent, ToolStartedPayload, read_payload
from sessions_app.history import NewEntry
from sessions_app.ledger import StoredEvent
from sessions_app.models import (
    Connection,
    DeferredEntry,
    HistoryEntry,
    Operation,
    Process,
    ProfileRevision,
    PromptDefinition,
    Session,
    ToolCall,
    WorkspaceDefinition,
)
from sessions_app.projection import project_event
from sessions_app.receipts import Call
from sessions_app.records import (
    AttachmentMode,
    DeletePolicy,
    FunctionCallItem,
    Liveness,
    LivenessDetached,
    LivenessOwnerBound,
    MessageContent,
    OutputMessageItem,
    OutputText,
    PromptRefCatalog,
    RebuildPromptChoice,
    Scope,
    SessionSpec,
    StopMode,
    ToolOutput,
    WorkspaceRequestConfigured,
    decode_item,
)
from sessions_app.runtime.ports import Refuse, Run, Tier, Verdict, Wait
from sessions_app.views import FULL

ALL_SCOPES: frozenset[Scope] = frozenset(get_args(Scope))
SCOPES: frozenset[Scope] = ALL_SCOPES - {"configuration.admin"}
"""What clients hold unless a test says otherwise: everything but the right to see all sessions."""

PROMPT = '<config model="demo:echo"/><developer>Be brief.</developer>'
TIERS: Mapping[str, Tier] = {"run": "read", "ask": "edit", "deny": "edit", "write": "edit"}
"""The tools that the turns of this world offer; the first three are decided by `Gate` as they are called."""

Story = list[list[str]]
"""Events of a session, one list per revision; see `World.story`."""

R = TypeVar("R")

_tokens = itertools.count(1)
"""Never the same twice in a run: folders of sessions are left behind in the run's data folder."""


class Clock:
    """A clock that tests move. It also ticks whenever it is read, so that two equal times were meant to be equal.

    It starts now: PostgreSQL judges leases and heartbeats by its own clock, which nobody moves.
    """

    def __init__(self) -> None:
        self._now = datetime.now(UTC)
        self._mutex = threading.Lock()

    def __call__(self) -> datetime:
        with self._mutex:
            self._now += timedelta(microseconds=10)
            return self._now

    def advance(self, **by: float) -> None:
        """Let time pass, said as the members of a timedelta."""
        with self._mutex:
            self._now += timedelta(**by)


class Dispatched:
    """A dispatcher that remembers which operations it was asked to hand over."""

    def __init__(self) -> None:
        self.operations: list[str] = []

    def operation(self, operation_id: str) -> None:
        """Remember it."""
        self.operations.append(operation_id)

    def jobs(self) -> None:
        """Nothing waits here."""


class Gate:
    """Decides a call by the name of its tool: `run`, `deny`, `ask`; opens no request."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def decide(self, _txn: ledger.Txn, _operation: Operation, call: ToolCall, _tier: Tier) -> Verdict:
        """Return the verdict that the tool is named after."""
        self.asked.append(call.call_id)
        verdicts: Mapping[str, Verdict] = {"run": Run(), "deny": Refuse("denied"), "ask": Wait()}
        return verdicts[call.name]


@dataclass(frozen=True, slots=True)
class Client:
    """A connection of somebody and, once it is attached, its hold on a session."""

    caller: Caller
    connection_id: str
    session_id: str = ""
    attachment_id: str = ""

    def by(self, access: Access) -> Caller:
        """Return the same person by another access."""
        return replace(self.caller, access=access)

    @property
    def connected(self) -> Caller:
        """The caller before any attachment: what attach and create get."""
        return self.by(Connected(self.connection_id))

    @property
    def reader(self) -> Caller:
        """The attached caller for the calls that any attachment may make."""
        return self.by(Attached(self.connection_id, self.attachment_id, writes=False))


@dataclass
class World:
    """Builders and readers; every builder goes through the kernel's own commands."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    dispatched: Dispatched = field(default_factory=Dispatched)
    gate: Gate = field(default_factory=Gate)
    _lawful: bool = True
    _demo: PromptDefinition | None = None
    _workspaces: dict[str, WorkspaceDefinition] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    # Processes and the catalog

    def new_process(self, kind: str = "worker") -> str:
        """Become another process, as far as claims, attachments and receipts are concerned; its id."""
        return processes.register(kind)

    def other_process(self, kind: str = "worker") -> str:
        """Let another process serve the store beside this one; its id."""
        now = database_now()
        row = Process.objects.create(
            id=ids.new_id("prc"), kind=kind, host="elsewhere", pid=1, started_at=now, beat_at=now
        )
        return row.id

    def let_die(self, process_id: str) -> None:
        """Let a process have stopped beating long ago."""
        Process.objects.filter(id=process_id).update(beat_at=datetime(2020, 1, 1, tzinfo=UTC))

    def profile(self, **content: Any) -> ProfileRevision:
        """Keep a permission profile of these keys."""
        encoded = encode(content)
        row, _ = ProfileRevision.objects.get_or_create(
            digest=sha256(encoded).hexdigest(),
            defaults={"name": "test", "content": encoded, "created_at": clock.now()},
        )
        return row

    def prompt(
        self, text: str = PROMPT, *, name: str = "demo", profile: ProfileRevision | None = None
    ) -> PromptDefinition:
        """Capture a prompt into the catalog, allowed in both workspaces."""
        file = self.folder / f"{name}.chatmd"
        file.write_text(text)
        captured = capture(file, lambda _tool: True)
        assert isinstance(captured, PinnedPrompt), captured
        row = PromptDefinition.objects.create(
            id=ids.derived_id("prd", name),
            name=name,
            permission_profile="test",
            profile_revision=profile or self.profile(tool_default="ask", unattended="wait"),
            current_revision=pinned.keep(captured),
        )
        row.allowed_workspaces.add(self.physical(), self.temporary())
        if name == "demo":
            self._demo = row
        return row

    def physical(self) -> WorkspaceDefinition:
        """The physical workspace, whose folder is there."""
        root = self.folder / "project"
        if "physical" not in self._workspaces:
            root.mkdir()
        return self._workspace("physical", path=str(root))

    def temporary(self) -> WorkspaceDefinition:
        """The temporary workspace, made inside the folder of its session."""
        return self._workspace("temporary", temporary_location="session_dir", cleanup="on_session_delete")

    def folder_of(self, session_id: str) -> Path:
        """The private folder of a session, in which its temporary workspace is made."""
        return workspaces.session_folder(session_id)

    def _workspace(self, kind: str, **options: str) -> WorkspaceDefinition:
        if kind not in self._workspaces:
            self._workspaces[kind] = WorkspaceDefinition.objects.create(
                id=ids.derived_id("wsd", kind), name=kind, kind=kind, access="shared_write", **options
            )
        return self._workspaces[kind]

    def spec(
        self,
        *,
        start: bool = False,
        liveness: Liveness | None = None,
        transient: bool = False,
        labels: Mapping[str, str] | None = None,
        prompt: PromptDefinition | None = None,
        workspace: WorkspaceDefinition | None = None,
        **other: Any,
    ) -> SessionSpec:
        """What a session is made of: detached and durable, not started, in the physical workspace."""
        known = prompt or self._demo or self.prompt()
        return SessionSpec(
            **{
                "execution_host": "daemon",
                "prompt": PromptRefCatalog(prompt_id=known.id),
                "workspace": WorkspaceRequestConfigured(workspace_id=(workspace or self.physical()).id),
                "liveness": liveness or LivenessDetached(),
                "persistence": "transient" if transient else "durable",
                "start_immediately": start,
                "labels": dict(labels or {}),
                **other,
            }
        )

    def owner_bound(self, grace_ms: int = 10_000, stop_mode: StopMode = "graceful") -> LivenessOwnerBound:
        """The liveness of a session that lives no longer than its owner."""
        return LivenessOwnerBound(disconnect_grace_ms=grace_ms, stop_mode=stop_mode)

    # Callers

    def client(self, who: str = "ann", scopes: frozenset[Scope] = SCOPES) -> Client:
        """Connect somebody: a connection of its own, held by this process."""
        now = clock.now()
        connection = Connection.objects.create(
            id=ids.new_id("con"),
            process_id=processes.current_id(),
            transport="websocket",
            principal=b"{}",
            created_at=now,
            last_active_at=now,
        )
        principal_id = f"pri_{who}"
        visible: Visible = (
            EverySession() if "configuration.admin" in scopes else OwnAndShared(principal_id, None)
        )
        caller = Caller(principal_id, scopes, visible, Connected(connection.id))
        return Client(caller, connection.id)

    def call(self, caller: Caller, method: str, key: str | None = None, **options: Any) -> Call:
        """Return a keyed call, by default with a key that nobody has used."""
        return Call(caller, method, key or f"key-{next(self._numbers)}", **options)

    # Sessions

    def create(
        self,
        *,
        by: Client | None = None,
        mode: AttachmentMode = "read_write",
        spec: SessionSpec | None = None,
        **options: Any,
    ) -> Client:
        """Create a session as `spec` describes it and attach to it."""
        client = by or self.client()
        made = sessions.create_session(
            self.call(client.connected, "session.create"), spec or self.spec(**options), mode
        )
        assert made.attachment is not None
        return self._attached(client, made.session.id, made.attachment.id)

    def idle(self, **options: Any) -> Client:
        """Create a session that is loaded and does nothing."""
        return self.create(start=True, **options)

    def attach(
        self,
        session_id: str,
        mode: AttachmentMode = "read_write",
        *,
        by: Client | None = None,
        token: str | None = None,
    ) -> Client:
        """Attach to a session."""
        client = by or self.client()
        made = attachments.attach(self.call(client.connected, "session.attach"), session_id, mode, token)
        return self._attached(client, session_id, made.attachment.id)

    def _attached(self, client: Client, session_id: str, attachment_id: str) -> Client:
        caller = client.by(Attached(client.connection_id, attachment_id))
        return Client(caller, client.connection_id, session_id, attachment_id)

    def detach(self, client: Client) -> attachments.Counters:
        """Let go of an attachment."""
        return attachments.detach(self.call(client.reader, "session.detach"), client.session_id)

    def disconnect(self, client: Client) -> None:
        """Lose the connection of an attachment."""
        attachments.disconnect([(client.session_id, client.attachment_id)])
        Connection.objects.filter(id=client.connection_id).delete()

    def start(self, client: Client, **options: Any) -> messages.Changed:
        """Start a session."""
        return lifecycle.start_session(
            self.call(client.caller, "session.start", **options), client.session_id
        )

    def stop(self, client: Client, mode: StopMode = "graceful", **options: Any) -> messages.Changed:
        """Stop a session."""
        return lifecycle.stop_session(
            self.call(client.caller, "session.stop", **options), client.session_id, mode
        )

    def send(self, client: Client, text: str = "hello", **options: Any) -> messages.Sent:
        """Send a plain text."""
        return messages.send_message(
            self.call(client.caller, "session.send_message", protected=True, **options),
            client.session_id,
            plain(text),
        )

    def cancel(self, client: Client, operation_id: str | None = None, **options: Any) -> messages.Changed:
        """Cancel an operation, the active one unless another is named."""
        return messages.cancel_operation(
            self.call(client.caller, "session.cancel_operation", **options),
            client.session_id,
            operation_id or self.session(client.session_id).active_operation_id or "op_none",
        )

    # Edits

    def compact(self, client: Client, expected: int | None = None, **options: Any) -> messages.Changed:
        """Begin a compaction."""
        call = self.call(client.caller, "session.compact", protected=True, **options)
        return compaction.compact(call, client.session_id, expected)

    def delete_entry(
        self, client: Client, number: int, expected: int | None = None, **options: Any
    ) -> messages.Changed:
        """Delete the entry with this history sequence, at the present revision unless another is expected."""
        call = self.call(client.caller, "session.delete_history", protected=True, **options)
        entry_id = ids.history_id(client.session_id, number)
        return edits.delete_history(call, client.session_id, entry_id, self._expected(client, expected))

    def reset(
        self, client: Client, expected: int | None = None, *, key: str | None = None, **drop: bool
    ) -> messages.Changed:
        """Reset a session, everything kept but what is named and False."""
        keep = {"history": True, "workspace": True, "grants": True, "labels": True, **drop}
        call = self.call(client.caller, "session.reset", key, protected=True)
        return administration.reset(
            call, client.session_id, self._expected(client, expected), administration.Keep(**keep)
        )

    def rebuild(
        self, client: Client, choice: RebuildPromptChoice = "pinned", expected: int | None = None
    ) -> messages.Changed:
        """Rebuild a session."""
        call = self.call(client.caller, "session.rebuild", protected=True)
        return administration.rebuild(call, client.session_id, self._expected(client, expected), choice)

    def upgrade(self, client: Client, revision: str, expected: int | None = None) -> messages.Changed:
        """Move a session to another revision of its prompt."""
        call = self.call(client.caller, "session.upgrade_prompt", protected=True)
        return administration.upgrade_prompt(
            call, client.session_id, self._expected(client, expected), revision
        )

    def delete(
        self,
        client: Client,
        policy: DeletePolicy = "archive",
        *,
        expected: int | None = None,
        confirmation: str | None = None,
        key: str | None = None,
    ) -> deletion.Deleted:
        """Delete a session."""
        call = self.call(client.caller, "session.delete", key, protected=True)
        return deletion.delete_session(
            call,
            client.session_id,
            self._expected(client, expected),
            policy,
            client.session_id if confirmation is None else confirmation,
        )

    def _expected(self, client: Client, expected: int | None) -> int:
        return self.counters(client)[0] if expected is None else expected

    def edit_prompt(self, text: str, name: str = "demo") -> str:
        """Give a prompt of the catalog another source; its new revision."""
        file = self.folder / f"{name}.chatmd"
        file.write_text(text)
        captured = capture(file, lambda _tool: True)
        assert isinstance(captured, PinnedPrompt), captured
        PromptDefinition.objects.filter(name=name).update(current_revision=pinned.keep(captured))
        return captured.revision

    # Turns

    def claim(self, client: Client) -> Claim:
        """Claim the active operation for this process."""
        claim = operations.claim(
            client.session_id, self.session(client.session_id).active_operation_id or "op_none"
        )
        assert claim is not None
        return claim

    def turn(self, client: Client, text: str = "hello") -> Claim:
        """Send a message to an idle session and claim the turn that it starts."""
        self.send(client, text)
        return self.claim(client)

    def propose(
        self,
        claim: Claim,
        *names: str,
        said: Sequence[NewEntry] | None = None,
        gate: Any = None,
        live_sequence: int = 0,
    ) -> Progress:
        """Let the model ask for calls of these tools: call ids `call_0`, `call_1`, … through the whole operation."""
        first = ToolCall.objects.filter(operation_id=claim.operation_id).count()
        wanted = [
            Proposed(call_id=f"call_{first + index}", name=name, kind="function", arguments="{}")
            for index, name in enumerate(names)
        ]
        entries = [
            history.entry_of(history.call_item(w.kind, w.call_id, w.name, w.arguments)) for w in wanted
        ]
        return calls.propose(
            claim,
            [*(said or ()), *entries],
            wanted,
            gate or self.gate,
            TIERS,
            started,
            live_sequence=live_sequence,
        )

    def advance(self, claim: Claim, *outputs: tuple[int, ToolOutput], live_sequence: int = 0) -> Progress:
        """Let calls return: (position, output) of each."""
        finished = [Finished(position, output) for position, output in outputs]
        return calls.advance(claim, finished, started, live_sequence)

    def answer(self, client: Client, call_id: str, *, allowed: bool = True) -> bool:
        """Answer a waiting call."""
        with ledger.session_txn(client.session_id, client.caller) as txn:
            assert txn.operation is not None
            return calls.answer(txn, txn.operation, call_id, allowed=allowed, output="not allowed")

    def ask(self, session_id: str, *names: str) -> list[str]:
        """Let the turn that waits in a session ask for calls of these tools, and the real gate ask people; the requests' ids."""
        claim = operations.claim(session_id, self.session(session_id).active_operation_id or "op_none")
        assert claim is not None
        self.propose(claim, *names, gate=PermissionGate())
        asked = PermissionRequest.objects.filter(session=session_id, state="pending").order_by("tool_call")
        return list(asked.values_list("id", flat=True))

    def finish(self, claim: Claim, text: str = "", **ending: Any) -> None:
        """End a turn, completed unless said otherwise, with an answer if there is one."""
        said = [assistant(text)] if text else []
        operations.finish(
            claim, Ending(**{"outcome": "completed", "streamed": (), "entries": said, **ending})
        )

    # Jobs and schedules: rows that nothing in the kernel makes

    def job(self, session_id: str, status: str = "queued", **options: Any) -> Job:
        """Put a job into a session."""
        fields: dict[str, Any] = {
            "generation": 0,
            "kind": "model_call",
            "payload": b'{"secret":"payload"}',
            "retry_policy": b'{"type":"never"}',
            "created_at": clock.now(),
            "process_id": processes.current_id() if status == "running" else None,
            "waiting_on": "per_asked" if status == "waiting_permission" else "",
            **options,
        }
        return Job.objects.create(id=ids.new_id("job"), session_id=session_id, status=status, **fields)

    def schedule(self, session_id: str, status: str = "scheduled", **options: Any) -> Schedule:
        """Put a schedule into a session."""
        now = clock.now()
        fields: dict[str, Any] = {
            "generation": 0,
            "payload": b"{}",
            "created_at": now,
            "next_due_at": now + timedelta(minutes=1),
            "misfire": "deliver_once_immediately",
            "process_id": processes.current_id() if status == "delivering" else None,
            **options,
        }
        return Schedule.objects.create(id=ids.new_id("sch"), session_id=session_id, status=status, **fields)

    # Reading

    def session(self, session_id: str) -> Session:
        """The row of a session as it stands, archived or not."""
        return Session.objects.select_related("active_operation").get(id=session_id)

    def counters(self, client: Client) -> tuple[int, int]:
        """Revision and newest sequence of a session."""
        row = self.session(client.session_id)
        return row.revision, row.latest_sequence

    def states(self, client: Client) -> tuple[str, str]:
        """What is wanted of a session, and what is seen."""
        row = self.session(client.session_id)
        return row.desired, row.observed

    def events(self, session_id: str, after: int = 0) -> list[StoredEvent]:
        """The log of a session behind a sequence."""
        return ledger.read_events(session_id, after, limit=10_000, max_bytes=2**40)

    def story(self, client: Client, after: int = 0) -> Story:
        """Tell the log behind a sequence, revision by revision: kinds, and what tells one state from another."""
        grouped = itertools.groupby(self.events(client.session_id, after), key=lambda event: event.revision)
        return [[told(event) for event in events] for _, events in grouped]

    @contextmanager
    def telling(self, client: Client) -> Iterator[Story]:
        """Fill the yielded story with what the block makes happen in a session."""
        before = self.counters(client)[1]
        story: Story = []
        yield story
        story.extend(self.story(client, before))

    def history(self, client: Client) -> list[str]:
        """The canonical history, each entry as `shown`."""
        rows = HistoryEntry.objects.filter(session_id=client.session_id).order_by("position")
        return [shown(row.payload) for row in rows]

    def deferred(self, client: Client) -> list[str]:
        """What waits in the queue, each entry as `shown`."""
        rows = DeferredEntry.objects.filter(session_id=client.session_id).order_by("number")
        return [shown(row.payload) for row in rows]

    # What holds for every session, whatever was done to it

    def break_laws(self) -> None:
        """Let a test make rows that no command makes: nothing is checked at the end."""
        self._lawful = False

    def check_laws(self) -> None:
        """Check each session's log and history against what is promised of all of them (behaviour 0.2, 6.5)."""
        if not self._lawful:
            return
        for session in Session.objects.select_related("active_operation"):
            events = self.events(session.id, session.oldest_sequence - 1)
            self._check_log(session, events)
            self._check_history(session, events)

    def _check_log(self, session: Session, events: Sequence[StoredEvent]) -> None:
        sequences = [event.sequence for event in events]
        assert sequences == list(range(session.oldest_sequence, session.latest_sequence + 1))
        revisions = [event.revision for event in events]
        assert revisions == sorted(revisions)
        assert not revisions or revisions[-1] <= session.revision
        for _, group in itertools.groupby(events, key=lambda event: event.revision):
            assert len({event.at for event in group}) == 1, "one revision, one timestamp"
        for event in events:
            read_payload(project_event(event, FULL))

    def _check_history(self, session: Session, events: Sequence[StoredEvent]) -> None:
        rows = list(HistoryEntry.objects.filter(session=session).order_by("position"))
        if events and events[0].kind == "session.created":
            initial = {ids.history_id(session.id, row.number) for row in rows if row.initial}
            own = [ids.history_id(session.id, row.number) for row in rows if not row.initial]
            assert own == [id for id in _told_history(events) if id not in initial], (
                "what the log says, in its order"
            )
        assert all(row.number < session.next_history for row in rows)
        waiting = list(DeferredEntry.objects.filter(session=session))
        assert session.deferred_count == len(waiting)
        assert session.deferred_bytes == sum(row.size for row in waiting)
        if session.active_operation is None:
            called = [row.call_key for row in rows if row.kind == "tool_call"]
            answered = [row.call_key for row in rows if row.kind == "tool_output"]
            assert sorted(called) == sorted(answered), "every call has one output"


@contextmanager
def opened(folder: Path) -> Iterator[World]:
    """Open a world in the database of the test, its prompt and workspaces below `folder`."""
    world = World(folder)
    before = participants.installed(), participants.dispatcher()
    wiring.install(world.dispatched)
    pinned.forget()
    store.forget()
    try:
        with clock.using(world.clock), ids.using(lambda: f"{next(_tokens):08d}"):
            world.new_process("web")
            yield world
            world.check_laws()
    finally:
        processes.forget()
        participants.install(*before)
        pinned.forget()


def plain(text: str) -> MessageContent:
    """Return a plain text as the content of a message."""
    return MessageContent(kind="plain_text", text=text, attachments=())


def assistant(text: str, number: int | None = None) -> NewEntry:
    """Return a finished answer of the model."""
    item = OutputMessageItem(
        role="assistant",
        id="msg_1",
        content=(OutputText(type="output_text", annotations=(), text=text),),
        status="completed",
    )
    return history.entry_of(encode(item), number)


def called(call_id: str, name: str = "run") -> NewEntry:
    """Return the entry of a call."""
    return history.entry_of(encode(FunctionCallItem(name=name, arguments="{}", call_id=call_id)))


def started(call: ToolCall, anchor: int) -> bytes:
    """Return the `tool.started` event of a call, as a worker makes it."""
    payload = ToolStartedPayload(
        call_id=call.call_id, name=call.name, kind="function", payload="…", agent_page_kind=None
    )
    event = LiveEvent(
        session_id=call.session_id,
        operation_id=call.operation_id,
        operation_sequence=1,
        anchor_sequence=anchor,
        timestamp=clock.wire_time(clock.now()),
        kind="tool.started",
        payload=msgspec.Raw(encode(payload)),
    )
    return encode(event)


def shown(payload: bytes) -> str:
    """Return an item in a few words: `user: hello`, `call: call_0`, `output: call_0: text`."""
    item = cast("Any", decode_item(payload))
    match type(item).__name__:
        case "InputMessageItem" | "OutputMessageItem":
            content = item.content
            text = content if isinstance(content, str) else "+".join(_part(part) for part in content)
            mark = "…" if getattr(item, "status", None) == "incomplete" else ""
            return f"{item.role}: {text}{mark}"
        case "FunctionCallItem" | "CustomToolCallItem":
            return f"call: {item.call_id}"
        case "FunctionCallOutputItem" | "CustomToolCallOutputItem":
            return f"output: {item.call_id}: {item.output}"
        case name:
            return name


def _told_history(events: Sequence[StoredEvent]) -> list[str]:
    """Return the ids of the entries that a log tells of and that nothing has replaced since."""
    found: list[str] = []
    for event in events:
        if event.kind == "history.appended":
            found += [entry["id"] for entry in msgspec.json.decode(event.payload)]
        if event.kind == "history.replaced":
            found = [entry["id"] for entry in msgspec.json.decode(event.payload)["entries"]]
    return found


def _part(part: Any) -> str:
    return str(getattr(part, "text", None) or getattr(part, "image_url", None))


def told(event: StoredEvent) -> str:
    """Return an event in a few words: its kind, and the state or the entries that it tells."""
    payload = msgspec.json.decode(event.payload)
    match event.kind:
        case "session.state_changed":
            return f"state {payload['desired_state']}/{payload['observed_state']['type']}"
        case "session.updated":
            if "replacement_snapshot" in payload:
                return "updated, replaced"
            return f"updated {payload['active_operation']['state']['type']}"
        case "history.replaced":
            return f"replaced by {', '.join(map(_entry, payload['entries']))}"
        case "history.appended":
            return f"appended {', '.join(_entry(entry) for entry in payload)}"
        case "history.message_deferred":
            return f"deferred {_entry(payload)}"
        case "attachment.owner_changed":
            return "owner none" if payload is None else "owner"
        case "permission.resolved" | "permission.requested":
            return f"{event.kind} {payload['state']}"
        case "job.state_changed" | "schedule.state_changed":
            return f"{event.kind} {payload['status']['type']}"
        case _:
            return event.kind


def _entry(entry: Mapping[str, Any]) -> str:
    return shown(encode(entry["payload"]))


def together(*work: Callable[[], R]) -> list[R]:
    """Run each in a thread with a connection of its own, all let go by one barrier; return their results in order."""
    barrier = threading.Barrier(len(work))

    def run(one: Callable[[], R]) -> R:
        try:
            barrier.wait(30)
            return one()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(work)) as threads:
        return list(threads.map(run, work))
