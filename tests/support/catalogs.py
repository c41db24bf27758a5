"""A catalog in a folder of its own, written as an operator writes one."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from sessions_app.catalog import Source
from sessions_app.catalog_file import CatalogFile
from sessions_app.chatmd.elements import Tool

PROMPT = '<config model="demo:demo"/>\n<tool name="clock"/>\n<developer>{text}</developer>\n'

CATALOG = """version = 1
default_prompt = "coding"
default_workspace = "scratch"
models = ["demo:demo"]

[[workspaces]]
id = "scratch"
source = { temporary = { location = "session_dir", cleanup = "on_session_delete" } }
access = "shared_write"
prompt_limits = [{ prompt = "coding", max_root_agents = 4, overflow = "queue" }]

[[permission_profiles]]
id = "open"
tool_default = "allow"

[[prompts]]
id = "coding"
path = "prompts/coding.chatmd"
description = "Writes code."
allowed_workspaces = ["scratch"]
permission_profile = "open"
"""

SECOND_PROMPT = """
[[prompts]]
id = "writing"
path = "prompts/writing.chatmd"
allowed_workspaces = ["scratch"]
permission_profile = "open"
"""


def has_clock_only(tool: Tool) -> bool:
    """The tools of a server that has the clock."""
    return tool.name == "clock"


@dataclass
class Catalog:
    """The files of one catalog, and what was swapped in from them."""

    folder: Path
    swapped: list[CatalogFile] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "prompts").mkdir()
        self.write_prompt("coding", "You write code.")
        self.write_prompt("writing", "You write prose.")
        self.write(CATALOG)

    @property
    def file(self) -> Path:
        """The catalog file."""
        return self.folder / "ochat.toml"

    @property
    def source(self) -> Source:
        """The file as a server with the clock takes it."""
        return Source(self.file, has_clock_only, lambda file, _diff: self.swapped.append(file))

    def write(self, text: str) -> None:
        """Write the catalog file, later than any time before."""
        before = self.file.stat().st_mtime_ns if self.file.exists() else 0
        self.file.write_text(text, encoding="utf-8")
        if self.file.stat().st_mtime_ns <= before:
            os.utime(self.file, ns=(before + 1, before + 1))

    def write_prompt(self, name: str, text: str) -> None:
        """Write a prompt that says `text` to the model; the catalog file is not touched."""
        (self.folder / "prompts" / f"{name}.chatmd").write_text(PROMPT.format(text=text), encoding="utf-8")
