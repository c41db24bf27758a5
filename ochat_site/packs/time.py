"""The tool `clock`: the current time. Trivial, so that everything around a tool can be tried with it."""

from __future__ import annotations

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

import msgspec

from sessions_app import clock
from sessions_app.records import ToolOutput
from sessions_app.runtime.models.port import ToolSpec
from sessions_app.runtime.ports import Tier, ToolContext, ToolError

_PARAMETERS = b"""{"type":"object","properties":{"timezone":{"type":"string",
"description":"An IANA time zone such as Europe/Paris; UTC when absent."}},"additionalProperties":false}"""


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    timezone: str = "UTC"


class Clock:
    """Tells the time in a time zone."""

    spec = ToolSpec(name="clock", description="Tells the current date and time.", parameters=_PARAMETERS)
    tier: Tier = "read"

    def display(self, arguments: str) -> str:
        """Return the arguments as they are: a time zone is no secret."""
        return arguments

    async def run(self, arguments: str, context: ToolContext) -> ToolOutput:
        """Return the time as ISO 8601, to the second. Raises ToolError for other arguments or an unknown zone."""
        try:
            wanted = msgspec.json.decode(arguments or "{}", type=_Arguments)
        except msgspec.DecodeError:
            raise ToolError("The arguments must be an object with at most the member timezone.") from None
        return clock.now().astimezone(_zone(wanted.timezone)).isoformat(timespec="seconds")


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ToolError("There is no such time zone.") from None
