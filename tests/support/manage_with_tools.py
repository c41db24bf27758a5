"""`manage.py` of a server with one more tool, for tests that must catch a tool at work.

Run as `python -m tests.support.manage_with_tools`. Owns: the tool `slow`, whose effect can be counted and whose end the test
decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

import manage
from ochat_site import packs
from sessions_app.records import ToolOutput
from sessions_app.runtime.models.port import ToolSpec
from sessions_app.runtime.ports import Tier, Tool, ToolContext
from tests.support.waiting import eventually

EFFECTS = "effects"
GO = "go"
MOST_SECONDS = 600.0
"""Longer than any test."""


class Slow:
    """Has an effect, a line in the file `EFFECTS` of the workspace, and is done once the file `GO` is there."""

    spec = ToolSpec(name="slow", description="Takes its time.")
    tier: Tier = "edit"

    def display(self, arguments: str) -> str:
        """Return the arguments: there are none."""
        return arguments

    async def run(self, arguments: str, context: ToolContext) -> ToolOutput:
        """Have the effect, then wait."""
        assert context.workspace is not None
        msgspec.json.decode(arguments)
        folder = Path(context.workspace)
        with (folder / EFFECTS).open("a", encoding="utf-8") as file:
            file.write(f"{context.call_id}\n")
        await eventually((folder / GO).exists, "the test lets the tool go on", MOST_SECONDS)
        return "done"


def main() -> None:
    """Run a command of `manage.py`; the tools are what they are from before anything asks for them."""
    tools: Mapping[str, Tool] = {**packs.TOOLS, "slow": Slow()}
    packs.TOOLS = tools
    manage.main()


if __name__ == "__main__":
    main()
