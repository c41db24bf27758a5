"""What a scripted model server says: the steps of a reply, and how each provider's dialect streams them.

Owns the script language and its three renderings. Does not own connections (`model_servers`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec


@dataclass(frozen=True)
class Wait:
    """Send nothing until the test calls `server.open(gate)`."""

    gate: str


@dataclass(frozen=True)
class Pause:
    """Send nothing for `seconds`."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """Send nothing until the client hangs up."""


@dataclass(frozen=True)
class Drop:
    """Reset the connection."""


@dataclass(frozen=True)
class End:
    """End the response properly, without the events that say that the reply is complete."""


@dataclass(frozen=True)
class Break:
    """Send an error inside the stream, then end it."""

    code: str
    message: str = "broken on purpose"


@dataclass(frozen=True)
class Event:
    """Send this event as it is."""

    data: dict[str, Any]


Control: TypeAlias = Wait | Pause | Hang | Drop | End | Break | Event


class _Spoken:
    """Something sent in chunks, with controls between them."""

    def __init__(self, chunks: tuple[str | Control, ...]) -> None:
        self.chunks = chunks
        self.text = "".join(chunk for chunk in chunks if isinstance(chunk, str))


class Text(_Spoken):
    """An output message, sent in these chunks."""

    def __init__(self, *chunks: str | Control) -> None:
        super().__init__(chunks)


class Thought(_Spoken):
    """Reasoning, sent in these chunks; `seal` is what the provider wants back unchanged, all there is if
    `redacted`."""

    def __init__(self, *chunks: str | Control, seal: str = "sealed", redacted: bool = False) -> None:
        super().__init__(chunks)
        self.redacted = redacted
        self.seal = seal


class Call(_Spoken):
    """A tool call whose arguments are sent in these chunks; `extra` is what some chat servers add to one."""

    def __init__(
        self, name: str, *chunks: str | Control, call_id: str = "", custom: bool = False, extra: object = None
    ) -> None:
        super().__init__(chunks or ("{}",))
        self.name = name
        self.call_id = call_id or f"call_{next(_serial)}"
        self.custom = custom
        self.extra = extra


Step: TypeAlias = Text | Thought | Call | Control


class Reply:
    """A streamed answer: its steps in order. `truncated`: it stops at the output limit; `filtered`: at a filter."""

    def __init__(self, *steps: Step, truncated: bool = False, filtered: bool = False) -> None:
        self.steps = steps
        self.truncated = truncated
        self.filtered = filtered


@dataclass(frozen=True)
class Fail:
    """An HTTP error in the provider's own shape, or with another `body`."""

    status: int
    code: str = "broken"
    message: str = "broken on purpose"
    param: str | None = None
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)


Answer: TypeAlias = Reply | Fail

_serial = itertools.count(1)
_encode = msgspec.json.Encoder().encode


def words(count: int) -> Text:
    """Return a message of `count` chunks."""
    return Text(*(f"word{number} " for number in range(count)))


def render(reply: Reply, path: str, model: str) -> Iterator[bytes | Control]:
    """Render a reply in the dialect of the endpoint `path`: encoded events, and controls where they stand."""
    dialect = path.rpartition("/")[2]
    renderer = {"responses": _responses, "completions": _chat, "messages": _messages}[dialect]
    return (_event(part.data) if isinstance(part, Event) else part for part in renderer(reply, model))


def error_body(fail: Fail | Break, path: str) -> bytes:
    """Return the body of an error answer in the dialect of the endpoint `path`."""
    if isinstance(fail, Fail) and fail.body is not None:
        return fail.body
    return _encode(_messages_error(fail) if path.endswith("/messages") else _openai_error(fail))


def _over(chunks: Iterable[str | Control], event: Callable[[str], bytes]) -> Iterator[bytes | Control]:
    for chunk in chunks:
        yield event(chunk) if isinstance(chunk, str) else chunk


