"""The catalog file: what an operator configures, as TOML (design 6, behaviour 2.3, 2.4, 3).

Owns: names, defaults and rules of every key, and one-line errors with the line. Does not own: what becomes of it:
reading the prompts that it names and storing it all is `catalog`'s. A file says everything about itself, so names in
it refer to entries of the same file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta, Struct, field

from sessions_app import toml_lines
from sessions_app.limits import Count, Delay, ServerSettings
from sessions_app.records.base import PrincipalId
from sessions_app.records.enums import (
    Scope,
    TemporaryLocation,
    WorkspaceAccess,
    WorkspaceCleanup,
    WorkspaceOverflow,
)

MAX_CATALOG_BYTES = 4 * 1024 * 1024
"""Thousands of entries; a file that is larger is not a catalog."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}\Z")]
"""What people call an entry; stable ids are derived from it."""
Text = Annotated[str, Meta(pattern=r"^[^\0]*\Z")]
"""Neither a file system nor every database takes a NUL."""
NonEmpty = Annotated[str, Meta(min_length=1, pattern=r"^[^\0]*\Z")]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9A-Fa-f]{64}\Z")]
HeaderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+\Z")]
AwareTime = Annotated[datetime, Meta(tz=True)]
Amount = Annotated[float, Meta(gt=0)]

_REMOVED = re.compile(r"journal|segment|mailbox|flush|snapshot")
_PROBLEM = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?\Z", re.DOTALL)
_FORM = re.compile(r"expected `str` matching regex .*", re.IGNORECASE | re.DOTALL)
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<position>[0-9]+)\]")
_QUOTED = re.compile(r"`([^`]*)`")


class CatalogError(Exception):
    """The file is not a catalog: one line for the operator, with the line of the file."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.message = message
        self.line = line


class _Table(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: every key is known."""


class TemporarySource(_Table, frozen=True, kw_only=True):
    """A folder made for each session."""

    location: TemporaryLocation
    cleanup: WorkspaceCleanup
    managed_root: NonEmpty | None = None
    """Where `system_tmp` folders are made, instead of the system's own place."""


class WorkspaceSource(_Table, frozen=True, kw_only=True):
    """Exactly one of a folder that is there and a temporary one."""

    physical: NonEmpty | None = None
    temporary: TemporarySource | None = None

    def __post_init__(self) -> None:
        if (self.physical is None) == (self.temporary is None):
            raise ValueError("needs exactly one of physical and temporary")


class PromptLimitEntry(_Table, frozen=True, kw_only=True):
    """How many root agents of a prompt run in a workspace at once."""

    prompt: Name
    max_root_agents: Count
    overflow: WorkspaceOverflow


class WorkspaceEntry(_Table, frozen=True, kw_only=True):
    """A `[[workspaces]]` entry."""

    id: Name
    source: WorkspaceSource
    access: WorkspaceAccess
    conflict_domain: NonEmpty | None = None
    prompt_limits: tuple[PromptLimitEntry, ...] = ()


class ProfileEntry(_Table, frozen=True, kw_only=True):
    """A `[[permission_profiles]]` entry: what its prompts' sessions may do, and who decides (behaviour 7)."""

    id: Name
    tool_default: Literal["deny", "allow", "ask", "policy"]
    approval_timeout_ms: Delay | Literal["none"] = "none"
    approval_fallback: Literal["deny", "allow", "allow_if_policy", "reviewer"] = "deny"
    unattended: Literal["fallback", "wait"] = "fallback"
    manifest_authorization: Literal["deny", "assume_authorized", "require_grant"] = "require_grant"
    max_mode: Literal["plan", "manual", "accept_edits", "auto", "dangerous"] = "auto"
    sandbox: bool = True
    """Run shells in a sandbox."""
    network: Literal["none", "host"] = "none"
    """What the sandbox sees of the network."""
    allow_unsandboxed: bool = False
    """Let the modes that run commands unasked do so without a sandbox too."""
    project_instructions: bool = False
    """Add the instructions file that lies in the workspace to the prompt."""
    max_steps: Count | None = None
    """Model requests in one turn."""
    max_cost_usd: Amount | None = None
    max_minutes: Amount | None = None
    policy: tuple[NonEmpty, ...] = ()
    """Rules over a call; one that says false refuses it."""


