"""What a ChatMD document says, typed (behaviour 17.2 to 17.4).

Owns: the shapes. Does not own: reading them (`parser`) or what becomes of them (`items`, `pin`).
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from sessions_app.chatmd.lexer import Place

MessageRole = Literal["system", "developer", "user", "assistant"]


class Text(Struct, frozen=True):
    """Text inside a message; never empty."""

    text: str


class Doc(Struct, frozen=True, kw_only=True):
    """A document whose text is to stand here."""

    src: str
    local: bool = False
    strip: bool = False
    """HTML becomes readable text; stronger than `markdown`."""
    markdown: bool = False
    place: Place


class Img(Struct, frozen=True, kw_only=True):
    """An image that is to stand here."""

    src: str
    local: bool = False
    place: Place


class Agent(Struct, frozen=True, kw_only=True):
    """A prompt that is to run on `body`; its final answer is to stand here."""

    src: str
    local: bool = False
    body: Body
    place: Place


Helper = Doc | Img | Agent
Body = tuple[Text | Helper, ...]


class Config(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Model and parameters; what is None was not said."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    reasoning_effort: str | None = None
    id: str | None = None
    show_tool_call: bool = False


class Root(Struct, frozen=True, kw_only=True):
    """A folder that a file tool may read or write; `path` may use the path variables of behaviour 17.4."""

    path: str
    id: str = ""
    """Names the root in calls; only roots to read have one."""
    description: str = ""


class _Tool(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    name: str
    description: str = ""


class BuiltinTool(_Tool, frozen=True, kw_only=True, tag="builtin"):
    """A tool of this server, by its name."""

    read: tuple[Root, ...] = ()
    write: tuple[Root, ...] = ()


class CommandTool(_Tool, frozen=True, kw_only=True, tag="command"):
    """A fixed command that takes arguments."""

    command: str


class ShellTool(_Tool, frozen=True, kw_only=True, tag="shell"):
    """A tool of a named shell runtime."""

    mode: str
    runtime: str


class AgentTool(_Tool, frozen=True, kw_only=True, tag="agent"):
    """Another prompt as a tool."""

    agent: str
    local: bool = False


class McpTool(_Tool, frozen=True, kw_only=True, tag="mcp"):
    """Tools of an MCP server: those of `includes`, or all it has. `name` is set when it is a single one."""

    mcp_server: str
    includes: tuple[str, ...] | None = None
    strict: bool = False
    client_id_env: str | None = None
    client_secret_env: str | None = None


Tool = BuiltinTool | CommandTool | ShellTool | AgentTool | McpTool


class Message(Struct, frozen=True, kw_only=True):
    """A message of the conversation. An assistant's with an id is one that a model made."""

    role: MessageRole
    body: Body
    id: str | None = None
    status: str | None = None
    place: Place


class ToolCall(Struct, frozen=True, kw_only=True):
    """A recorded call; the body is its arguments, or its input when `custom`."""

    name: str
    call_id: str
    body: Body
    custom: bool = False
    id: str | None = None
    place: Place


class ToolResponse(Struct, frozen=True, kw_only=True):
    """A recorded output."""

    call_id: str
    body: Body
    custom: bool = False
    place: Place


class Summary(Struct, frozen=True, kw_only=True):
    """One paragraph of recorded reasoning."""

    text: str
    type: str = "summary_text"


class Reasoning(Struct, frozen=True, kw_only=True):
    """Recorded reasoning."""

    id: str
    summaries: tuple[Summary, ...]
    status: str | None = None
    place: Place


Turn = Message | ToolCall | ToolResponse | Reasoning
"""What becomes a history item."""


class DeclaredTool(Struct, frozen=True):
    """A tool and where it is declared."""

    tool: Tool
    place: Place


class HostDeclaration(Struct, frozen=True):
    """An element that speaks to the host alone: a script, a shell runtime and the like."""

    name: str
    place: Place


class Document(Struct, frozen=True, kw_only=True):
    """A whole prompt."""

    config: Config
    tools: tuple[DeclaredTool, ...]
    turns: tuple[Turn, ...]
    host_declarations: tuple[HostDeclaration, ...]
