"""What happens in a session, in words.

Owns: which updates are shown, how, and that nothing is shown twice. Does not own: where it is shown (`screen`), and what
is typed (`conversation`).
"""

from __future__ import annotations

from collections import deque
from textwrap import shorten

from msgspec import UNSET

from ochat_client import Durable, Live, Lost, Projection, Replaced, Restored, Update
from ochat_site.terminal.screen import Screen
from sessions_app.events import ModeratorNotificationPayload, SourcedStreamPayload
from sessions_app.records import (
    CustomToolCallItem,
    CustomToolCallOutputItem,
    Error,
    FunctionCallItem,
    FunctionCallOutputItem,
    HistoryEntry,
    InputImage,
    InputMessageItem,
    InputText,
    Operation,
    OperationCancelled,
    OperationCancelling,
    OperationFailed,
    OperationInterrupted,
    OperationRunning,
    OperationStarting,
    OutputMessageItem,
    Permission,
    ProviderItem,
    ReasoningItem,
    ToolOutput,
    ToolOutputPartInputText,
    decode_item,
)

TAIL = 20
"""So many entries of an older session are shown when it is opened."""

WIDTH = 72
"""Summaries are cut to this many characters, so that with a mark they fit a row of 80."""

STATES = {
    "queued_for_slot": "waiting for a slot",
    "running_turn": "working",
    "waiting_for_permission": "waiting for permission",
}