class PromptEntry(_Table, frozen=True, kw_only=True):
    """A `[[prompts]]` entry."""

    id: Name
    path: NonEmpty
    """Of the root file; a relative one starts at the folder of the catalog."""
    description: Text = ""
    enabled: bool = True
    allowed_workspaces: tuple[Name, ...]
    permission_profile: Name
    runtime_policy: Text = ""


class TokenEntry(_Table, frozen=True, kw_only=True):
    """A `[[tokens]]` entry (behaviour 2.3)."""

    token_sha256: Sha256
    principal_id: PrincipalId
    scopes: tuple[Scope, ...]
    attributes: dict[NonEmpty, Text] = field(default_factory=dict)
    expires_at: AwareTime | None = None

    def __post_init__(self) -> None:
        if len(set(self.scopes)) < len(self.scopes):
            raise ValueError("names a scope twice")


class ManifestGrantEntry(_Table, frozen=True, kw_only=True):
    """A `[[manifest_grants]]` entry: shell declarations that an operator has agreed to (behaviour 7.5)."""

    id: Name
    prompt: Name
    workspaces: tuple[Name, ...]
    source_sha256: Sha256
    manifest_sha256: Sha256
    principals: tuple[PrincipalId, ...] = ()
    """Whose sessions it holds for; none: everybody's."""


class TrustedProxyEntry(_Table, frozen=True, kw_only=True):
    """A `[[trusted_proxies]]` entry: peers whose word on the identity counts (behaviour 2.4)."""

    trusted_addresses: Annotated[tuple[NonEmpty, ...], Meta(min_length=1)]
    principal_header: HeaderName = "x-ochat-principal-id"
    scopes_header: HeaderName = "x-ochat-scopes"


class CatalogFile(_Table, frozen=True, kw_only=True):
    """A whole catalog file."""

    version: Literal[1]
    default_prompt: Name | None = None
    default_workspace: Name | None = None
    models: tuple[NonEmpty, ...] = ()
    """The models that people may choose from."""
    server: ServerSettings = ServerSettings()
    workspaces: tuple[WorkspaceEntry, ...] = ()
    permission_profiles: tuple[ProfileEntry, ...] = ()
    prompts: tuple[PromptEntry, ...] = ()
    tokens: tuple[TokenEntry, ...] = ()
    manifest_grants: tuple[ManifestGrantEntry, ...] = ()
    trusted_proxies: tuple[TrustedProxyEntry, ...] = ()


def read_catalog(file: Path) -> CatalogFile:
    """Return the catalog in `file`. Raises CatalogError, also when the file cannot be read."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_CATALOG_BYTES + 1)
    except OSError as error:
        raise CatalogError(f"the file cannot be read: {error.strerror}", 1) from None
    if len(content) > MAX_CATALOG_BYTES:
        raise CatalogError(f"the file is larger than {MAX_CATALOG_BYTES} bytes", 1)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise CatalogError("the file is not UTF-8 text", content.count(b"\n", 0, error.start) + 1) from None
    return parse_catalog(text)


def parse_catalog(text: str) -> CatalogFile:
    """Return what a catalog's text says.

    Raises CatalogError for what is not TOML, an unknown or missing key, a value of the wrong kind or out of its
    bounds, two entries of one name, a name that no entry has, and settings that contradict each other.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(text, str(error)) from None
    except ValueError:
        raise CatalogError("a number has too many digits", 1) from None
    except RecursionError:
        raise CatalogError("arrays and tables are nested too deeply", 1) from None
    _accept_none(document)
    try:
        catalog = msgspec.convert(document, CatalogFile)
    except msgspec.ValidationError as error:
        raise _refused(text, str(error)) from None
    for path, message in _contradictions(catalog):
        raise CatalogError(message, _line(text, path))
    return catalog


def _accept_none(document: dict[str, Any]) -> None:
    """Read the word "none" of behaviour 2.3 as no expiry."""
    tokens = document.get("tokens")
    for token in tokens if isinstance(tokens, list) else ():
        if isinstance(token, dict) and token.get("expires_at") == "none":
            del token["expires_at"]


def _syntax_error(text: str, problem: str) -> CatalogError:
    message, _, where = problem.partition(" (at ")
    line = re.match(r"line ([0-9]+)", where)
    return CatalogError(f"{message[0].lower()}{message[1:]}", int(line[1]) if line else text.count("\n") + 1)


