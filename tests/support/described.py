"""Hypothesis strategies for all that the protocol's schema says of a value, conditions between members included.

Owns: the way from a definition to `hypothesis-jsonschema`. Does not own: the schema (`tests.golden.contract`), or the strategies
for its shapes alone (`shaped`).

The library's last version draws the members of an object by a method that Hypothesis no longer has. It gets that method back here,
and here alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import hypothesis_jsonschema
from hypothesis import strategies as st
from hypothesis.internal.conjecture import utils

from tests.golden.contract import DEFS

_PLACE = "#/$defs/"


class _Many(utils.many):
    """As the library knows it: asked for one element after the other."""

    _elements: Iterator[None] | None = None

    def more(self) -> bool:
        """Tell whether another element shall be drawn."""
        if self._elements is None:
            self._elements = iter(self.__enter__())
        for _ in self._elements:
            return True
        self.__exit__(None)
        return False


vars(hypothesis_jsonschema._from_schema)["cu"] = SimpleNamespace(many=_Many)


@cache
def described(name: str) -> st.SearchStrategy[Any]:
    """Return values that a definition of the schema allows."""
    root = {"$ref": _PLACE + name}
    found: dict[str, Any] = {}
    _gather(root, found)
    made: st.SearchStrategy[Any] = hypothesis_jsonschema.from_schema({**root, "$defs": found})
    return made


def _gather(node: Any, found: dict[str, Any]) -> None:
    """Put every definition that a schema leads to into `found`; the library reads all that it is given."""
    if isinstance(node, dict):
        name = str(node.get("$ref", "")).removeprefix(_PLACE)
        if name in DEFS and name not in found:
            found[name] = DEFS[name]
            _gather(DEFS[name], found)
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _gather(inner, found)
