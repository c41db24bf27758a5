"""Hypothesis strategies for what the protocol's schema describes.

Enough of JSON Schema for the params of methods, and no more: conditions between members are left out, so that what is drawn
has the right shape and may still mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from hypothesis import strategies as st

from tests.golden.contract import DEFS

Schema = Mapping[str, Any]
LARGEST = 2**70

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-LARGEST, LARGEST) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@cache
def definition(name: str) -> st.SearchStrategy[Any]:
    """Return values shaped like a definition of the schema."""
    return st.deferred(lambda: shaped(DEFS[name]))


def shaped(schema: Schema | bool) -> st.SearchStrategy[Any]:
    """Return values shaped like a schema."""
    if isinstance(schema, bool) or not schema:
        return JSON
    if "$ref" in schema:
        return definition(schema["$ref"].rpartition("/")[2])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "type" in schema:
        return _TYPES[schema["type"]](schema)
    return st.one_of([shaped(choice) for choice in schema.get("oneOf", [])] or [JSON])


def _object(schema: Schema) -> st.SearchStrategy[Any]:
    members = {name: shaped(inner) for name, inner in schema.get("properties", {}).items()}
    if not members and "additionalProperties" in schema:
        return st.dictionaries(st.text(), shaped(schema["additionalProperties"]), max_size=4)
    required = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: inner for name, inner in members.items() if name in required},
        optional={name: inner for name, inner in members.items() if name not in required},
    )


def _integer(schema: Schema) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum", -LARGEST), schema.get("maximum", LARGEST)
    return st.integers(low, high) | st.integers(low, min(low + 20, high)) | st.just(high)


def _string(schema: Schema) -> st.SearchStrategy[Any]:
    if "pattern" in schema:
        longest = schema.get("maxLength", 2**16)
        return st.from_regex(schema["pattern"]).filter(lambda text: len(text) <= longest)
    return st.text(min_size=schema.get("minLength", 0))


def _array(schema: Schema) -> st.SearchStrategy[Any]:
    return st.lists(shaped(schema.get("items", True)), min_size=schema.get("minItems", 0), max_size=3)


_TYPES: Mapping[str, Callable[[Schema], st.SearchStrategy[Any]]] = {
    "object": _object,
    "array": _array,
    "integer": _integer,
    "string": _string,
    "boolean": lambda _schema: st.booleans(),
    "number": lambda _schema: st.floats(allow_nan=False),
    "null": lambda _schema: st.none(),
}