def _refused(text: str, problem: str) -> CatalogError:
    """Return the library's refusal in the file's own terms."""
    found = _PROBLEM.match(problem)
    what, where = (found["what"], found["path"]) if found else (problem, None)
    steps = _STEP.finditer((where or "").partition("[...]")[0])
    path: toml_lines.Path = tuple(step["key"] or int(step["position"]) for step in steps)
    named = _QUOTED.search(what)
    if "unknown field" in what and named:
        return CatalogError(_unknown_key(named[1], path), _line(text, (*path, named[1])))
    if "missing required field" in what and named:
        return CatalogError(f"{_shown(path)} lacks the key {named[1]}", _line(text, path))
    what = _FORM.sub("not of the right form", what).replace("`", "")
    return CatalogError(f"{_shown(path)}: {what[0].lower()}{what[1:]}", _line(text, path))


def _unknown_key(key: str, path: toml_lines.Path) -> str:
    if path == ("server",) and _REMOVED.search(key):
        return f"server has no key {key}: every commit is durable before its answer leaves"
    return f"{_shown(path)} has no key {key}"


def _shown(path: toml_lines.Path) -> str:
    """Return a path as people say it: the nearest key, or the file."""
    keys = [step for step in path if isinstance(step, str)]
    return keys[-1] if keys else "the catalog"


def _line(text: str, path: toml_lines.Path) -> int:
    """Return the line of a path, or of the nearest thing around it that has one."""
    lines = toml_lines.key_lines(text)
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), 1)


_Contradictions = Iterator[tuple[toml_lines.Path, str]]


def _contradictions(catalog: CatalogFile) -> _Contradictions:
    """Yield what each part allows and the whole does not: the place and one clause."""
    if contradiction := catalog.server.contradiction():
        key, message = contradiction
        yield ("server", key), f"{key} {message}"
    yield from _repeated("workspaces", catalog.workspaces)
    yield from _repeated("permission_profiles", catalog.permission_profiles)
    yield from _repeated("prompts", catalog.prompts)
    yield from _repeated("manifest_grants", catalog.manifest_grants)
    names = {
        "prompt": {entry.id for entry in catalog.prompts},
        "workspace": {entry.id for entry in catalog.workspaces},
        "permission profile": {entry.id for entry in catalog.permission_profiles},
    }
    for path, kind, name in _references(catalog):
        if name not in names[kind]:
            yield path, f"there is no {kind} {name}"
    for position, workspace in enumerate(catalog.workspaces):
        limited = [limit.prompt for limit in workspace.prompt_limits]
        if len(set(limited)) < len(limited):
            yield ("workspaces", position, "prompt_limits"), "prompt_limits names a prompt twice"


class _Named(Protocol):
    @property
    def id(self) -> str: ...


def _repeated(table: str, entries: Sequence[_Named]) -> _Contradictions:
    seen: set[str] = set()
    for position, entry in enumerate(entries):
        if entry.id in seen:
            yield (table, position, "id"), f"{table} has {entry.id} twice"
        seen.add(entry.id)


def _references(catalog: CatalogFile) -> Iterable[tuple[toml_lines.Path, str, str]]:
    """Yield every name that must be that of an entry: its place, of what, and the name."""
    if catalog.default_prompt is not None:
        yield ("default_prompt",), "prompt", catalog.default_prompt
    if catalog.default_workspace is not None:
        yield ("default_workspace",), "workspace", catalog.default_workspace
    for at, workspace in enumerate(catalog.workspaces):
        for place, limit in enumerate(workspace.prompt_limits):
            yield ("workspaces", at, "prompt_limits", place, "prompt"), "prompt", limit.prompt
    for at, prompt in enumerate(catalog.prompts):
        for place, name in enumerate(prompt.allowed_workspaces):
            yield ("prompts", at, "allowed_workspaces", place), "workspace", name
        yield ("prompts", at, "permission_profile"), "permission profile", prompt.permission_profile
    for at, grant in enumerate(catalog.manifest_grants):
        yield ("manifest_grants", at, "prompt"), "prompt", grant.prompt
        for place, name in enumerate(grant.workspaces):
            yield ("manifest_grants", at, "workspaces", place), "workspace", name
