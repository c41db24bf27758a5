"""The description of the HTTP routes, and the page that shows it."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from django.test import Client
from drf_spectacular.validation import validate_schema

from ochat_site.json_schema import PREFIX, Components
from ochat_site.rpc.methods import METHODS
from ochat_site.web import Web
from tests.golden.contract import EXAMPLES, Example

REQUESTS = [each for each in EXAMPLES if each.valid and each.definition.endswith(".request")]
HANDLED = [each for each in REQUESTS if ("ochat1", each.definition.removesuffix(".request")) in METHODS]


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    """The description as it is served."""
    answer = Client().get("/docs/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = json.loads(answer.content)
    return found


def test_it_is_valid_and_names_every_route(described: dict[str, Any]) -> None:
    validate_schema(described)  # type: ignore[no-untyped-call]  # the library declares no types here
    served = {(route.path, method.lower()) for route in Web()._routes() for method in route.methods}
    named = {(path, method) for path, operations in described["paths"].items() for method in operations}
    assert served <= named
    assert {path for path, _ in named - served} == {"/healthz", "/readyz"}


def test_references_lead_somewhere(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    for name in re.findall(rf'"{PREFIX}([^"]+)"', json.dumps(described)):
        assert schemas[name]["type"] == "object"


def test_patterns_are_what_every_reader_knows(described: dict[str, Any]) -> None:
    for pattern in re.findall(r'"pattern": ("(?:[^"\\]|\\.)*")', json.dumps(described)):
        assert not re.search(r"\(\?x\)|\\A|\\Z|\s#", json.loads(pattern))


@pytest.mark.parametrize("example", HANDLED, ids=lambda example: example.file)
def test_what_the_contract_shows_is_allowed(example: Example) -> None:
    """The params of every example of a request fit the description of its method."""
    call = json.loads(example.text)
    shapes = Components()
    schema = {
        **shapes.of(METHODS["ochat1", call["method"]].params),
        "components": {"schemas": shapes.schemas},
    }
    jsonschema.Draft202012Validator(schema).validate(call.get("params", {}))


def test_the_page_brings_everything_along(described: dict[str, Any]) -> None:
    page = Client().get("/docs/")
    text = page.content.decode()
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    assert "<style" not in text
    assert re.findall(r"<script>|\sstyle=|\son\w+=", text) == []
    linked = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert {link[0] for link in linked} == {"/"}
    for link in linked:
        answer = Client().get(link)
        assert answer.status_code == 200
        assert b"".join(answer)
