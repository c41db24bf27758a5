"""One reply of a model as it arrives: what is finished, what is half said, which entry each part will be.

Owns: folding the events of the model port into entries, calls and the text that a crash must not lose. Does not own: asking the
model, or committing anything. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile

from sessions_app import history
from sessions_app.commands.calls import Proposed
from sessions_app.commands.operations import StreamedItem
from sessions_app.history import NewEntry
from sessions_app.runtime.models.port import ItemDone, ItemStarted, ModelEvent, StreamEvent


@dataclass(slots=True)
class _Item:
    """An output item that is in no history yet."""

    number: int
    item_id: str
    type: str
    text: list[str] = field(default_factory=list)


class Reply:
    """The reply to one request. `number` gives the next promised history sequence."""

    def __init__(self, number: Callable[[], int]) -> None:
        self._number = number
        self._open: dict[int, _Item] = {}
        self._unsaved: dict[int, _Item] = {}
        """By number: finished or not, what a crash would lose."""
        self.finished: list[NewEntry] = []
        """Finished items that are in no history yet, in order."""
        self.calls: list[Proposed] = []
        self.changed = False
        """Text arrived since this was last reset."""

    def take(self, event: ModelEvent) -> int | None:
        """Fold one event in; return the history sequence of the entry it belongs to, if it belongs to one.

        Raises what `history.entry_of` raises for a finished item; its streamed text is kept.
        """
        match event:
            case StreamEvent(item=index, text=text):
                return self._heard(index, text)
            case ItemStarted(item=index, type=type_, id=item_id):
                item = self._open[index] = _Item(self._number(), item_id, type_)
                if type_ == "message":
                    self._unsaved[item.number] = item
            case ItemDone(item=index, payload=payload, call=call):
                opened = self._open.get(index)
                self.finished.append(history.entry_of(payload, opened.number if opened else self._number()))
                self._open.pop(index, None)
                if call is not None:
                    self.calls.append(Proposed(call.call_id, call.name, call.kind, call.arguments))
        return None

    def sayable(self) -> list[NewEntry]:
        """Return the finished items that may enter history before the reply ends: those in front of the first call.

        Reasoning waits for what it led to: some providers refuse a history in which nothing follows it.
        """
        ready = list(takewhile(lambda entry: entry.kind != "tool_call", self.finished))
        while ready and ready[-1].kind == "reasoning":
            ready.pop()
        return ready

    def committed(self, count: int) -> None:
        """Forget the first `count` finished items: they are in history."""
        for entry in self.finished[:count]:
            if entry.number is not None:
                self._unsaved.pop(entry.number, None)
        del self.finished[:count]

    def unsaved(self) -> list[StreamedItem]:
        """Return the text that is in no history, as a crash would have to keep it; that of finished items too."""
        return [
            StreamedItem(number=item.number, item_id=item.item_id, text="".join(item.text))
            for item in self._unsaved.values()
            if item.text
        ]

    def _heard(self, index: int | None, text: str) -> int | None:
        opened = self._open.get(index) if index is not None else None
        if opened is None:
            return None
        if text:
            opened.text.append(text)
            self.changed = True
        return opened.number