def _event(data: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (str(data["type"]).encode(), _encode(data))


def _openai_error(fail: Fail | Break) -> dict[str, Any]:
    param = getattr(fail, "param", None)
    return {"error": {"message": fail.message, "type": "scripted", "code": fail.code, "param": param}}


def _messages_error(fail: Fail | Break) -> dict[str, Any]:
    return {"type": "error", "error": {"type": fail.code, "message": fail.message}}


def _responses(reply: Reply, model: str) -> Iterator[bytes | Control]:
    """Render for the OpenAI Responses API, with the members that only the real one sends."""
    sequence = itertools.count()

    def event(kind: str, **members: Any) -> bytes:
        return _event({"type": kind, "sequence_number": next(sequence), **members})

    response: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "model": model,
        "instructions": None,
        "tools": [],
    }
    started = {**response, "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response=started)
    yield event("response.in_progress", response=started)
    output: list[dict[str, Any]] = []
    for step in reply.steps:
        ended = "incomplete" if reply.truncated and step is reply.steps[-1] else "completed"
        if isinstance(step, Break):
            yield event("error", code=step.code, message=step.message, param=None)
            yield End()
        elif isinstance(step, Text):
            output.append((yield from _responses_text(step, ended, len(output), event)))
        elif isinstance(step, Thought):
            output.append((yield from _responses_thought(step, len(output), event)))
        elif isinstance(step, Call):
            output.append((yield from _responses_call(step, ended, len(output), event)))
        else:
            yield step
    usage = {"input_tokens": 100, "output_tokens": 20, "input_tokens_details": {"cached_tokens": 40}}
    usage["output_tokens_details"] = {"reasoning_tokens": 5}
    reason = "content_filter" if reply.filtered else "max_output_tokens" if reply.truncated else None
    status = "incomplete" if reason else "completed"
    final = {**response, "status": status, "output": output, "usage": usage}
    yield event(f"response.{status}", response={**final, "incomplete_details": reason and {"reason": reason}})


_Item: TypeAlias = Generator[bytes | Control, None, dict[str, Any]]


def _responses_text(step: Text, ended: str, index: int, event: Callable[..., bytes]) -> _Item:
    item = {"type": "message", "id": f"msg_{next(_serial)}", "role": "assistant", "status": ended}
    part = {"type": "output_text", "annotations": [], "logprobs": [], "text": step.text}
    at = {"item_id": item["id"], "output_index": index, "content_index": 0}
    yield event(
        "response.output_item.added",
        output_index=index,
        item={**item, "status": "in_progress", "content": []},
    )
    yield event("response.content_part.added", **at, part={**part, "text": ""})
    yield from _over(
        step.chunks, lambda chunk: event("response.output_text.delta", **at, delta=chunk, logprobs=[])
    )
    yield event("response.output_text.done", **at, text=step.text, logprobs=[])
    yield event("response.content_part.done", **at, part=part)
    whole = {**item, "content": [part]}
    yield event("response.output_item.done", output_index=index, item=whole)
    return whole


def _responses_thought(step: Thought, index: int, event: Callable[..., bytes]) -> _Item:
    item = {"type": "reasoning", "id": f"rs_{next(_serial)}"}
    part = {"type": "summary_text", "text": step.text}
    at = {"item_id": item["id"], "output_index": index, "summary_index": 0}
    yield event("response.output_item.added", output_index=index, item={**item, "summary": []})
    yield event("response.reasoning_summary_part.added", **at, part={**part, "text": ""})
    yield from _over(
        step.chunks, lambda chunk: event("response.reasoning_summary_text.delta", **at, delta=chunk)
    )
    yield event("response.reasoning_summary_text.done", **at, text=step.text)
    whole = {**item, "summary": [part], "encrypted_content": step.seal}
    yield event("response.output_item.done", output_index=index, item=whole)
    return whole


def _responses_call(step: Call, ended: str, index: int, event: Callable[..., bytes]) -> _Item:
    kind, member, prefix = (
        ("custom_tool_call", "input", "ctc") if step.custom else ("function_call", "arguments", "fc")
    )
    item = {"type": kind, "id": f"{prefix}_{next(_serial)}", "call_id": step.call_id, "name": step.name}
    at = {"item_id": item["id"], "output_index": index}
    yield event(
        "response.output_item.added", output_index=index, item={**item, member: "", "status": "in_progress"}
    )
    yield from _over(
        step.chunks,
        lambda chunk: event(f"response.{kind}_{member}.delta", **at, delta=chunk, obfuscation="x7"),
    )
    yield event(f"response.{kind}_{member}.done", **at, **{member: step.text})
    whole = {**item, member: step.text, "status": ended}
    yield event("response.output_item.done", output_index=index, item=whole)
    return whole


def _chat(reply: Reply, model: str) -> Iterator[bytes | Control]:
    """Render for OpenAI chat completions."""

    def data(**members: Any) -> bytes:
        return b"data: %s\n\n" % _encode({"id": "chatcmpl-1", "model": model, **members})

    def delta(finish: str | None = None, **members: Any) -> bytes:
        return data(choices=[{"index": 0, "delta": members, "finish_reason": finish}], usage=None)

    def arguments(index: int) -> Callable[[str], bytes]:
        return lambda chunk: delta(tool_calls=[{"index": index, "function": {"arguments": chunk}}])

    yield delta(role="assistant", content="")
    calls = 0
    for step in reply.steps:
        if isinstance(step, Break):
            yield b"data: %s\n\n" % _encode(_openai_error(step))
            yield End()
        elif isinstance(step, Text):
            yield from _over(step.chunks, lambda chunk: delta(content=chunk))
        elif isinstance(step, Thought):
            yield from _over(step.chunks, lambda chunk: delta(reasoning_content=chunk))
        elif isinstance(step, Call):
            call = {"index": calls, "id": step.call_id, "type": "function"}
            extra = {"extra_content": step.extra} if step.extra else {}
            yield delta(tool_calls=[{**call, **extra, "function": {"name": step.name, "arguments": ""}}])
            yield from _over(step.chunks, arguments(calls))
            calls += 1
        else:
            yield step
    stop = "tool_calls" if calls else "stop"
    yield delta("content_filter" if reply.filtered else "length" if reply.truncated else stop)
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 40}}
    yield data(choices=[], usage={**usage, "completion_tokens_details": {"reasoning_tokens": 5}})
    yield b"data: [DONE]\n\n"


