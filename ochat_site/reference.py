"""The protocol as this code speaks it, as one page: `docs/protocol-reference.md`.

Owns: rendering. Does not own: a single fact: methods come from the method table, types from the structs, events from their
payload table and the projection, errors and numbers from their modules, words from the docstrings there.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from ochat_site.dialects.ochat1 import types
from ochat_site.rpc.methods import METHODS
from ochat_site.transports.websocket import CLOSE_CODES
from sessions_app import errors, events, limits, projection, records
from sessions_app.encoding import encode
from sessions_app.records import base as scalars
from sessions_app.records import enums
from sessions_app.views import FULL, View

_NAMES: Mapping[str, Any] = {**vars(events), **vars(records), **vars(types)}
"""What the names in the annotations of the protocol's structs mean."""

_PLAIN = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "bytes": "bytes",
    "None": "null",
    "Raw": "any JSON",
    "T": "what is listed",
}

_INTRODUCTION = """# Protocol reference

The Ochat agent protocol 1.0 as this server speaks it. This page is written by `manage.py protocol_reference` from the code
that decides, and checked against it by the tests; change the code, never the page.

A member marked *optional* may be left out and is never null. A type in *italics* is a scalar of the last section."""


def render() -> str:
    """Return the whole page."""
    sections = (_methods(), _types(), _events(), _errors(), _closing(), _numbers(), _scalars())
    return "\n\n".join([_INTRODUCTION, *("\n".join(section) for section in sections)]) + "\n"


# Methods


def _methods() -> Iterator[str]:
    yield from ("## Methods", "")
    rows = []
    for (dialect, name), row in METHODS.items():
        if dialect == "ochat1":
            shapes = types.SHAPES[name]  # type: ignore[index]  # the table's names are those of this dialect
            rows.append(
                (
                    f"`{name}`",
                    f"`{row.scope}`" if row.scope else "",
                    {"none": "", "any": "any", "writable": "writable"}[row.attachment],
                    "" if row.idempotency == "none" else row.idempotency,
                    "yes" if row.new_work else "",
                    _shape(shapes.params),
                    _shape(shapes.result),
                )
            )
    yield from _table(
        ("Method", "Scope", "Attachment", "Key", "Refused while draining", "Params", "Result"), rows
    )
    yield ""
    yield (
        "`session.create` and `session.attach` ask for the scopes of the mode on top. Only `protocol.initialize` is answered on a "
        "connection that is not initialized."
    )


def _shape(shape: Any) -> str:
    """Return a link to a struct, or to each of the two that a page of a list is made of."""
    if get_origin(shape) is None:
        return _link(shape.__name__)
    return f"{_link(get_origin(shape).__name__)} of {', '.join(_link(each.__name__) for each in get_args(shape))}"


# Types


def _types() -> Iterator[str]:
    yield "## Types"
    for shape in _reachable():
        yield from ("", f"### {shape.__name__}", "", _sentence(shape), "")
        yield from _struct(shape)


def _reachable() -> list[type[Struct]]:
    """Return every struct that a method or an event is made of, by name."""
    found: dict[str, type[Struct]] = {}
    waiting: list[Any] = [
        *(shape for shapes in types.SHAPES.values() for shape in shapes),
        *events.PAYLOADS.values(),
        *events.LIVE_PAYLOADS.values(),
        *(events.DurableEvent, events.LiveEvent, records.Error, *get_args(records.ProviderItem)),
    ]
    while waiting:
        shape = waiting.pop()
        if isinstance(shape, type) and issubclass(shape, Struct):
            if shape.__name__ not in found:
                found[shape.__name__] = shape
                waiting += [field.type for field in msgspec.structs.fields(shape)]
        else:
            waiting += [part for part in (get_origin(shape), *get_args(shape)) if part is not None]
    return [found[name] for name in sorted(found)]


def _struct(shape: type[Struct]) -> Iterator[str]:
    annotations, notes = _annotations(shape), _notes(shape)
    config = shape.__struct_config__
    rows = []
    if config.tag_field is not None:
        rows.append((f"`{config.tag_field}`", f"`{_json(config.tag)}`", ""))
    for field in msgspec.structs.fields(shape):
        optional = field.default is not msgspec.NODEFAULT or field.default_factory is not msgspec.NODEFAULT
        said = "optional" if optional else ""
        if optional and field.default not in (msgspec.UNSET, msgspec.NODEFAULT):
            said = f"`{_json(field.default)}` where it is left out"
        note = notes.get(field.name, "")
        rows.append(
            (
                f"`{field.encode_name}`",
                _rendered(annotations[field.name]),
                "; ".join(filter(None, (said, note))),
            )
        )
    yield from _table(("Member", "Type", ""), rows) if rows else ("No members.",)


