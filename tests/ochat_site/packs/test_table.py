"""The table of tools: what a prompt may declare, by the name that the model uses."""

from __future__ import annotations

from typing import get_args

import jsonschema
import msgspec
import pytest

from ochat_site.packs import TOOLS
from sessions_app.runtime.ports import Tier


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_is_whole(name: str) -> None:
    tool = TOOLS[name]
    assert tool.spec.name == name
    assert tool.spec.description
    assert tool.tier in get_args(Tier)
    schema = msgspec.json.decode(tool.spec.parameters)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
