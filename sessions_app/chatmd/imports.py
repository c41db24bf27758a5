"""Imports replaced by what they import (behaviour 17.3).

Owns: where imports expand, how their paths resolve, cycles, namespaces and how much may be imported. Does not
own: reading files (`pin`); sources come from a function, so that a prompt expands from a folder and from
captured bytes alike.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from msgspec import structs

from sessions_app.chatmd.lexer import ChatMDError, Place, shown
from sessions_app.chatmd.tree import MAX_DEPTH, Child, Node, parse_body, parse_document
from sessions_app.limits import MAX_PROMPT_BYTES, MAX_PROMPT_SOURCES

MAX_IMPORTS = 4 * MAX_PROMPT_SOURCES
"""Imports followed, repeated ones counted each time: a few files that import each other twice grow fast."""

ReadSource = Callable[[str], bytes]
"""Bytes of a source by its path relative to the root prompt's folder; raises SourceError."""

_CONTAINERS = frozenset({"user", "system", "developer", "agent"})
_MSG_ROLES = frozenset({"user", "system", "developer"})
_ATTRIBUTES = frozenset({"src", "namespace"})
_NAMESPACE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class SourceError(Exception):
    """A source cannot be had; the message is one clause that fits behind its path."""


def expand(path: str, read: ReadSource) -> tuple[Node, ...]:
    """Return the elements of the prompt at `path`, every import that can expand replaced by its content.

    At the top an import brings elements, inside a message text and helpers; anywhere else it stays as it is.
    Raises ChatMDError for what does not parse, for a source that is missing, outside the root's folder, not
    UTF-8 or imported by itself, for two siblings of one namespace, and beyond the bounds of behaviour 16.
    """
    expansion = _Expansion(read)
    source = expansion.text(path, Place(1, path))
    scope = _Scope(path, active=frozenset({path}), depth=0)
    return tuple(expansion.nodes(parse_document(source, path), scope))


def resolve(src: str, base: str, place: Place) -> str:
    """Return the path that `src` means in the source `base`, relative to the root's folder.

    Raises ChatMDError for a path that is absolute or leaves the folder.
    """
    path = posixpath.normpath(posixpath.join(posixpath.dirname(base), src))
    if src.startswith("/") or path.startswith("../") or path == ".." or "\0" in src or "\\" in src:
        raise ChatMDError(f"{shown(src)} is not below the prompt's folder", place)
    return path


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where an expansion stands: the source at hand, those it came through, and how deep in elements."""

    path: str
    active: frozenset[str]
    depth: int


class _Expansion:
    """One prompt being expanded, with what it has used up."""

    def __init__(self, read: ReadSource) -> None:
        self._read = read
        self._imports = 0
        self._bytes = 0

    def text(self, path: str, place: Place) -> str:
        try:
            source = self._read(path)
        except SourceError as error:
            raise ChatMDError(f"{shown(path)} {error}", place) from None
        self._bytes += len(source)
        if self._bytes > MAX_PROMPT_BYTES:
            raise ChatMDError(f"the prompt expands to more than {MAX_PROMPT_BYTES} bytes", place)
        try:
            return source.decode()
        except UnicodeDecodeError:
            raise ChatMDError(f"{shown(path)} is not UTF-8 text", place) from None

    def nodes(self, nodes: Iterable[Node], scope: _Scope) -> Iterator[Node]:
        """Yield top-level elements with their imports expanded."""
        nodes = tuple(nodes)
        _check_namespaces(nodes)
        for node in nodes:
            if node.name == "import":
                source, inner = self._enter(node, scope)
                yield from self.nodes(parse_document(source, inner.path), inner)
            else:
                yield self._node(node, scope)

    def _body(self, children: Iterable[Child], scope: _Scope) -> Iterator[Child]:
        """Yield what stands inside a message with its imports expanded."""
        children = tuple(children)
        _check_namespaces(child for child in children if isinstance(child, Node))
        for child in children:
            if not isinstance(child, Node):
                yield child
            elif child.name == "import":
                source, inner = self._enter(child, scope)
                yield from self._body(parse_body(source, inner.path), inner)
            else:
                yield self._node(child, scope)

    def _node(self, node: Node, scope: _Scope) -> Node:
        expands = node.name in _CONTAINERS or (
            node.name == "msg" and node.attributes.get("role") in _MSG_ROLES
        )
        if not expands:
            return node
        inner = replace(scope, depth=scope.depth + 1)
        if inner.depth > MAX_DEPTH:
            raise ChatMDError(f"elements are nested deeper than {MAX_DEPTH}", node.place)
        return structs.replace(node, children=tuple(self._body(node.children, inner)))

    def _enter(self, node: Node, scope: _Scope) -> tuple[str, _Scope]:
        """Return the text that an import names and the scope to expand it in."""
        path = resolve(_src(node), scope.path, node.place)
        self._imports += 1
        if self._imports > MAX_IMPORTS:
            raise ChatMDError(f"more than {MAX_IMPORTS} imports are followed", node.place)
        if path in scope.active:
            raise ChatMDError(f"{shown(path)} imports itself", node.place)
        if len(scope.active) > MAX_DEPTH:
            raise ChatMDError(f"imports are nested deeper than {MAX_DEPTH}", node.place)
        return self.text(path, node.place), replace(scope, path=path, active=scope.active | {path})


def _src(node: Node) -> str:
    for name in node.attributes:
        if name not in _ATTRIBUTES:
            raise ChatMDError(f"<import> has no attribute {name}", node.place)
    if node.children:
        raise ChatMDError("<import> cannot have content", node.place)
    if not node.attributes.get("src"):
        raise ChatMDError("<import> needs the attribute src", node.place)
    return node.attributes["src"]


def _check_namespaces(siblings: Iterable[Node]) -> None:
    """Refuse two imports of one namespace side by side; it qualifies host declarations and nothing else."""
    seen: set[str] = set()
    for node in siblings:
        namespace = node.attributes.get("namespace")
        if node.name != "import" or namespace is None:
            continue
        if not _NAMESPACE.fullmatch(namespace):
            raise ChatMDError(f"{shown(namespace)} is no namespace", node.place)
        if namespace in seen:
            raise ChatMDError(f"the namespace {shown(namespace)} is taken by an import beside it", node.place)
        seen.add(namespace)