def _annotations(shape: type[Struct]) -> dict[str, str]:
    """Return the annotation of each member as it is written, which names more than what it evaluates to."""
    found: dict[str, str] = {}
    for base in reversed(shape.__mro__):
        found.update(vars(base).get("__annotations__", {}))
    return found


def _rendered(annotation: str) -> str:
    return _expression(ast.parse(annotation, mode="eval").body)


def _expression(node: ast.expr) -> str:
    """Return a type of the code as the page writes it."""
    match node:
        case ast.BinOp(left=left, right=right):
            parts = [part for part in (_expression(left), _expression(right)) if part]
            return " or ".join(parts)
        case ast.Constant(value=None):
            return "null"
        case ast.Name(id="UnsetType"):
            return ""
        case ast.Name(id=name):
            return _PLAIN.get(name) or _link(name)
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[item, ast.Constant()])):
            return f"list of {_expression(item)}"
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, value])):
            return f"object of {_expression(value)} by {_expression(key)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=words):
            values = words.elts if isinstance(words, ast.Tuple) else [words]
            return " or ".join(f"`{ast.literal_eval(value)}`" for value in values)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[base, *_])):
            return _expression(base)
    raise AssertionError(f"no way to write the type {ast.unparse(node)}")


def _link(name: str) -> str:
    """Return a struct as a link, a union as what it is made of, and a scalar by its name."""
    meant = _NAMES.get(name)
    if isinstance(meant, type) and issubclass(meant, Struct):
        return f"[{name}](#{name.lower()})"
    if get_origin(meant) in (Union, UnionType):
        return _payload(meant)
    return f"*{name}*"


# Events


def _events() -> Iterator[str]:
    yield from ("## Events", "", "Durable, in `session.event`:", "")
    rows = []
    for kind, payload in events.PAYLOADS.items():
        rows.append((f"`{kind}`", _payload(payload), _needs(kind), projection.visibility(kind, _POWERLESS)))
    yield from _table(("Kind", "Payload", "Full with", "Without any of the scopes"), rows)
    yield from ("", "Live, in `session.live_event`, for readers with `security.read` only:", "")
    live = [(f"`{kind}`", _payload(shape)) for kind, shape in events.LIVE_PAYLOADS.items()]
    yield from _table(("Kind", "Payload"), live)


_POWERLESS = View(security_read=False, grant_manage=False, message_send=False)
_RIGHTS = {
    "security_read": "security.read",
    "grant_manage": "grant.manage",
    "message_send": "session.message.send",
}


def _needs(kind: events.EventKind) -> str:
    """Return the scopes without which, each by itself, an event of this kind is not full."""
    asked = [
        scope for right, scope in _RIGHTS.items() if projection.visibility(kind, _without(right)) != "full"
    ]
    return ", ".join(f"`{scope}`" for scope in asked)


def _without(right: str) -> View:
    return View(**{name: getattr(FULL, name) and name != right for name in _RIGHTS})


def _payload(shape: Any) -> str:
    if shape is msgspec.Raw:
        return "any JSON"
    if get_origin(shape) is tuple:
        return f"list of {_payload(get_args(shape)[0])}"
    if isinstance(shape, type):
        plain = "null" if shape is type(None) else _PLAIN.get(shape.__name__)
        return plain or _link(shape.__name__)
    return " or ".join(_payload(part) for part in get_args(shape))


# Errors, closing codes, numbers


def _errors() -> Iterator[str]:
    yield from ("## Errors", "")
    rows = [
        (f"`{code}`", _usual(refusal), _sentence(refusal)) for code, refusal in sorted(errors.BY_CODE.items())
    ]
    yield from _table(("Code", "Worth a retry", "Meaning"), rows)


def _usual(refusal: type[errors.Refusal]) -> str:
    if refusal is errors.ResourceLimit:
        return "quotas, not sizes"
    return "yes" if refusal.retryable else ""


