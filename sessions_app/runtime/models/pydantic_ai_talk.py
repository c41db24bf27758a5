"""Talking with a model through pydantic-ai.

Owns telling history in its messages, its stream as a reply and its errors in our words. Does not own which
models there are (`pydantic_ai`). Imports the library at the top, so it is itself imported at first use.

Nothing of the history is lost on the way: what a provider wants back with a part (`_Seal`) travels in the
reasoning item that the part became or, for an answer or a call, whose items have no room for it, in a
reasoning item of its own behind it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TypeAlias, cast

import msgspec
from msgspec import Raw, Struct
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as Heard
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse, infer_model
from pydantic_ai.models.openai import OpenAIStreamedResponse
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage
from pydantic_core import from_json, to_json

from sessions_app import records
from sessions_app.encoding import encode
from sessions_app.runtime.models.compose import OpenItem, ReplyWriter, parameters, wrap
from sessions_app.runtime.models.failures import broken_off, failure, from_status, shown
from sessions_app.runtime.models.items import Image, SealedReasoning, is_object, parts, runs
from sessions_app.runtime.models.port import ErrorReason, ModelError, ModelEvent, ModelRequest, Usage
from sessions_app.runtime.models.sdk import ClientOptions

_ENDLESS = {"snowflake"}
"""Providers that resemble OpenAI but never say that a reply is complete."""


def make(name: str) -> Model:
    """Return the model `provider:model`. Raises ModelError for a provider that is unknown or not set up."""
    provider = name.partition(":")[0]
    reason: ErrorReason
    try:
        infer_provider_class(provider)
        return infer_model(name)
    except ValueError:
        reason, state = "provider_refused", "is not known"
    except ImportError:
        reason, state = "provider_refused", "is not installed: its library is missing"
    except exceptions.UserError:
        reason, state = "provider_auth", "is not set up: its key or address is missing"
    raise ModelError(reason, f"The model provider {provider!r} {state}", retryable=False)


async def ask(
    made: Model, name: str, request: ModelRequest, options: ClientOptions
) -> AsyncGenerator[ModelEvent, None]:
    """Ask the model that `make` made of `name` and yield its events. Raises ModelError."""
    reply = ReplyWriter(name.partition(":")[2], request)
    reader = _Reader(reply)
    opened = model_request_stream(
        made,
        list(_messages(request.items)),
        model_settings=_settings(request, options),
        model_request_parameters=ModelRequestParameters(function_tools=_tools(request)),
    )
    try:
        async with opened as stream:
            yield reply.begin()
            async for event in stream:
                for told in reader.read(event):
                    yield told
            for told in reader.end(stream):
                yield told
    except (exceptions.AgentRunError, exceptions.UserError) as error:
        raise _failure(error) from None  # Its text may quote the key or the prompt.


def _settings(request: ModelRequest, options: ClientOptions) -> ModelSettings:
    given = {
        "max_tokens": request.max_output_tokens,
        "max_retries": options.max_retries,
        "parallel_tool_calls": True if request.tools else None,
        "temperature": request.temperature,
        "thinking": False if request.reasoning_effort == "none" else request.reasoning_effort,
        "timeout": options.silence_s,
    }
    return cast("ModelSettings", {name: value for name, value in given.items() if value is not None})


def _tools(request: ModelRequest) -> list[ToolDefinition]:
    return [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=from_json(bytes(parameters(tool))),
        )
        for tool in request.tools
    ]


class _Seal(Struct, frozen=True, omit_defaults=True):
    """What the provider wants back with a part; `of` is the id of the answer or call that it goes with,
    empty for the reasoning that it stands in."""

    provider: str | None = None
    id: str | None = None
    signature: str | None = None
    details: Raw = Raw(b"null")
    of: str = ""


_read_seal = msgspec.json.Decoder(_Seal).decode


def _messages(items: Sequence[bytes]) -> Iterator[ModelMessage]:
    """Yield a history as the library's messages."""
    names: dict[str, str] = {}
    for speaker, run in runs(items):
        if speaker == "assistant":
            said = _said(run)
            names |= {part.tool_call_id: part.tool_name for part in said if isinstance(part, ToolCallPart)}
            yield ModelResponse(parts=[*said])
        else:
            yield Heard(parts=[part for item in run for part in _heard(item, names)])


