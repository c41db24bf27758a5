"""Prompts pinned to the bytes they were made of (behaviour 3.1).

Owns: reading a prompt's sources from its folder, the content address of what was read, and whether this server can
run it. Does not own: the catalog that names prompts, and where captured bytes are kept. A prompt is always parsed
from captured bytes, so it lives on when its files are changed or deleted.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from sessions_app.chatmd.elements import (
    Agent,
    AgentTool,
    Config,
    DeclaredTool,
    Doc,
    Document,
    Helper,
    Img,
    Tool,
    Turn,
)
from sessions_app.chatmd.imports import ReadSource, SourceError, expand, resolve
from sessions_app.chatmd.items import Item, Part, Parts, helpers, named, to_items
from sessions_app.chatmd.lexer import ChatMDError, shown
from sessions_app.chatmd.parser import read_document
from sessions_app.history import fits
from sessions_app.ids import derived_id
from sessions_app.limits import MAX_FRAME_BYTES, MAX_PROMPT_BYTES, MAX_PROMPT_SOURCES
from sessions_app.records.items import InputImage, InputText

ToolCheck = Callable[[Tool], bool]
"""Whether this server has the declared tool."""

_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}


class Prompt(Struct, frozen=True, kw_only=True):
    """What a prompt gives a session."""

    config: Config
    tools: tuple[Tool, ...]
    items: tuple[Item, ...]
    """The initial history."""
    agents: tuple[str, ...]
    """The sources of the prompts that its agent tools run."""


class PinnedPrompt(Struct, frozen=True, kw_only=True):
    """A prompt and every byte it was made of."""

    revision: str
    """`prv_…`; the same for the same bytes."""
    root: str
    sources: Mapping[str, bytes]
    """By path relative to the folder of the root, which is one of them."""
    prompt: Prompt


class UnavailablePrompt(Struct, frozen=True):
    """A prompt that cannot be used, and the reason in one line."""

    reason: str


def capture(root_file: Path, has_tool: ToolCheck) -> PinnedPrompt | UnavailablePrompt:
    """Return the prompt at `root_file` as its files are now.

    It is unavailable when a source is missing, lies outside the root's folder (links included) or does not parse,
    when it needs more than MAX_PROMPT_SOURCES or MAX_PROMPT_BYTES, and when it asks for what this server does not
    have: a tool, a host declaration, or a document, image or agent that needs fetching or running.
    """
    try:
        file = root_file.resolve()
        folder = _Folder(file.parent)
        prompt = _read_all(file.name, folder.read, has_tool)
    except ChatMDError as error:
        return UnavailablePrompt(str(error))
    except (OSError, RuntimeError):  # Only of `resolve`: links that go round in a circle.
        return UnavailablePrompt(f"{shown(root_file.name)} cannot be read")
    revision = revision_id(file.name, manifest(folder.sources))
    return PinnedPrompt(revision=revision, root=file.name, sources=folder.sources, prompt=prompt)


def restore(
    revision: str, root: str, sources: Mapping[str, bytes], has_tool: ToolCheck
) -> PinnedPrompt | UnavailablePrompt:
    """Return the prompt that `capture` made of these bytes.

    It is unavailable when the bytes are not exactly those of `revision`, or this server lost what it needs.
    """
    if revision_id(root, manifest(sources)) != revision:
        return UnavailablePrompt("the captured sources were altered")
    try:
        prompt = _read_all(root, _captured(sources), has_tool)
    except ChatMDError as error:
        return UnavailablePrompt(str(error))
    return PinnedPrompt(revision=revision, root=root, sources=sources, prompt=prompt)


def manifest(sources: Mapping[str, bytes]) -> dict[str, str]:
    """Return the hex SHA-256 of each source by its path, sorted."""
    return {path: hashlib.sha256(sources[path]).hexdigest() for path in sorted(sources)}


def revision_id(root: str, digests: Mapping[str, str]) -> str:
    """Return the revision of the prompt `root` made of sources with these digests."""
    return derived_id("prv", root, *(part for path in sorted(digests) for part in (path, digests[path])))


def read_prompt(path: str, read: ReadSource, has_tool: ToolCheck) -> Prompt:
    """Return the prompt at `path`, a root or one that an agent tool runs. Raises ChatMDError as `capture` says."""
    document = read_document(expand(path, read))
    for declaration in document.host_declarations:
        raise ChatMDError(f"<{declaration.name}> is not supported", declaration.place)
    _check_tools(document.tools, has_tool)
    items = to_items(document.turns, _local_parts(document.turns, path, read))
    for turn, item in zip(document.turns, items, strict=True):
        if not fits(bytes(item.payload)):
            raise ChatMDError("the element is larger than a history entry may be", turn.place)
    return Prompt(
        config=document.config,
        tools=tuple(declared.tool for declared in document.tools),
        items=items,
        agents=tuple(_agents(document, path)),
    )


def _read_all(root: str, read: ReadSource, has_tool: ToolCheck) -> Prompt:
    """Return the prompt at `root` after reading those that its agents run, and theirs."""
    prompts: dict[str, Prompt] = {}
    waiting = [root]
    while waiting:
        path = waiting.pop()
        if path not in prompts:
            prompts[path] = read_prompt(path, read, has_tool)
            waiting.extend(prompts[path].agents)
    return prompts[root]


def _agents(document: Document, path: str) -> Iterator[str]:
    """Yield the sources of nested prompts that are part of the revision: static relative paths (behaviour 3.1)."""
    for declared in document.tools:
        tool = declared.tool
        if (
            isinstance(tool, AgentTool)
            and tool.local
            and not tool.agent.startswith("/")
            and "${" not in tool.agent
        ):
            yield resolve(tool.agent, path, declared.place)


def _check_tools(tools: tuple[DeclaredTool, ...], has_tool: ToolCheck) -> None:
    names: set[str] = set()
    for declared in tools:
        tool = declared.tool
        name = tool.name or "of an MCP server"
        if tool.name and tool.name in names:
            raise ChatMDError(f"the tool {shown(name)} is declared twice", declared.place)
        names.add(tool.name)
        if not has_tool(tool):
            raise ChatMDError(f"the tool {name} is not available here", declared.place)


def _local_parts(turns: tuple[Turn, ...], path: str, read: ReadSource) -> Parts:
    """Return local documents and images; every other helper makes the prompt unavailable."""
    parts: dict[Helper, Part] = {}
    left = MAX_FRAME_BYTES  # A small file can be named often.
    for helper in helpers(turns):
        plain = isinstance(helper, Doc) and not helper.strip and not helper.markdown
        if isinstance(helper, Agent) or not helper.local or not (plain or isinstance(helper, Img)):
            raise ChatMDError(f"{named(helper)} needs fetching, converting or running", helper.place)
        content = _content(helper, path, read)
        left -= len(content)
        if left < 0:
            raise ChatMDError(f"the helpers bring in more than {MAX_FRAME_BYTES} bytes", helper.place)
        parts[helper] = (
            InputText(text=_text(content, helper))
            if plain
            else InputImage(image_url=_data_uri(content, helper), detail="auto")
        )
    return parts


def _content(helper: Helper, path: str, read: ReadSource) -> bytes:
    source = resolve(helper.src, path, helper.place)
    try:
        return read(source)
    except SourceError as error:
        raise ChatMDError(f"{shown(source)} {error}", helper.place) from None


def _text(content: bytes, helper: Helper) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ChatMDError(f"{shown(helper.src)} is not UTF-8 text", helper.place) from None


def _data_uri(content: bytes, helper: Helper) -> str:
    media_type = next((kind for magic, kind in _IMAGES.items() if content.startswith(magic)), None)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        media_type = "image/webp"
    if media_type is None:
        raise ChatMDError(f"{shown(helper.src)} is no PNG, JPEG, GIF or WebP image", helper.place)
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def _captured(sources: Mapping[str, bytes]) -> ReadSource:
    def read(path: str) -> bytes:
        if path not in sources:
            raise SourceError("was not captured")
        return sources[path]

    return read


class _Folder:
    """Reads files below one folder, each once, and remembers them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._left = MAX_PROMPT_BYTES
        self.sources: dict[str, bytes] = {}

    def read(self, path: str) -> bytes:
        if path not in self.sources:
            if len(self.sources) == MAX_PROMPT_SOURCES:
                raise SourceError(f"is one source too many: a prompt has at most {MAX_PROMPT_SOURCES}")
            content = self._content(path)
            self._left -= len(content)
            self.sources[path] = content
        return self.sources[path]

    def _content(self, path: str) -> bytes:
        try:
            # Links are followed before the check, so that what is checked is what is read.
            file = (self._root / path).resolve(strict=True)
            if not file.is_relative_to(self._root):
                raise SourceError("is a link out of the prompt's folder")
            if not file.is_file():
                raise SourceError("is not a file")
            with file.open("rb") as stream:
                content = stream.read(self._left + 1)
        except FileNotFoundError:
            raise SourceError("does not exist") from None
        except (OSError, RuntimeError):  # RuntimeError: links that go round in a circle
            raise SourceError("cannot be read") from None
        if len(content) > self._left:
            raise SourceError(f"is too large: the sources of a prompt have at most {MAX_PROMPT_BYTES} bytes")
        return content
