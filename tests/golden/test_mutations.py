"""Broken copies of the valid examples: our code refuses what the schema refuses, and takes what it takes.

Beyond the schema our code may refuse only for a rule that a schema cannot say, in the words of that rule.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions_app.errors import Refusal
from tests.golden.contract import EXAMPLES, read, reading

MISSING = object()
VALUES: tuple[object, ...] = (
    MISSING,
    None,
    True,
    "",
    "x",
    "ses_x",
    "2:ab:0",
    0,
    -1,
    1.0,
    2**62,
    2**63,
    [],
    ["x"],
    {},
    {"x": None},
)
VALID = [example for example in EXAMPLES if example.valid]
Path = tuple[str | int, ...]


def paths(node: Any, path: Path = ()) -> Iterator[Path]:
    """Find every place in a message, but not inside free JSON, provider items and what is only carried encoded."""
    items: Any = enumerate(node) if isinstance(node, list) else node.items() if isinstance(node, dict) else ()
    for key, value in items:
        if key in ("events", "active_tool_calls", "active_agent_calls", "event") or (
            key == "payload" and len(path) > 1
        ):
            continue
        yield (*path, key)
        yield from paths(value, (*path, key))


def changed(document: Any, path: Path, value: object) -> Any:
    """Return a copy with the value at `path` replaced or, for MISSING, taken away."""
    document = copy.deepcopy(document)
    node = document
    for key in path[:-1]:
        node = node[key]
    if value is MISSING:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    return document


def verdict(definition: str, document: Any) -> str:
    """Return how our code takes a message: `taken`, refused for its `shape`, or for a `rule` beside it."""
    try:
        read(definition, json.dumps(document).encode())
    except Refusal as refusal:
        return "shape" if refusal.message.endswith(("is not valid", "is missing")) else "rule"
    except ValueError as error:
        return "shape" if isinstance(error, msgspec.ValidationError) and error.__cause__ is None else "rule"
    return "taken"


def check(definition: str, document: Any) -> None:
    """Assert that schema and code agree about a message."""
    ours = verdict(definition, document)
    if reading(definition).is_valid(document):
        assert ours in ("taken", "rule")
    else:
        assert ours != "taken"


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_one_change_gets_the_verdict_of_the_schema(data: st.DataObject) -> None:
    example = data.draw(st.sampled_from(VALID))
    document = json.loads(example.text)
    path = data.draw(st.sampled_from(list(paths(document))))

    check(example.definition, changed(document, path, data.draw(st.sampled_from(VALUES))))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("example", VALID, ids=lambda example: example.file)
def test_every_change_gets_the_verdict_of_the_schema(example: Any) -> None:
    document = json.loads(example.text)
    for path in paths(document):
        for value in VALUES:
            check(example.definition, changed(document, path, value))


@pytest.mark.parametrize("example", VALID, ids=lambda example: example.file)
def test_an_unknown_member_is_skipped(example: Any) -> None:
    document = json.loads(example.text)
    document["unknown"] = {"x": [None, 1.5]}
    document.get("params", {})["unknown"] = 1

    assert verdict(example.definition, document) == "taken"