def _heard(item: records.ProviderItem, names: dict[str, str]) -> Iterator[ModelRequestPart]:
    match item:
        case records.InputMessageItem(role="user"):
            yield UserPromptPart(_content(parts(item.content)))
        case records.InputMessageItem():
            yield SystemPromptPart("".join(part for part in parts(item.content) if isinstance(part, str)))
        case records.FunctionCallOutputItem() | records.CustomToolCallOutputItem():
            name = names.get(item.call_id, "unknown")
            yield ToolReturnPart(name, _content(parts(item.output)), item.call_id)


def _content(content: Iterator[str | Image]) -> str | list[str | BinaryContent | ImageUrl]:
    told = [part if isinstance(part, str) else _image(part) for part in content]
    return told[0] if len(told) == 1 and isinstance(told[0], str) else told


def _image(image: Image) -> BinaryContent | ImageUrl:
    return BinaryContent.from_data_uri(image.url) if image.url.startswith("data:") else ImageUrl(image.url)


_Part: TypeAlias = TextPart | ThinkingPart | ToolCallPart


def _said(run: Iterator[records.ProviderItem]) -> list[_Part]:
    """Return the parts of a run of the assistant's items; what another adapter sealed has none."""
    said: list[_Part] = []
    by_id: dict[str, _Part] = {}
    for item in run:
        match item:
            case records.OutputMessageItem():
                by_id[item.id] = TextPart("".join(part.text for part in item.content))
                said.append(by_id[item.id])
            case records.InputMessageItem():
                said.append(TextPart("".join(part for part in parts(item.content) if isinstance(part, str))))
            case records.FunctionCallItem() | records.CustomToolCallItem():
                arguments = item.arguments if isinstance(item, records.FunctionCallItem) else wrap(item.input)
                by_id[item.call_id] = ToolCallPart(item.name, arguments, item.call_id)
                said.append(by_id[item.call_id])
            case SealedReasoning(pydantic_ai=Raw() as raw):
                seal = _read_seal(raw)
                if not seal.of:
                    thought = "".join(paragraph.text for paragraph in item.summary)
                    said.append(_unseal(ThinkingPart(thought, signature=seal.signature), seal))
                elif seal.of in by_id:  # Else deleted from the history.
                    _unseal(by_id[seal.of], seal)
    return said


def _unseal(part: _Part, seal: _Seal) -> _Part:
    part.id, part.provider_name, part.provider_details = (
        seal.id,
        seal.provider,
        from_json(bytes(seal.details)),
    )
    return part


