"""OpenAI's Responses API and whatever speaks it: the common path, whose items are our history.

Owns the request body, the reading of the stream and the few things in which a stored item and an accepted
one differ. Does not own HTTP (`sdk`). A request is stored items joined byte for byte, so that its cost
hardly grows with the history; an item is decoded only where the API would refuse it as it is (`_accepted`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from sessions_app import records
from sessions_app.encoding import encode
from sessions_app.runtime.models.failures import broken_off
from sessions_app.runtime.models.items import SealedReasoning, parts, read_item
from sessions_app.runtime.models.openai_responses_stream import ResponseReader
from sessions_app.runtime.models.port import ModelError, ModelEvent, ModelRequest
from sessions_app.runtime.models.sdk import Answer, Endpoint

_EXTRAS = {"include", "reasoning.summary", "invalid_encrypted_content"}
"""Codes and params by which the API refuses what we ask for on our own account: sealed reasoning and
summaries (models that do not reason, organisations that are not verified), and seals that it did not make
(another key, another server)."""


class _Tool(msgspec.Struct, frozen=True, omit_defaults=True):
    type: Literal["function", "custom"]
    name: str
    description: str
    parameters: Raw | UnsetType = UNSET
    strict: bool | UnsetType = UNSET


class _Reasoning(msgspec.Struct, frozen=True, omit_defaults=True):
    effort: str
    summary: str | UnsetType = UNSET


class _Parameters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request without its `input`."""

    model: str
    store: bool
    stream: bool
    include: tuple[str, ...] = ()
    max_output_tokens: int | None = None
    parallel_tool_calls: bool | UnsetType = UNSET
    prompt_cache_key: str | None = None
    reasoning: _Reasoning | UnsetType = UNSET
    temperature: float | None = None
    tools: tuple[_Tool, ...] = ()


class OpenAIResponses:
    """The adapter of `openai:` and `openai-responses:`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        # The models that refused the extras once. Without it each of their turns would ask twice.
        self._plain: set[str] = set()

    async def stream(self, model: str, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask `model`; see `port.Model.stream`."""
        reader = ResponseReader()
        async with aclosing(await self._post(model, request)) as answer:
            async for data in answer:
                for event in reader.read(data):
                    yield event
        if not reader.completed:
            raise broken_off("ended the reply")

    async def _post(self, model: str, request: ModelRequest) -> Answer:
        """Post the request; where the API refuses our extras, once more without them."""
        plain = model in self._plain
        try:
            return await self._endpoint.post("/responses", _body(model, request, plain=plain))
        except ModelError as error:
            if plain or _EXTRAS.isdisjoint(error.codes):
                raise
            if "invalid_encrypted_content" not in error.codes:
                self._plain.add(model)
        return await self._endpoint.post("/responses", _body(model, request, plain=True))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._endpoint.aclose()


def _body(model: str, request: ModelRequest, *, plain: bool) -> bytes:
    """Return the encoded request; `plain` leaves out the extras, so also reasoning that came sealed."""
    effort = request.reasoning_effort
    parameters = _Parameters(
        model=model,
        store=False,
        stream=True,
        include=() if plain or not (effort or _reasons(model)) else ("reasoning.encrypted_content",),
        max_output_tokens=request.max_output_tokens,
        parallel_tool_calls=True if request.tools else UNSET,
        prompt_cache_key=request.cache_key,
        reasoning=_Reasoning(effort, UNSET if plain else "auto") if effort else UNSET,
        temperature=request.temperature,
        tools=tuple(
            _Tool("function", tool.name, tool.description, Raw(tool.parameters), strict=False)
            if tool.kind == "function"
            else _Tool("custom", tool.name, tool.description)
            for tool in request.tools
        ),
    )
    return b'%s,"input":[%s]}' % (encode(parameters)[:-1], _join(request.items, plain=plain))


def _reasons(model: str) -> bool:
    """Say whether `model` looks like one that reasons unasked. A wrong guess costs one refused request per
    process."""
    family = model.rpartition("/")[2]
    return family.startswith(("o1", "o3", "o4", "gpt-5", "gpt-6")) and "-chat" not in family


# What the API refuses in stored items, so that `_accepted` changes it: an answer without an id (its text must be
# output text), ids that do not begin like its own (an author's, in a prompt), annotations (wire 6 shapes them
# otherwise) and reasoning that it did not seal (with `store` false there is nothing else to know it by). The encoding
# of most items shows that they are none of these; the patterns are taken from the encoders that write history, so an
# item in another form is no mistake, it is only decoded.


def _until(item: records.ProviderItem, end: bytes) -> bytes:
    encoded = encode(item)
    return encoded[: encoded.index(end) + len(end)]


_PASSING = (
    _until(records.FunctionCallOutputItem(output="", call_id=""), b'"output"'),
    _until(records.InputMessageItem(role="user", content=()), b'"user"'),
    _until(records.OutputMessageItem(role="assistant", id="msg_", content=(), status=""), b'"id":"msg_'),
    _until(records.CustomToolCallOutputItem(output="", call_id=""), b'"output"'),
    _until(records.InputMessageItem(role="system", content=()), b'"system"'),
    _until(records.InputMessageItem(role="developer", content=()), b'"developer"'),
)
_CALL = _until(records.FunctionCallItem(name="", arguments="", call_id=""), b'"name"')
_CALL_ID = b'"id":"fc'
_ANNOTATED = b'"annotations":[{'  # Quotes inside a text are escaped, so this is never part of one.


def _join(items: Sequence[bytes], *, plain: bool) -> bytes:
    """Return the items joined by commas, adapted where that is needed."""
    accepted = [item if item.startswith(_PASSING) else _accepted(item, plain=plain) for item in items]
    joined = b",".join(filter(None, accepted))
    if _ANNOTATED in joined:
        joined = b",".join(
            _unannotated(item) if _ANNOTATED in item else item for item in filter(None, accepted)
        )
    return joined


def _accepted(payload: bytes, *, plain: bool) -> bytes | None:
    """Return what the API accepts in the place of an item whose beginning does not tell; None when there is
    nothing."""
    if payload.startswith(_CALL) and payload.rfind(_CALL_ID) > 0:  # From the end, where it stands.
        return payload
    match item := read_item(payload):
        case records.InputMessageItem(role="assistant"):
            texts = (part for part in parts(item.content) if isinstance(part, str) and part)
            return encode(_Answer(content=tuple(map(_AnswerText, texts))))
        case records.OutputMessageItem() if not item.id.startswith("msg"):
            return _unannotated(payload)
        case SealedReasoning():
            return None if plain or item.encrypted_content is UNSET else payload
        case records.FunctionCallItem(id=str(own)) if not own.startswith("fc"):
            return encode(msgspec.structs.replace(item, id=UNSET))
        case records.CustomToolCallItem(id=str(own)) if not own.startswith("ctc"):
            return encode(msgspec.structs.replace(item, id=UNSET))
        case _:
            return payload


class _AnswerText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str


class _Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """An earlier answer without an id, in the form that the API takes from anyone."""

    role: Literal["assistant"] = "assistant"
    content: tuple[_AnswerText, ...]
    phase: str | UnsetType = UNSET


def _unannotated(payload: bytes) -> bytes:
    item = read_item(payload)
    if not isinstance(item, records.OutputMessageItem):
        return payload
    return encode(_Answer(content=tuple(_AnswerText(part.text) for part in item.content), phase=item.phase))
