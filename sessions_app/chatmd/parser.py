"""Nodes into typed elements (behaviour 17.2 to 17.4).

Owns: which attributes an element needs and what its body is. Does not own: nesting (`tree`), imports
(`imports`), or whether this server can do what an element asks (`pin`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Literal

from sessions_app.chatmd.elements import (
    Agent,
    AgentTool,
    Body,
    BuiltinTool,
    CommandTool,
    Config,
    DeclaredTool,
    Doc,
    Document,
    Helper,
    HostDeclaration,
    Img,
    McpTool,
    Message,
    MessageRole,
    Reasoning,
    Root,
    ShellTool,
    Summary,
    Text,
    Tool,
    ToolCall,
    ToolResponse,
    Turn,
)
from sessions_app.chatmd.lexer import ChatMDError, shown
from sessions_app.chatmd.lexer import Text as Piece
from sessions_app.chatmd.tree import Child, Node

HELPERS = frozenset({"doc", "img", "agent"})
HOST_ELEMENTS = frozenset(
    {"script", "shell_access", "moderator_runtime", "authoring_context", "authoring_help"}
)
PATH_VARIABLES = frozenset(
    {"workspace", "tool_dir", "prompt_dir", "source_dir", "session_dir", "cache_dir", "home"}
)

_TOOL_ATTRIBUTES = frozenset(
    {
        *("name", "description", "command", "type", "mode", "runtime", "agent", "local"),
        *("mcp_server", "include", "includes", "strict", "client_id_env", "client_secret_env"),
    }
)
_TOOL_KINDS = ("command", "agent", "mcp_server")
_ALIASES = {"get_contents": "read_file"}
_VARIABLE = re.compile(rf"\$\{{(?:{'|'.join(sorted(PATH_VARIABLES))})\}}")
_CUSTOM = "custom_tool_call"


def read_document(nodes: Iterable[Node]) -> Document:
    """Return what the top-level `nodes` of a prompt say, its imports expanded.

    Raises ChatMDError for a missing, empty or unreadable attribute, an unknown role, contradicting tool
    attributes, and an element that cannot stand at the top.
    """
    config: Config | None = None
    tools: list[DeclaredTool] = []
    turns: list[Turn] = []
    host: list[HostDeclaration] = []
    for node in nodes:
        if node.name == "config":
            config = config or _config(node)
        elif node.name == "tool":
            tools.append(DeclaredTool(_tool(node), node.place))
        elif node.name in HOST_ELEMENTS:
            host.append(HostDeclaration(node.name, node.place))
        else:
            turns.append(_turn(node))
    return Document(
        config=config or Config(), tools=tuple(tools), turns=tuple(turns), host_declarations=tuple(host)
    )


def read_message(node: Node, role: MessageRole) -> Message:
    """Return the message that `node` is.

    Raises ChatMDError for a status without an id and for a helper without src.
    """
    message_id, status = node.attributes.get("id"), node.attributes.get("status")
    if role == "assistant" and status is not None and message_id is None:
        raise ChatMDError(f"<{node.name}> has a status but no id", node.place)
    return Message(role=role, body=read_body(node), id=message_id, status=status, place=node.place)


def read_body(node: Node) -> Body:
    """Return text and helpers inside `node`, in order.

    A known element that has no meaning there is text, like an unknown one. Whitespace between other parts is
    layout and left out, unless it stands in a RAW block.
    """
    return tuple(_joined(_runs(node.children, HELPERS)))


def read_text(node: Node) -> str:
    """Return what is inside `node` as text; helpers are text too."""
    return "".join(run for run in _runs(node.children, frozenset()) if isinstance(run, str))


def _runs(children: Iterable[Child], helpers: frozenset[str]) -> Iterator[str | Helper]:
    """Yield runs of text and helpers, without the layout between them."""
    runs: list[str | Helper | Piece] = []
    for plain, group in groupby(_flattened(children, helpers), key=_is_plain):
        if plain:
            runs.append("".join(part.text for part in group if isinstance(part, Piece)))
        else:
            runs.extend(group)
    for run in runs:
        if isinstance(run, Piece):
            yield run.text
        elif len(runs) == 1 or not isinstance(run, str) or not run.isspace():
            yield run


def _flattened(children: Iterable[Child], helpers: frozenset[str]) -> Iterator[Piece | Helper]:
    for child in children:
        if isinstance(child, Piece):
            yield child
        elif child.name in helpers:
            yield _helper(child)
        else:
            yield Piece(child.opening, child.place)
            yield from _flattened(child.children, helpers)
            yield Piece(child.closing, child.place)


def _is_plain(part: Piece | Helper) -> bool:
    return isinstance(part, Piece) and not part.raw


def _joined(runs: Iterable[str | Helper]) -> Iterator[Text | Helper]:
    for is_text, group in groupby(runs, key=lambda run: isinstance(run, str)):
        if not is_text:
            yield from (run for run in group if not isinstance(run, str))
        elif text := "".join(run for run in group if isinstance(run, str)):
            yield Text(text)


def _helper(node: Node) -> Helper:
    src, local = _required(node, "src"), "local" in node.attributes
    if node.name == "agent":
        return Agent(src=src, local=local, body=read_body(node), place=node.place)
    _refuse_content(node)
    if node.name == "img":
        return Img(src=src, local=local, place=node.place)
    strip, markdown = "strip" in node.attributes, "markdown" in node.attributes
    return Doc(src=src, local=local, strip=strip, markdown=markdown, place=node.place)


def _turn(node: Node) -> Turn:
    match node.name:
        case "system" | "developer" | "user" | "assistant":
            return read_message(node, node.name)
        case "msg":
            return _msg(node)
        case "tool_call":
            return ToolCall(
                name=_required(node, "function_name"),
                call_id=_required(node, "tool_call_id"),
                body=read_body(node),
                custom=_is_custom(node),
                id=node.attributes.get("id"),
                place=node.place,
            )
        case "tool_response":
            return _tool_response(node)
        case "reasoning":
            return Reasoning(
                id=_required(node, "id"),
                summaries=tuple(_summaries(node)),
                status=node.attributes.get("status"),
                place=node.place,
            )
        case _:
            raise ChatMDError(f"<{node.name}> cannot stand outside of a message", node.place)


def _msg(node: Node) -> Message | ToolResponse:
    role = _required(node, "role")
    match role:
        case "system" | "developer" | "user" | "assistant":
            return read_message(node, role)
        case "tool":
            return _tool_response(node)
        case _:
            raise ChatMDError(f"<msg> has the unknown role {shown(role)}", node.place)


def _tool_response(node: Node) -> ToolResponse:
    return ToolResponse(
        call_id=_required(node, "tool_call_id"),
        body=read_body(node),
        custom=_is_custom(node),
        place=node.place,
    )


def _is_custom(node: Node) -> bool:
    kind = node.attributes.get("type")
    if kind not in {None, _CUSTOM}:
        raise ChatMDError(f"<{node.name}> has the unknown type {shown(kind)}", node.place)
    return kind == _CUSTOM


def _summaries(node: Node) -> Iterator[Summary]:
    for child in node.children:
        if isinstance(child, Node) and child.name == "summary":
            yield Summary(text=read_text(child), type=child.attributes.get("type", "summary_text"))
        elif isinstance(child, Node) or child.raw or not child.text.isspace():
            raise ChatMDError("<reasoning> holds <summary> elements only", child.place)


def _config(node: Node) -> Config:
    values = node.attributes
    return Config(
        model=_optional(node, "model"),
        max_tokens=_count(node, "max_tokens"),
        temperature=_temperature(node),
        reasoning_effort=_optional(node, "reasoning_effort"),
        id=_optional(node, "id"),
        show_tool_call="show_tool_call" in values,
    )


def _count(node: Node, name: str) -> int | None:
    text = _optional(node, name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise ChatMDError(f"{name} must be a whole number above 0, not {shown(text)}", node.place)
    return int(text)


def _temperature(node: Node) -> float | None:
    text = _optional(node, "temperature")
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ChatMDError(f"temperature must be a number from 0 up, not {shown(text)}", node.place)
    return value


def _tool(node: Node) -> Tool:
    for name in node.attributes:
        if name not in _TOOL_ATTRIBUTES:
            raise ChatMDError(f"<tool> has no attribute {name}", node.place)
    kinds = [kind for kind in _TOOL_KINDS if kind in node.attributes]
    if "type" in node.attributes:
        kinds.append("type")
    if len(kinds) > 1:
        raise ChatMDError(f"<tool> combines {' and '.join(kinds)}", node.place)
    description = node.attributes.get("description", "").strip()
    match kinds:
        case ["mcp_server"]:
            return _mcp_tool(node, description)
        case ["type"]:
            return _shell_tool(node, description)
    name = _required(node, "name")
    if not kinds:
        read, write = tuple(_roots(node, "read")), tuple(_roots(node, "write"))
        name = _ALIASES.get(name, name)
        return BuiltinTool(name=name, description=description, read=read, write=write)
    _refuse_content(node)
    if kinds == ["command"]:
        return CommandTool(name=name, description=description, command=_required(node, "command"))
    local = "local" in node.attributes
    return AgentTool(name=name, description=description, agent=_required(node, "agent"), local=local)


def _shell_tool(node: Node, description: str) -> ShellTool:
    """Read the long form, whose content is the shell vocabulary and concerns the runtime alone."""
    if (kind := node.attributes["type"]) != "shell":
        raise ChatMDError(f"<tool> has the unknown type {shown(kind)}", node.place)
    return ShellTool(
        name=_required(node, "name"),
        description=description,
        mode=_required(node, "mode"),
        runtime=_required(node, "runtime"),
    )


def _mcp_tool(node: Node, description: str) -> McpTool:
    _refuse_content(node)
    name = _optional(node, "name")
    listed = _optional(node, "include") or _optional(node, "includes")
    names = [name] if name else [part.strip() for part in (listed or "").split(",")]
    includes = tuple(name for name in names if name)
    return McpTool(
        name=name or "",
        description=description,
        mcp_server=_required(node, "mcp_server"),
        includes=includes or None,
        strict="strict" in node.attributes,
        client_id_env=_optional(node, "client_id_env"),
        client_secret_env=_optional(node, "client_secret_env"),
    )


def _roots(tool: Node, kind: Literal["read", "write"]) -> Iterator[Root]:
    """Yield the folders that a tool names for reading or writing; the ids of those to read differ."""
    ids: set[str] = set()
    for child in tool.children:
        if isinstance(child, Piece):
            if not child.text.isspace():
                raise ChatMDError("<tool> holds <read> and <write> elements only", child.place)
        elif child.name == kind:
            root = _root(child, kind)
            if kind == "read" and root.id in ids:
                raise ChatMDError(f"<read> has the id {shown(root.id)} a second time", child.place)
            ids.add(root.id)
            yield root
        elif child.name not in {"read", "write"}:
            raise ChatMDError("<tool> holds <read> and <write> elements only", child.place)


def _root(node: Node, kind: Literal["read", "write"]) -> Root:
    _refuse_content(node)
    path = _required(node, "path")
    if "${" in _VARIABLE.sub("", path):
        raise ChatMDError(f"{shown(path)} uses an unknown variable", node.place)
    return Root(
        path=path,
        id=_required(node, "id") if kind == "read" else node.attributes.get("id", ""),
        description=node.attributes.get("description", "").strip(),
    )


def _required(node: Node, name: str) -> str:
    value = _optional(node, name)
    if value is None:
        raise ChatMDError(f"<{node.name}> needs the attribute {name}", node.place)
    return value


def _optional(node: Node, name: str) -> str | None:
    """Return an attribute, or None when it is missing. A blank one is an error."""
    value = node.attributes.get(name)
    if value is not None and not value.strip():
        raise ChatMDError(f"<{node.name}> has a blank {name}", node.place)
    return value


def _refuse_content(node: Node) -> None:
    for child in node.children:
        if isinstance(child, Node) or child.raw or not child.text.isspace():
            raise ChatMDError(f"<{node.name}> cannot have content", node.place)
