"""Listening to a model through the port, and checking what every reply must be."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

from sessions_app import records
from sessions_app.runtime.models import (
    Completed,
    ItemDone,
    ItemStarted,
    Model,
    ModelEvent,
    ModelRequest,
    StreamEvent,
    ToolCall,
)


@dataclass
class Reply:
    """A reply as a reader of the port folds it."""

    events: list[ModelEvent] = field(default_factory=list)
    started: list[ItemStarted] = field(default_factory=list)
    items: list[records.ProviderItem] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    streamed: dict[int, str] = field(default_factory=dict)
    completed: Completed | None = None

    def add(self, event: ModelEvent) -> None:
        """Fold an event, and check what holds for each."""
        assert self.completed is None, "an event after the last one"
        self.events.append(event)
        match event:
            case ItemStarted():
                assert event.item == len(self.started), "items are numbered as they start"
                self.started.append(event)
            case StreamEvent():
                records.check_stream_event(event.payload)
                if event.item is not None:
                    assert event.item < len(self.started), "an event before its item started"
                    self.streamed[event.item] = self.streamed.get(event.item, "") + event.text
            case ItemDone():
                item = records.decode_item(event.payload)
                self.items.append(item)
                self.payloads.append(event.payload)
                if event.call is not None:
                    self.calls.append(event.call)
                if isinstance(item, records.OutputMessageItem):
                    assert "".join(part.text for part in item.content) == self.streamed[event.item]
            case Completed():
                self.completed = event

    @property
    def text(self) -> str:
        """The text of all messages."""
        messages = (item for item in self.items if isinstance(item, records.OutputMessageItem))
        return "".join(part.text for message in messages for part in message.content)

    @property
    def thoughts(self) -> str:
        """The text of all reasoning."""
        reasoning = (item for item in self.items if isinstance(item, records.ReasoningItem))
        return "".join(part.text for item in reasoning for part in item.summary)


async def hear(model: Model, request: ModelRequest, reply: Reply | None = None) -> Reply:
    """Ask `model` and listen to the end; with `reply`, what was heard is there even when it breaks off."""
    reply = reply if reply is not None else Reply()
    async with aclosing(model.stream(request)) as events:
        async for event in events:
            reply.add(event)
    return reply
