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
from sessions_app.runtime.models.port import Completed, ItemDone, ItemStarted, ModelEvent, StreamEvent, Usage


@dataclass(slots=True)
class _Open:
    """An output item that is not finished."""

    number: int
    item_id: str
    type: str
    text: list[str] = field(default_factory=list)


class Reply:
    """The reply to one request. `number` gives the next promised history sequence."""

    def __init__(self, number: Callable[[], int]) -> None:
        self._number = number
        self._open: dict[int, _Open] = {}
        self.finished: list[NewEntry] = []
        """Finished items that are in no history yet, in order."""
        self.calls: list[Proposed] = []
        self.usage = Usage()
        self.changed = False
        """Text arrived since `unsaved` was last taken."""

    def take(self, event: ModelEvent) -> int | None:
        """Fold one event in. Returns the history sequence of the entry it belongs to, for a stream event that has one."""
        match event:
            case ItemStarted(item=item, type=type_, id=item_id):
                self._open[item] = _Open(self._number(), item_id, type_)
            case StreamEvent(item=item, text=text):
                return self._heard(item, text)
            case ItemDone(item=item, payload=payload, call=call):
                opened = self._open.pop(item, None)
                self.finished.append(history.entry_of(payload, opened.number if opened else self._number()))
                if call is not None:
                    self.calls.append(Proposed(call.call_id, call.name, call.kind, call.arguments))
            case Completed(usage=usage):
                self.usage = usage
        return None

    def sayable(self) -> list[NewEntry]:
        """Return the finished items that may enter history before the reply ends: those in front of the first call."""
        return list(takewhile(lambda entry: entry.kind != "tool_call", self.finished))

    def committed(self, count: int) -> None:
        """Forget the first `count` finished items: they are in history."""
        del self.finished[:count]

    def unsaved(self) -> list[StreamedItem]:
        """Return the text of the items that are not finished, as a crash would leave it."""
        self.changed = False
        return [
            StreamedItem(number=item.number, item_id=item.item_id, text="".join(item.text))
            for item in self._open.values()
            if item.type == "message" and item.text
        ]

    def _heard(self, item: int | None, text: str) -> int | None:
        opened = self._open.get(item) if item is not None else None
        if opened is None:
            return None
        if text:
            opened.text.append(text)
            self.changed = True
        return opened.number
