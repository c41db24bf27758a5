"""Anthropic's messages.

Owns telling history as messages and a message stream as a reply. Does not own HTTP (`sdk`) or what each
Claude model accepts, which pydantic-ai's profiles know.

Nothing of the history is lost on the way: a thinking block comes back with its signature, a redacted one
whole; a custom tool is a function of one argument; instructions that come later than the first message are
marked as such inside a user message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

from sessions_app import records
from sessions_app.encoding import encode
from sessions_app.runtime.models.anthropic_stream import MessageReader
from sessions_app.runtime.models.compose import ReplyWriter, parameters, wrap
from sessions_app.runtime.models.failures import THINKING_REFUSED
from sessions_app.runtime.models.items import (
    AnthropicSeal,
    Image,
    SealedReasoning,
    is_object,
    parts,
    runs,
)
from sessions_app.runtime.models.port import ModelError, ModelEvent, ModelRequest
from sessions_app.runtime.models.sdk import Answer, Endpoint

_MAX_TOKENS = 16384
"""Sent for a model whose bound is unknown, since a request must name one."""
_LEGACY_MAX_TOKENS = 4096
"""Sent for models that refuse input plus this beyond their window."""
_ANSWER_TOKENS = 4096
"""The room left for the answer behind a thinking budget."""


class Anthropic:
    """The adapter of `anthropic:`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._profiles: dict[str, Profile] = {}

    async def stream(self, model: str, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask `model`; see `port.Model.stream`."""
        reply = ReplyWriter(model, request)
        reader = MessageReader(reply)
        async with aclosing(await self._post(model, request)) as answer:
            yield reply.begin()
            async for data in answer:
                for event in reader.read(data):
                    yield event
        for event in reader.end():
            yield event

    async def _post(self, model: str, request: ModelRequest) -> Answer:
        """Post the request; where the API refuses thinking blocks (those of another model, say), once more
        without."""
        if model not in self._profiles:  # In a thread, for the import.
            self._profiles[model] = await asyncio.to_thread(_profile, model)
        profile = self._profiles[model]
        try:
            return await self._endpoint.post("/v1/messages", _body(model, request, profile, plain=False))
        except ModelError as error:
            if THINKING_REFUSED not in error.codes:
                raise
        return await self._endpoint.post("/v1/messages", _body(model, request, profile, plain=True))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()


class _Thinking(Struct, frozen=True, omit_defaults=True):
    type: Literal["adaptive", "enabled"]
    budget_tokens: int | UnsetType = UNSET


class _OutputConfig(Struct, frozen=True):
    effort: str


class _CacheControl(Struct, frozen=True, tag_field="type", tag="ephemeral"):
    """Lets the API reuse what it read of the same prefix before."""


class _Tool(Struct, frozen=True):
    name: str
    description: str
    input_schema: Raw


class _Text(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class _UrlSource(Struct, frozen=True, tag_field="type", tag="url"):
    url: str


class _DataSource(Struct, frozen=True, tag_field="type", tag="base64"):
    media_type: str
    data: str


class _Image(Struct, frozen=True, tag_field="type", tag="image"):
    source: _UrlSource | _DataSource


class _ThinkingBlock(Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class _RedactedBlock(Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    data: str


class _ToolUse(Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw


class _ToolResult(Struct, frozen=True, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: tuple[_Text | _Image, ...]


_Block: TypeAlias = _Text | _Image | _ThinkingBlock | _RedactedBlock | _ToolUse | _ToolResult


class _Message(Struct, frozen=True):
    role: Literal["user", "assistant"]
    content: tuple[_Block, ...]


class _Request(Struct, frozen=True, kw_only=True, omit_defaults=True):
    model: str
    max_tokens: int
    stream: bool
    messages: list[_Message]
    system: tuple[_Block, ...] = ()
    cache_control: _CacheControl
    output_config: _OutputConfig | UnsetType = UNSET
    temperature: float | None = None
    thinking: _Thinking | UnsetType = UNSET
    tools: tuple[_Tool, ...] = ()


Profile: TypeAlias = Mapping[str, Any]
"""What pydantic-ai knows of a model, by its names; a name that is missing means no."""


def _profile(model: str) -> Profile:
    from pydantic_ai.profiles.anthropic import anthropic_model_profile

    return anthropic_model_profile(model) or {}


def _body(model: str, request: ModelRequest, profile: Profile, *, plain: bool) -> bytes:
    """Return the encoded request; `plain` leaves out thinking, earlier and new."""
    system, messages = _conversation(request.items, plain=plain)
    thinking = UNSET if plain else _thinking(request.reasoning_effort, profile)
    fixed = thinking is not UNSET or profile.get("anthropic_disallows_sampling_settings")
    return encode(
        _Request(
            model=model,
            max_tokens=request.max_output_tokens or _max_tokens(thinking, profile),
            stream=True,
            messages=messages,
            system=system,
            cache_control=_CacheControl(),
            output_config=_effort(request.reasoning_effort, profile),
            temperature=None if fixed else request.temperature,
            thinking=thinking,
            tools=tuple(_Tool(tool.name, tool.description, parameters(tool)) for tool in request.tools),
        )
    )


def _thinking(effort: str | None, profile: Profile) -> _Thinking | UnsetType:
    from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP

    if effort is None or effort == "none":
        return UNSET
    if profile.get("anthropic_supports_adaptive_thinking"):
        return _Thinking("adaptive")
    budgets: Mapping[Any, int] = ANTHROPIC_THINKING_BUDGET_MAP
    return _Thinking("enabled", budgets.get(effort, budgets["medium"]))


def _effort(effort: str | None, profile: Profile) -> _OutputConfig | UnsetType:
    from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_EFFORT_MAP, resolve_anthropic_effort

    if effort not in ANTHROPIC_THINKING_EFFORT_MAP or not profile.get("anthropic_supports_effort"):
        return UNSET
    return _OutputConfig(
        resolve_anthropic_effort(
            effort,
            supports_xhigh=bool(profile.get("anthropic_supports_xhigh_effort")),
            supports_max=bool(profile.get("anthropic_supports_max_effort")),
        )
    )


def _max_tokens(thinking: _Thinking | UnsetType, profile: Profile) -> int:
    """Return the model's own bound, so that nothing but it cuts an answer; a thinking budget counts toward
    it."""
    if profile.get("anthropic_rejects_max_tokens_beyond_context_window"):
        bound = _LEGACY_MAX_TOKENS
    else:
        bound = profile.get("anthropic_max_output_tokens") or _MAX_TOKENS
    budget = 0 if thinking is UNSET or thinking.budget_tokens is UNSET else thinking.budget_tokens
    return max(bound, budget + _ANSWER_TOKENS)


def _conversation(items: Sequence[bytes], *, plain: bool) -> tuple[tuple[_Block, ...], list[_Message]]:
    """Return the instructions that a history begins with, and the rest as messages."""
    system: tuple[_Block, ...] = ()
    messages: list[_Message] = []
    for speaker, run in runs(items):
        if speaker == "assistant":
            blocks = tuple(block for item in run for block in _spoken(item, plain=plain))
        else:
            blocks = tuple(block for item in run for block in _heard(item))
        if speaker == "system" and not messages:
            system += blocks
        elif speaker == "system":
            messages.append(_Message("user", (_Text("<system>"), *blocks, _Text("</system>"))))
        elif blocks:
            messages.append(_Message("assistant" if speaker == "assistant" else "user", blocks))
    return system, messages


def _spoken(item: records.ProviderItem, *, plain: bool) -> Iterator[_Block]:
    """Yield the blocks of an item of the assistant; what another provider sealed has none. Empty text is
    refused."""
    match item:
        case records.OutputMessageItem():
            yield from (_Text(part.text) for part in item.content if part.text)
        case records.InputMessageItem():
            yield from (_Text(part) for part in parts(item.content) if isinstance(part, str) and part)
        case records.FunctionCallItem():
            arguments = item.arguments if is_object(item.arguments) else wrap(item.arguments)
            yield _ToolUse(item.call_id, item.name, Raw(arguments.encode()))
        case records.CustomToolCallItem():
            yield _ToolUse(item.call_id, item.name, Raw(wrap(item.input).encode()))
        case SealedReasoning(anthropic=AnthropicSeal() as seal) if not plain:
            if seal.redacted:
                yield _RedactedBlock(seal.redacted)
            else:
                yield _ThinkingBlock("".join(part.text for part in item.summary), seal.signature)


def _heard(item: records.ProviderItem) -> Iterator[_Block]:
    """Yield the blocks of an item that is for the model."""
    match item:
        case records.InputMessageItem():
            yield from _content(parts(item.content))
        case records.FunctionCallOutputItem() | records.CustomToolCallOutputItem():
            yield _ToolResult(item.call_id, tuple(_content(parts(item.output))))


def _content(content: Iterator[str | Image]) -> Iterator[_Text | _Image]:
    for part in content:
        if isinstance(part, Image):
            yield _Image(_source(part.url))
        elif part:
            yield _Text(part)


def _source(url: str) -> _UrlSource | _DataSource:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:"):
        return _UrlSource(url)
    return _DataSource(head.removeprefix("data:").partition(";")[0], data)