class _Reader:
    """Turns the events of one response into those of the port.

    The library ends the last part when the stream does, however that was; so the end of each part is held
    until something follows it or the reply turns out to be complete.
    """

    def __init__(self, reply: ReplyWriter) -> None:
        self._reply = reply
        self._open: dict[int, OpenItem] = {}
        self._held: PartEndEvent | None = None

    def read(self, event: object) -> Iterator[ModelEvent]:
        """Yield what an event means; a part that no item stands for (a file, a tool of the provider) means
        nothing."""
        match event:
            case PartStartEvent():
                yield from self._release()
                yield from self._start(event.index, event.part)
            case PartDeltaEvent() if event.index in self._open:
                if text := _gained(event.delta):
                    yield from self._open[event.index].add(text)
            case PartEndEvent() if event.index in self._open:
                yield from self._release()
                self._held = event

    def end(self, stream: StreamedResponse) -> Iterator[ModelEvent]:
        """Yield the end of the reply. Raises ModelError when the provider did not end it or filtered it."""
        if not _ended(stream):
            raise broken_off("ended the reply")
        truncated = stream.finish_reason == "length"
        yield from self._release(truncated=truncated)
        if stream.finish_reason == "content_filter":
            raise failure("provider_refused", (stream.finish_reason,))
        yield from self._reply.end(_usage(stream.usage), truncated=truncated)

    def _start(self, index: int, part: ModelResponsePart) -> Iterator[ModelEvent]:
        match part:
            case TextPart():
                item, text = self._reply.message(), part.content
            case ThinkingPart():
                item, text = self._reply.reasoning(), part.content
            case ToolCallPart():
                item = self._reply.call(part.tool_name, part.tool_call_id)
                text = part.args if isinstance(part.args, str) else ""  # An object may still grow.
            case _:
                return
        self._open[index] = item
        yield from item.begin()
        if text:
            yield from item.add(text)

    def _release(self, *, truncated: bool = False) -> Iterator[ModelEvent]:
        """End the part that was held; when the reply was `truncated` behind it, not half a call."""
        if self._held is None:
            return
        item, part = self._open.pop(self._held.index), self._held.part
        self._held = None
        if isinstance(part, ToolCallPart) and isinstance(part.args, dict):
            yield from item.add(to_json(part.args).decode())
        if truncated and isinstance(part, ToolCallPart) and not is_object(item.text):
            return
        if isinstance(part, ThinkingPart):
            seal = _Seal(part.provider_name, part.id, part.signature, _details(part))
            yield from item.end(pydantic_ai=Raw(encode(seal)))
            return
        yield from item.end()
        if isinstance(part, TextPart | ToolCallPart) and (part.id or part.provider_details):
            of = part.tool_call_id if isinstance(part, ToolCallPart) else item.id
            seal = _Seal(part.provider_name, part.id, None, _details(part), of)
            carrier = self._reply.reasoning()
            yield from carrier.begin()
            yield from carrier.end(pydantic_ai=Raw(encode(seal)))


def _details(part: _Part) -> Raw:
    return Raw(to_json(part.provider_details))


def _gained(delta: object) -> str:
    match delta:
        case TextPartDelta():
            return delta.content_delta
        case ThinkingPartDelta():
            return delta.content_delta or ""
        case ToolCallPartDelta(args_delta=str(arguments)):
            return arguments
        case _:
            return ""


def _ended(stream: StreamedResponse) -> bool:
    """Say whether the provider said that the reply is complete.

    For servers that resemble OpenAI the library makes up a reason to finish where there is none; it keeps a
    true one in the details as well.
    """
    if isinstance(stream, OpenAIStreamedResponse) and stream.provider_name not in _ENDLESS:
        return bool((stream.provider_details or {}).get("finish_reason"))
    return stream.finish_reason is not None


def _usage(usage: RequestUsage) -> Usage:
    return Usage(
        usage.input_tokens,
        usage.output_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
        reasoning=usage.output_reasoning_tokens,
    )


def _failure(error: exceptions.AgentRunError | exceptions.UserError) -> ModelError:
    """Return the error for what the library raised."""
    codes = shown(getattr(error, "provider_error_code", None), getattr(error, "provider_error_type", None))
    match error:
        case exceptions.ModelContextWindowExceededError():
            return failure("context_overflow", codes)
        case exceptions.ModelQuotaExceededError():
            return failure("provider_limit", codes)
        case exceptions.ModelHTTPError():
            return from_status(error.status_code, error.body)
        case exceptions.ModelAuthenticationError():
            return failure("provider_auth", codes)
        case exceptions.ModelRateLimitError():
            return failure("provider_limit", codes, retryable=True)
        case (
            exceptions.ModelRequestRejectedError() | exceptions.ContentFilterError() | exceptions.UserError()
        ):
            return failure("provider_refused", codes)
        case _:
            return failure("provider_unavailable", codes, retryable=True)