def _closing() -> Iterator[str]:
    yield from ("## Closing codes of a WebSocket", "")
    codes = {code: reason.name.lower().replace("_", " ") for reason, code in CLOSE_CODES.items()}
    codes |= {1003: "a binary message", 1007: "text that is not UTF-8", 1009: "a message that is too long"}
    yield from _table(("Code", "Why"), [(str(code), codes[code]) for code in sorted(codes)])


def _numbers() -> Iterator[str]:
    yield from ("## Limits", "", "Fixed:", "")
    notes = _docstrings(inspect.getsource(limits))
    fixed = [
        (name, value) for name, value in vars(limits).items() if name.isupper() and isinstance(value, int)
    ]
    units = ("KIB", "MIB")
    rows = [
        (f"`{name}`", _sized(name, value), notes.get(name, "")) for name, value in fixed if name not in units
    ]
    yield from _table(("Limit", "Value", ""), rows)
    yield from ("", "Settable in the catalog's `[server]`:", "")
    said = _notes(limits.ServerSettings)
    settable = [
        (f"`{field.name}`", f"`{_json(field.default)}`", said.get(field.name, ""))
        for field in msgspec.structs.fields(limits.ServerSettings)
    ]
    yield from _table(("Setting", "Default", ""), settable)


def _sized(name: str, value: int) -> str:
    if "BYTES" in name:
        for unit, size in (("MiB", limits.MIB), ("KiB", limits.KIB)):
            if value % size == 0:
                return f"{value // size} {unit}"
    return f"{value:,}"


def _scalars() -> Iterator[str]:
    yield from ("## Scalars", "")
    notes: dict[str, str] = {}
    for module in (scalars, enums):
        notes |= _docstrings(inspect.getsource(module))
    rows = []
    for name, meant in sorted(_scalar_names()):
        words = ", ".join(f"`{word}`" for word in get_args(meant))
        is_closed = get_origin(meant) is Literal
        rows.append((name, f"one of {words}" if is_closed else _constrained(meant), notes.get(name, "")))
    yield from _table(("Name", "Is", ""), rows)


def _scalar_names() -> Iterator[tuple[str, Any]]:
    """Yield the named scalars that a struct on this page uses."""
    used = {
        node.id
        for shape in _reachable()
        for annotation in _annotations(shape).values()
        for node in ast.walk(ast.parse(annotation))
        if isinstance(node, ast.Name)
    }
    for name in used:
        meant = _NAMES.get(name)
        if (
            _link(name).startswith("*")
            and name not in _PLAIN
            and get_args(meant)
            and hasattr(meant, "__class__")
        ):
            yield name, meant


def _constrained(meant: Any) -> str:
    base, *metas = get_args(meant) if hasattr(meant, "__metadata__") else (meant,)
    said = [_PLAIN.get(getattr(base, "__name__", ""), "object of strings")]
    for meta in metas:
        said += [
            f"{name.replace('_', ' ')} `{value}`"
            for name in ("ge", "le", "min_length", "max_length")
            if (value := getattr(meta, name)) is not None
        ]
        if meta.pattern is not None and not meta.pattern.startswith("(?x)"):
            said.append(f"pattern `{meta.pattern}`")
    return ", ".join(said).replace("|", "\\|")


# Words


def _sentence(shape: Any) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join((inspect.getdoc(shape) or "").partition("\n\n")[0].split())


def _notes(shape: type[Struct]) -> dict[str, str]:
    """Return what is said behind the members of a struct, its bases' included."""
    found: dict[str, str] = {}
    for base in reversed(shape.__mro__):
        if issubclass(base, Struct) and base is not Struct and "__annotations__" in vars(base):
            (body,) = ast.parse(inspect.getsource(base)).body
            found |= _strings(getattr(body, "body", ()))
    return found


def _docstrings(source: str) -> dict[str, str]:
    """Return what is said behind the names of a module."""
    return _strings(ast.parse(source).body)


def _strings(body: Iterable[ast.stmt]) -> dict[str, str]:
    statements = list(body)
    found = {}
    for statement, behind in pairwise(statements):
        match statement, behind:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = " ".join(text.split())
    return found


def _json(value: Any) -> str:
    return encode(value).decode()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |".replace("  ", " ")
