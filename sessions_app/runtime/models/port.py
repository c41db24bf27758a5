"""The model port: what the turn loop asks for and what it gets back.

Owns the shapes that cross the port and the one error that leaves it. Does not own any provider's dialect
(the adapters) or the choice between them (`registry`). The item language on both sides is that of history:
encoded OpenAI Responses items (wire 6).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

ToolKind: TypeAlias = Literal["function", "custom"]
ErrorReason: TypeAlias = Literal[
    "provider_auth", "provider_limit", "provider_unavailable", "provider_refused", "context_overflow"
]


class ModelError(Exception):
    """A request that a provider did not answer, or stopped answering.

    `reason` is one of the model reasons of `turn_finished.error` (spec 8), `retryable` says whether the same
    request may succeed later, and `message` is a sentence of ours that is safe to show: it never quotes the
    provider. `codes` are the provider's own identifiers for what went wrong.
    """

    def __init__(
        self, reason: ErrorReason, message: str, *, retryable: bool, codes: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retryable = retryable
        self.codes = codes


class ToolSpec(msgspec.Struct, frozen=True):
    """A tool offered to the model; `parameters` is the encoded JSON Schema of a function tool's arguments."""

    name: str
    description: str
    parameters: bytes = b'{"type":"object","properties":{}}'
    kind: ToolKind = "function"


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a model.

    `items` is the history as stored, oldest first, each an encoded item with images inlined. `cache_key` is
    the session's id: requests with the same one share a prefix (behaviour 17.5). What is None is left to the
    provider.
    """

    items: Sequence[bytes]
    tools: tuple[ToolSpec, ...] = ()
    temperature: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    cache_key: str | None = None


class ItemStarted(msgspec.Struct, frozen=True):
    """The model begins its output item number `item`; `id` is the provider's id of it, `type` its item
    type."""

    item: int
    type: str
    id: str


class StreamEvent(msgspec.Struct, frozen=True):
    """A provider stream event for live readers, encoded in the wire shape `ProviderStreamEvent`.

    `item` is the output item that it belongs to, or None for the response as a whole. `text` is what it adds
    to the text of an output message: the `text` of all events of an item, in order, is the text of its
    finished message.
    """

    payload: bytes
    item: int | None = None
    text: str = ""


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model asks for; `arguments` is JSON text, for a custom tool its free-form input."""

    call_id: str
    name: str
    arguments: str
    kind: ToolKind


class ItemDone(msgspec.Struct, frozen=True):
    """Output item number `item` is finished: `payload` is an encoded `ProviderItem`, `call` is set when it
    is a tool call."""

    item: int
    payload: bytes
    call: ToolCall | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request. `input` includes what was read from and written to a cache, `output` includes
    reasoning."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


class Completed(msgspec.Struct, frozen=True):
    """The model is done. `truncated`: it stopped at the output limit, so its last item may be unfinished."""

    usage: Usage
    truncated: bool = False


ModelEvent: TypeAlias = ItemStarted | StreamEvent | ItemDone | Completed
"""What a stream yields: per item `ItemStarted`, its `StreamEvent`s and `ItemDone`. Items are numbered from 0 in the order in which
they start, and are done in that order. The last event of a stream that ends without an error is `Completed`, exactly once.

Not every item that started gets done: a tool call that the output limit cut off never is, because half a call must not run."""


class Model(Protocol):
    """A model that can be asked."""

    @property
    def name(self) -> str:
        """The full name, `provider:model`."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask the model and yield its events as they arrive.

        Raises ModelError. Closing the generator, or cancelling the task inside it, closes the provider's
        connection, so iterate inside `contextlib.aclosing`. The library repeats a request that failed before
        any output; nothing repeats one that has begun to answer.
        """
