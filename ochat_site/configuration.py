"""The catalog of this installation: the file that the environment names, and what each layer takes from it (design 6).

Owns: which tools a prompt may ask for, and what the layers above the kernel store when a catalog is swapped in. Does not own:
the swap (`sessions_app.catalog`), tokens and audit (`permissions_app`), or when a process polls (`jobs_app.background`).
"""

from __future__ import annotations

from pathlib import Path

from django.conf import settings

from ochat_site.packs import TOOLS
from permissions_app import audit, tokens
from sessions_app.catalog import Diff, Follower, Source
from sessions_app.catalog_file import CatalogFile
from sessions_app.chatmd.elements import BuiltinTool, Tool


def has_tool(tool: Tool) -> bool:
    """Tell whether this server has a tool that a prompt declares."""
    return isinstance(tool, BuiltinTool) and tool.name in TOOLS


def source(file: Path) -> Source:
    """Return a catalog file as this installation takes it."""
    return Source(file, has_tool, _on_swap)


def follower() -> Follower:
    """Return what one process uses to follow this installation's catalog: `start` before it serves, then
    `reload_if_changed` every `config_poll_ms`, and `request_reload` on SIGHUP.
    """
    return Follower(source(settings.ENV.catalog))


def _on_swap(file: CatalogFile, diff: Diff) -> None:
    tokens.sync_file_tokens(file.tokens)
    audit.record_reload(diff)
