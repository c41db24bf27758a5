"""The tool `clock`: the time, in a zone that is one, for arguments that are what its schema says."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import jsonschema
import msgspec
import pytest

from ochat_site.packs import TOOLS
from sessions_app import clock
from sessions_app.runtime.ports import ToolContext, ToolError

NOW = datetime(2026, 7, 1, 12, 30, 15, 999_999, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _stopped_clock() -> Iterator[None]:
    with clock.using(lambda: NOW):
        yield


async def told(arguments: str) -> object:
    """Run the tool."""
    context = ToolContext(
        session_id="ses_1",
        operation_id="op_1",
        call_id="call_1",
        workspace=None,
        progress=lambda _channel, _text: None,
    )
    return await TOOLS["clock"].run(arguments, context)


@pytest.mark.parametrize(
    ("arguments", "time"),
    [
        ("", "2026-07-01T12:30:15+00:00"),
        ("{}", "2026-07-01T12:30:15+00:00"),
        ('{"timezone":"UTC"}', "2026-07-01T12:30:15+00:00"),
        ('{"timezone":"Europe/Paris"}', "2026-07-01T14:30:15+02:00"),
        ('{"timezone":"Asia/Kathmandu"}', "2026-07-01T18:15:15+05:45"),
    ],
)
async def test_the_time_in_a_zone(arguments: str, time: str) -> None:
    assert await told(arguments) == time


@pytest.mark.parametrize(
    "zone", ["Mars/Base", "", "Europe", "../../etc/passwd", "/etc/localtime", "a\\u0000b"]
)
async def test_no_such_zone(zone: str) -> None:
    with pytest.raises(ToolError, match="no such time zone"):
        await told(f'{{"timezone":"{zone}"}}')


@pytest.mark.parametrize(
    "arguments", ["[]", "noon", "null", '{"timezone":1}', '{"zone":"UTC"}', '{"timezone":"UTC"', "[" * 10_000]
)
async def test_other_arguments(arguments: str) -> None:
    with pytest.raises(ToolError, match="arguments"):
        await told(arguments)


def test_its_schema_says_so() -> None:
    schema = msgspec.json.decode(TOOLS["clock"].spec.parameters)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"timezone": "Europe/Paris"})
    assert not validator.is_valid({"zone": "UTC"})
    assert not validator.is_valid({"timezone": 1})


def test_it_reads_only_and_hides_nothing() -> None:
    assert TOOLS["clock"].tier == "read"
    assert TOOLS["clock"].display('{"timezone":"UTC"}') == '{"timezone":"UTC"}'
