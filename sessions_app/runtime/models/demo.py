"""The built-in model: no key, no network, no intelligence.

Owns what it says. It is there so that everything can be tried at once: it streams word by word, calls the
tools that it is offered and answers when they have answered. It is plainly labelled in every reply, and the
same history gets the same reply.

A user message that names an offered tool makes it call that tool, with the JSON object in the message as
arguments; some words stand for tools (`_WORDS`). `demo` speaks at a readable pace, `demo:fast` without
pause, `demo:slow` slowly enough to cancel.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator, Sequence

from sessions_app import records
from sessions_app.ids import new_id
from sessions_app.runtime.models.compose import ReplyWriter, wrap
from sessions_app.runtime.models.items import is_object, parts, read_item
from sessions_app.runtime.models.port import ModelEvent, ModelRequest, ToolSpec, Usage

_PAUSES_S = {"fast": 0.0, "slow": 0.5}
_PAUSE_S = 0.03
_WORDS = {"time": "clock", "date": "clock", "plan": "plan", "ask": "ask"}
_LABEL = "[demo model, no intelligence]"
_TOKEN_BYTES = 4
"""About how many bytes a real model counts as a token, so that costs and windows have something to show."""
_WORD = re.compile(r"\s*\S+\s*")


class Demo:
    """The adapter of `demo:`."""

    async def stream(self, model: str, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer the last user message; see `port.Model.stream`. Fails never."""
        pause = _PAUSES_S.get(model, _PAUSE_S)
        said, outputs = _last_exchange(request.items)
        calls = [] if outputs else _wanted(said, request.tools)
        reply = ReplyWriter(f"demo:{model}", request)
        yield reply.begin()
        text = _calling(calls) if calls else _answer(said, outputs)
        message = reply.message()
        for event in message.begin():
            yield event
        for word in _WORD.findall(text):
            await asyncio.sleep(pause)
            for event in message.add(word):
                yield event
        for event in message.end():
            yield event
        for tool in calls:
            for event in _call(reply, tool, said):
                yield event
        counted = sum(map(len, request.items))
        for event in reply.end(Usage(input=counted // _TOKEN_BYTES, output=len(text) // _TOKEN_BYTES)):
            yield event

    async def aclose(self) -> None:
        """Nothing is open."""


def _last_exchange(items: Sequence[bytes]) -> tuple[str, list[str]]:
    """Return the text of the last user message and the outputs of tools behind it; earlier items are not
    decoded."""
    outputs: list[str] = []
    for payload in reversed(items):
        match item := read_item(payload):
            case records.InputMessageItem(role="user"):
                return _text(item.content), outputs[::-1]
            case records.FunctionCallOutputItem() | records.CustomToolCallOutputItem():
                outputs.append(_text(item.output))
    return "", outputs[::-1]


def _text(content: records.ToolOutput | Sequence[object]) -> str:
    return "".join(part for part in parts(content) if isinstance(part, str))


def _wanted(said: str, tools: Sequence[ToolSpec]) -> list[ToolSpec]:
    """Return the offered tools that the message asks for, in the order of the offer."""
    words = re.findall(r"\w+", said.lower())
    names = {*words, *(_WORDS[word] for word in words if word in _WORDS)}
    return [tool for tool in tools if tool.name.lower() in names]


def _call(reply: ReplyWriter, tool: ToolSpec, said: str) -> Iterator[ModelEvent]:
    found = said[said.find("{") : said.rfind("}") + 1]
    arguments = found if is_object(found) else "{}"
    call = reply.call(tool.name, new_id("call"))
    yield from call.begin()
    yield from call.add(arguments if tool.kind == "function" else wrap(said))
    yield from call.end()


def _calling(calls: Sequence[ToolSpec]) -> str:
    return f"{_LABEL} I call {' and '.join(tool.name for tool in calls)}."


def _answer(said: str, outputs: Sequence[str]) -> str:
    if outputs:
        return f"{_LABEL} The answer is: {'; '.join(outputs)}"
    if said:
        return f"{_LABEL} You said: {said}"
    return f"{_LABEL} Say something, and I repeat it."