class Transcript:
    """Shows a session on a screen, update by update."""

    def __init__(self, screen: Screen, projection: Projection) -> None:
        """Begin with nothing shown."""
        self._screen = screen
        self._projection = projection
        self._sent: deque[str] = deque()
        self._queued: set[str] = set()
        self._asked: set[str] = set()
        self._last_shown: str | None = None
        self._streaming: str | None = None
        self._streamed = ""

    def expect(self, text: str) -> None:
        """Take note of what was just typed here: it stands on the screen already."""
        self._sent.append(text)

    def unexpect(self, text: str) -> None:
        """Take that back: the message was not taken."""
        self._sent.remove(text)

    def show(self, update: Update) -> None:
        """Show what is new about an update."""
        match update:
            case Replaced():
                self._catch_up()
            case Durable():
                self._durable(update)
            case Live(payload=SourcedStreamPayload(entry_id=str(entry_id), parent_call_id=None)):
                self._stream(entry_id)
            case Lost(error=error):
                self._screen.note(f"{error}; connecting again …", "warning")
            case Restored(missed=0):
                self._screen.note("Connected again; nothing was missed.")
            case Restored(missed=1):
                self._screen.note("Connected again; one event was missed and follows.")
            case Restored(missed=missed):
                self._screen.note(f"Connected again; {missed} events were missed and follow.")
        self._screen.show_state(self._state())

    # Snapshots

    def _catch_up(self) -> None:
        """Show what a snapshot holds and is not on the screen yet."""
        history = self._projection.history
        ids = [entry.id for entry in history.entries]
        start = max(0, len(ids) - TAIL)
        if self._last_shown in ids:
            start = ids.index(self._last_shown) + 1
        elif self._last_shown is not None:
            self._screen.note("The history was rewritten meanwhile; this is its end:")
        elif start or not history.reached_start:
            self._screen.note(
                f"This session is older: {'its' if history.reached_start else 'only its'} end is shown."
            )
        for entry in history.entries[start:]:
            self._entry(entry)
        for entry in self._projection.deferred.values():
            self._deferred(entry)
        for permission in self._projection.pending_permissions:
            self._ask(permission)
        if self._projection.failure is not UNSET:
            self._failed(self._projection.failure)
        if self._projection.halted:
            self._screen.note(
                f"The session is halted: {self._projection.halt_reason or 'no reason given'}", "warning"
            )

    # Events

    def _durable(self, event: Durable) -> None:
        match event.event.kind, event.payload:
            case "history.appended", tuple(entries):
                for entry in entries:
                    self._entry(entry)
            case "history.message_deferred", HistoryEntry() as entry:
                self._deferred(entry)
            case "history.replaced", _:
                self._last_shown = (
                    self._projection.history.entries[-1].id if self._projection.history.entries else None
                )
                self._screen.note("The history was rewritten.")
            case "permission.requested", Permission() as permission:
                self._ask(permission)
            case "permission.resolved", Permission() as permission:
                self._screen.note(f"{permission.invocation_display}: {permission.state}")
            case "session.error", Error() as error:
                self._failed(error)
            case "moderator.notification", ModeratorNotificationPayload(message=str(message)):
                self._screen.note(message)
            case "moderator.notification", ModeratorNotificationPayload(end_session_reason=str(reason)):
                self._screen.note(f"The session is ended: {reason}", "warning")
            case _, Operation() as operation:
                self._operation(operation)
            case _:
                pass  # Shown in the state, or of no interest here.

    def _operation(self, operation: Operation) -> None:
        match operation.state:
            case OperationStarting() | OperationRunning() | OperationCancelling():
                return
            case OperationFailed(error=error):
                self._failed(error)
            case OperationCancelled():
                self._screen.note("Cancelled.")
            case OperationInterrupted(reason=reason):
                self._screen.note(f"Interrupted ({reason}).", "warning")
        self._end_stream()

    def _deferred(self, entry: HistoryEntry) -> None:
        if entry.id in self._queued:
            return
        self._queued.add(entry.id)
        text = _user_text(entry)
        if text in self._sent:
            self._sent.remove(text)
        self._screen.note(f"Queued: {_short(text)}")

    def _ask(self, permission: Permission) -> None:
        if permission.id in self._asked:
            return
        self._asked.add(permission.id)
        why = "" if permission.rationale is UNSET else f" — {permission.rationale}"
        self._screen.note(f"May {permission.invocation_display} run?{why}", "warning")
        choices = [choice for choice in permission.choices if choice != "deny"]
        self._screen.note(f"/approve ({', '.join(choices)}) or /deny [reason]", "warning")

    def _failed(self, error: Error) -> None:
        self._screen.note(f"Failed: {error.message} ({error.code})", "error")

    # Entries

    def _entry(self, entry: HistoryEntry) -> None:
        self._last_shown = entry.id
        if entry.redacted:
            self._screen.note("Something that your rights do not show.", "tool")
            return
        try:
            item = decode_item(entry.payload)
        except ValueError:
            self._screen.note(f"An entry of kind {entry.kind} that this program cannot read.", "tool")
            return
        self._item(entry.id, item)

    def _item(self, entry_id: str, item: ProviderItem) -> None:
        match item:
            case InputMessageItem(role="user"):
                self._user(entry_id, _input_text(item))
            case OutputMessageItem(status=status):
                self._answer(entry_id, "".join(part.text for part in item.content))
                if status == "incomplete":
                    self._screen.note("The answer was cut off here.", "warning")
            case InputMessageItem(role="assistant"):
                self._answer(entry_id, _input_text(item))
            case ReasoningItem(summary=summary) if summary:
                self._screen.note(f"Thought: {_short(' '.join(part.text for part in summary))}")
            case (
                FunctionCallItem(name=name, arguments=arguments)
                | CustomToolCallItem(name=name, input=arguments)
            ):
                self._screen.note(_short(f"{name} {arguments}"), "tool")
            case FunctionCallOutputItem(output=output) | CustomToolCallOutputItem(output=output):
                self._screen.note(_short(f"= {_output_text(output)}"), "tool")
            case _:
                pass  # Instructions of the prompt, and searches of the provider, which answers speak of.

    def _user(self, entry_id: str, text: str) -> None:
        if entry_id in self._queued:
            self._queued.remove(entry_id)
            self._screen.note(f"Taken up: {_short(text)}")
        elif text in self._sent:
            self._sent.remove(text)
        else:
            self._screen.note(text, "user")

    def _answer(self, entry_id: str, text: str) -> None:
        """Show an answer, or what is missing of it when it was streamed."""
        if self._streaming != entry_id:
            self._end_stream()
        elif not text.startswith(self._streamed):
            self._end_stream()
            self._screen.note("In full:")
        self._screen.say(text[len(self._streamed) :])
        self._streaming = entry_id
        self._end_stream()

    def _stream(self, entry_id: str) -> None:
        """Show what was streamed since; behind a gap nothing, because the entry itself will tell."""
        stream = self._projection.streams.get(entry_id)
        if stream is None or stream.has_gap or not self._screen.streams:
            return
        if self._streaming != entry_id:
            self._end_stream()
            self._streaming = entry_id
        text = stream.text
        if text.startswith(self._streamed):
            self._screen.say(text[len(self._streamed) :])
            self._streamed = text

    def _end_stream(self) -> None:
        if self._streaming is not None:
            self._screen.end_line()
        self._streaming, self._streamed = None, ""

    def _state(self) -> str:
        session = self._projection.session
        operation = session.active_operation
        tag = str(session.observed_state.__struct_config__.tag)
        state = STATES.get(tag, tag)
        if operation is not UNSET and isinstance(operation.state, OperationCancelling):
            state = "cancelling"
        calls = ", ".join(call.payload.name for call in self._projection.active_calls.values())
        queued = len(self._projection.deferred)
        return " · ".join(filter(None, [state, calls, f"{queued} queued" if queued else ""]))


def _short(text: str) -> str:
    return shorten(text, WIDTH, placeholder=" …") or "(nothing)"


def _user_text(entry: HistoryEntry) -> str:
    try:
        item = decode_item(entry.payload)
    except ValueError:
        return ""
    return _input_text(item) if isinstance(item, InputMessageItem) else ""


def _input_text(item: InputMessageItem) -> str:
    parts = (item.content,) if isinstance(item.content, str) else item.content
    return "".join(_part_text(part) for part in parts)


def _part_text(part: str | InputText | InputImage) -> str:
    match part:
        case str():
            return part
        case InputText(text=text):
            return text
        case InputImage():
            return "[image]"


def _output_text(output: ToolOutput) -> str:
    if isinstance(output, str):
        return output
    return "".join(part.text if isinstance(part, ToolOutputPartInputText) else "[image]" for part in output)