def _messages(reply: Reply, model: str) -> Iterator[bytes | Control]:
    """Render for Anthropic messages."""
    usage = {"input_tokens": 50, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 10}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": model}
    yield _event({"type": "message_start", "message": {**message, "usage": {**usage, "output_tokens": 1}}})
    yield _event({"type": "ping"})
    blocks = itertools.count()
    for step in reply.steps:
        if isinstance(step, Break):
            yield _event(_messages_error(step))
            yield End()
        elif isinstance(step, Text | Thought | Call):
            yield from _messages_block(step, next(blocks))
        else:
            yield step
    called = any(isinstance(step, Call) for step in reply.steps)
    reason = "tool_use" if called else "end_turn"
    reason = "refusal" if reply.filtered else "max_tokens" if reply.truncated else reason
    yield _event({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 20}})
    yield _event({"type": "message_stop"})


def _messages_block(step: Text | Thought | Call, index: int) -> Iterator[bytes | Control]:
    block: dict[str, Any]
    match step:
        case Text():
            block, kind, member = {"type": "text", "text": ""}, "text_delta", "text"
        case Thought(redacted=True):
            block, kind, member = {"type": "redacted_thinking", "data": step.seal}, "", ""
        case Thought():
            block = {"type": "thinking", "thinking": "", "signature": ""}
            kind, member = "thinking_delta", "thinking"
        case Call():
            block = {"type": "tool_use", "id": step.call_id, "name": step.name, "input": {}}
            kind, member = "input_json_delta", "partial_json"

    def delta(**members: str) -> bytes:
        return _event({"type": "content_block_delta", "index": index, "delta": members})

    yield _event({"type": "content_block_start", "index": index, "content_block": block})
    yield from _over(step.chunks, lambda chunk: delta(**{"type": kind, member: chunk}))
    if isinstance(step, Thought) and not step.redacted:
        yield delta(type="signature_delta", signature=step.seal)
    yield _event({"type": "content_block_stop", "index": index})
