"""JSON Schema of the structs of this server, as OpenAPI wants it.

Owns: the way from a msgspec type to a schema. Does not own: the structs, or what names them (`openapi`). The library's own way
fails at defaults that are free JSON, and keeps the comments inside patterns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from msgspec import inspect

Schema = dict[str, Any]

PREFIX = "#/components/schemas/"


class Components:
    """Schemas by name, each struct once."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}

    def of(self, shape: Any) -> Schema:
        """Return the schema of a type; structs in it become components and references to them."""
        return self._schema(inspect.type_info(shape))

    def _schema(self, kind: inspect.Type) -> Schema:
        if isinstance(kind, inspect.Metadata):
            return self._schema(kind.type)
        written = _PLAIN.get(type(kind))
        if written is not None:
            return written(kind)
        build = _BUILT.get(type(kind))
        return {} if build is None else build(self, kind)

    def _array(self, kind: Any) -> Schema:
        bounds = _given(minItems=kind.min_length, maxItems=kind.max_length)
        return {"type": "array", "items": self._schema(kind.item_type), **bounds}

    def _fixed(self, kind: inspect.TupleType) -> Schema:
        count = len(kind.item_types)
        items = [self._schema(item) for item in kind.item_types]
        return {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}

    def _mapping(self, kind: inspect.DictType) -> Schema:
        return {"type": "object", "additionalProperties": self._schema(kind.value_type)}

    def _union(self, kind: inspect.UnionType) -> Schema:
        choices = [self._schema(one) for one in kind.types]
        return choices[0] if len(choices) == 1 else {"anyOf": choices}

    def _struct(self, kind: inspect.StructType) -> Schema:
        name = _name(kind.cls)
        if name not in self.schemas:
            self.schemas[name] = {}  # a struct may hold itself
            self.schemas[name] = self._members(kind)
        return {"$ref": PREFIX + name}

    def _members(self, kind: inspect.StructType) -> Schema:
        properties: dict[str, Schema] = {}
        required: list[str] = []
        if kind.tag_field is not None:
            properties[kind.tag_field] = {"const": kind.tag}
            required.append(kind.tag_field)
        for member in kind.fields:
            properties[member.encode_name] = self._schema(member.type)
            if member.required:
                required.append(member.encode_name)
        origin = getattr(kind.cls, "__origin__", kind.cls)
        said = _given(description=(origin.__doc__ or "").strip() or None, required=required or None)
        return {"type": "object", "properties": properties, **said}


def _name(cls: Any) -> str:
    arguments: Iterable[Any] = getattr(cls, "__args__", ())
    own = getattr(cls, "__origin__", cls).__name__
    return "".join([*(argument.__name__ for argument in arguments), own])


def _given(**members: Any) -> Schema:
    return {name: value for name, value in members.items() if value is not None}


def _number(kind: Any, name: str) -> Schema:
    return {
        "type": name,
        **_given(minimum=kind.ge, maximum=kind.le, exclusiveMinimum=kind.gt, exclusiveMaximum=kind.lt),
    }


def _text(kind: Any) -> Schema:
    pattern = None if kind.pattern is None else _portable(kind.pattern)
    return {
        "type": "string",
        **_given(minLength=kind.min_length, maxLength=kind.max_length, pattern=pattern),
    }


def _portable(pattern: str) -> str:
    r"""Return a pattern without what only Python knows: free spacing, comments, `\A` and `\Z`."""
    if pattern.startswith("(?x)"):
        pattern = re.sub(r"\s+", "", re.sub(r"(?m)(?<!\\)#.*$", "", pattern.removeprefix("(?x)")))
    return pattern.replace(r"\A", "^").replace(r"\Z", "$")


_PLAIN: dict[type, Callable[[Any], Schema]] = {
    inspect.NoneType: lambda _: {"type": "null"},
    inspect.BoolType: lambda _: {"type": "boolean"},
    inspect.IntType: partial(_number, name="integer"),
    inspect.FloatType: partial(_number, name="number"),
    inspect.StrType: _text,
    inspect.LiteralType: lambda kind: {"enum": list(kind.values)},
}
_BUILT: dict[type, Callable[[Components, Any], Schema]] = {
    inspect.ListType: Components._array,
    inspect.VarTupleType: Components._array,
    inspect.TupleType: Components._fixed,
    inspect.DictType: Components._mapping,
    inspect.UnionType: Components._union,
    inspect.StructType: Components._struct,
}
