"""Whether this process is an embedded host, and of what (behaviour 4.1).

Owns: the one prompt and the one workspace that such a process was started with, and what requests by path mean there. Does not own:
the process (`ochat_site.stdio.host`), or their rows in the catalog.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Embedding(NamedTuple):
    """What an embedded host was started with; paths are resolved."""

    prompt_id: str
    prompt_file: Path
    workspace_id: str
    workspace: Path

    def is_prompt(self, path: str) -> bool:
        """Tell whether a path, from the folder of the process, is that of the prompt."""
        return Path(path).resolve() == self.prompt_file

    def is_workspace(self, path: str) -> bool:
        """Tell whether a path, from the folder of the process, is that of the workspace."""
        return Path(path).resolve() == self.workspace


_current: list[Embedding] = []


def install(embedding: Embedding | None) -> None:
    """Make this process an embedded host, or a server again (tests)."""
    _current[:] = [] if embedding is None else [embedding]


def current() -> Embedding | None:
    """Return what this process embeds; None for a server."""
    return _current[0] if _current else None
