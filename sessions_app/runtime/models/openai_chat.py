"""OpenAI's chat completions and the many servers that speak only those.

Owns telling history as chat messages and a chat stream as a reply. Does not own HTTP (`sdk`).

Nothing of the history is lost on the way, though chat has fewer words: consecutive items of the assistant
are one message; images in a tool's output follow the outputs as a user message; a custom tool is a function
of one argument; reasoning goes back only to the kind of server it came from, in the member in which it came;
what a server adds to a call goes back with it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from sessions_app import records
from sessions_app.encoding import encode
from sessions_app.ids import new_id
from sessions_app.runtime.models.compose import OpenItem, ReplyWriter, parameters, wrap
from sessions_app.runtime.models.failures import ProviderError, broken_off, failure, from_stream
from sessions_app.runtime.models.items import ChatSeal, Image, SealedReasoning, is_object, parts, runs
from sessions_app.runtime.models.port import ModelEvent, ModelRequest, Usage
from sessions_app.runtime.models.sdk import Endpoint

_REASONING = ("reasoning_content", "reasoning")
"""The members in which servers send reasoning and, once they did, take it back; OpenAI itself does
neither."""


class OpenAIChat:
    """The adapter of `openai-chat:`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def stream(self, model: str, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask `model`; see `port.Model.stream`."""
        reply = ReplyWriter(model, request)
        reader = _Reader(reply)
        async with aclosing(await self._endpoint.post("/chat/completions", _body(model, request))) as answer:
            yield reply.begin()
            async for data in answer:
                for event in reader.read(data):
                    yield event
        for event in reader.end():
            yield event

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()


class _Text(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class _ImageUrl(Struct, frozen=True, omit_defaults=True):
    url: str
    detail: str | None = None


class _ImagePart(Struct, frozen=True, tag_field="type", tag="image_url"):
    image_url: _ImageUrl


_Content: TypeAlias = "str | tuple[_Text | _ImagePart, ...]"


class _Function(Struct, frozen=True):
    name: str
    arguments: str


class _Call(Struct, frozen=True, tag_field="type", tag="function"):
    id: str
    function: _Function
    extra_content: Raw | UnsetType = UNSET


class _Message(Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str
    content: _Content | None = None
    tool_calls: tuple[_Call, ...] = ()
    tool_call_id: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class _Definition(Struct, frozen=True):
    name: str
    description: str
    parameters: Raw


class _Tool(Struct, frozen=True, tag_field="type", tag="function"):
    function: _Definition


class _StreamOptions(Struct, frozen=True):
    include_usage: bool = True


class _Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    model: str
    messages: tuple[_Message, ...]
    stream: bool
    stream_options: _StreamOptions
    max_completion_tokens: int | None = None
    parallel_tool_calls: bool | UnsetType = UNSET
    prompt_cache_key: str | None = None
    reasoning_effort: str | None = None
    temperature: float | None = None
    tools: tuple[_Tool, ...] = ()


def _body(model: str, request: ModelRequest) -> bytes:
    tools = (_Definition(tool.name, tool.description, parameters(tool)) for tool in request.tools)
    return encode(
        _Request(
            model=model,
            messages=tuple(_messages(request.items)),
            stream=True,
            stream_options=_StreamOptions(),
            max_completion_tokens=request.max_output_tokens,
            parallel_tool_calls=True if request.tools else UNSET,
            prompt_cache_key=request.cache_key,
            reasoning_effort=request.reasoning_effort,
            temperature=request.temperature,
            tools=tuple(_Tool(tool) for tool in tools),
        )
    )


def _messages(items: Sequence[bytes]) -> Iterator[_Message]:
    """Yield a history as chat messages."""
    for speaker, run in runs(items):
        if speaker == "assistant":
            yield _answer(run)
        elif speaker == "tool":
            yield from _outputs(run)
        else:
            for item in run:
                if isinstance(item, records.InputMessageItem):
                    yield _Message(role=item.role, content=_content(tuple(parts(item.content))))


def _answer(run: Iterator[records.ProviderItem]) -> _Message:
    """Return the message of a run of the assistant; what another adapter sealed, and searches, are left
    out."""
    texts: list[str] = []
    calls: dict[str, _Call] = {}
    reasoning: dict[str, str] = {}
    for item in run:
        match item:
            case records.OutputMessageItem():
                texts += [part.text for part in item.content]
            case records.InputMessageItem():
                texts += [part for part in parts(item.content) if isinstance(part, str)]
            case records.FunctionCallItem() | records.CustomToolCallItem():
                arguments = item.arguments if isinstance(item, records.FunctionCallItem) else wrap(item.input)
                calls[item.call_id] = _Call(item.call_id, _Function(item.name, arguments))
            case SealedReasoning(chat=ChatSeal() as seal):
                if seal.member in _REASONING:
                    reasoning[seal.member] = "".join(part.text for part in item.summary)
                if seal.of in calls:
                    calls[seal.of] = msgspec.structs.replace(calls[seal.of], extra_content=seal.extra)
    content = "".join(texts) or None
    return _Message(role="assistant", content=content, tool_calls=tuple(calls.values()), **reasoning)


def _outputs(run: Iterator[records.ProviderItem]) -> Iterator[_Message]:
    images: list[str | Image] = []
    for item in run:
        if not isinstance(item, records.FunctionCallOutputItem | records.CustomToolCallOutputItem):
            continue
        output = tuple(parts(item.output))
        text = "".join(part for part in output if isinstance(part, str))
        found = [part for part in output if isinstance(part, Image)]
        if found:
            images += [f"Images from the tool call {item.call_id}:", *found]
        yield _Message(role="tool", tool_call_id=item.call_id, content=text)
    if images:  # After all outputs, since nothing may stand between calls and their outputs.
        yield _Message(role="user", content=_content(tuple(images)))


def _content(content: tuple[str | Image, ...]) -> _Content:
    """Return the content of a message: a string where it is one text, as some servers take nothing else."""
    match content:
        case (str() as text,):
            return text
        case _:
            return tuple(
                _Text(part) if isinstance(part, str) else _ImagePart(_ImageUrl(part.url, part.detail))
                for part in content
            )


class _FunctionDelta(Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: _FunctionDelta = _FunctionDelta()
    extra_content: Raw | UnsetType = UNSET


class _Delta(Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[_CallDelta, ...] | None = None


class _Choice(Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Details(Struct, frozen=True):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Chunk(Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    error: ProviderError | None = None


_read_chunk = msgspec.json.Decoder(_Chunk).decode


class _Reader:
    """Turns the chunks of one completion into events.

    A chat stream does not say when an item ends, and servers mix them at will, so all end together.
    """

    def __init__(self, reply: ReplyWriter) -> None:
        self._reply = reply
        self._open: dict[str | int, OpenItem] = {}
        self._call_ids: dict[int, str] = {}
        self._extra: dict[int, Raw] = {}
        self._finish: str | None = None
        self._usage = _Usage()

    def read(self, data: bytes) -> Iterator[ModelEvent]:
        """Yield what a chunk means, given its data. Raises ModelError when it says that the provider
        failed."""
        if data == b"[DONE]":
            return
        try:
            chunk = _read_chunk(data)
        except msgspec.DecodeError:
            raise broken_off("sent what is no event") from None
        if chunk.error is not None:
            raise from_stream(chunk.error)
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            self._finish = choice.finish_reason or self._finish
            yield from self._read_delta(choice.delta)

    def end(self) -> Iterator[ModelEvent]:
        """Yield the end of the reply. Raises ModelError when the provider did not end it or filtered it."""
        if self._finish is None:
            raise broken_off("ended the reply")
        truncated = self._finish == "length"
        for key, item in self._open.items():
            if truncated and key in self._call_ids and not is_object(item.text):
                continue  # Half a call.
            seal = {"chat": ChatSeal(member=str(key))} if key in _REASONING else {}
            yield from item.end(**seal)
        for key, extra in self._extra.items():
            carrier = self._reply.reasoning()
            yield from carrier.begin()
            yield from carrier.end(chat=ChatSeal(extra=extra, of=self._call_ids[key]))
        if self._finish == "content_filter":
            raise failure("provider_refused", (self._finish,))
        yield from self._reply.end(_usage(self._usage), truncated=truncated)

    def _read_delta(self, delta: _Delta) -> Iterator[ModelEvent]:
        for member in _REASONING:  # Under one name or the other, and from some servers under both.
            if text := getattr(delta, member):
                yield from self._add(member, self._reply.reasoning, text)
                break
        if text := delta.content or delta.refusal:
            yield from self._add("content", self._reply.message, text)
        for call in delta.tool_calls or ():
            yield from self._read_call(call)

    def _read_call(self, call: _CallDelta) -> Iterator[ModelEvent]:
        key = call.index
        if key is None:  # Some servers send each call whole, or its id with its first piece.
            key = len(self._call_ids) if call.id or not self._call_ids else [*self._call_ids][-1]
        call_id = self._call_ids.setdefault(key, call.id or new_id("call"))
        name = call.function.name or ""
        yield from self._add(key, lambda: self._reply.call(name, call_id), call.function.arguments or "")
        if call.extra_content is not UNSET:
            self._extra[key] = Raw(bytes(call.extra_content))  # A copy: the other keeps all of the chunk.

    def _add(self, key: str | int, opened: Callable[[], OpenItem], text: str) -> Iterator[ModelEvent]:
        item = self._open.get(key)
        if item is None:
            item = self._open[key] = opened()
            yield from item.begin()
        if text:
            yield from item.add(text)


def _usage(usage: _Usage) -> Usage:
    cached = usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens
    reasoning = usage.completion_tokens_details and usage.completion_tokens_details.reasoning_tokens
    return Usage(
        usage.prompt_tokens, usage.completion_tokens, cache_read=cached or 0, reasoning=reasoning or 0
    )
