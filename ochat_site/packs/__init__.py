"""Capability packs: the tools that prompts may declare, each with its tier and schema (design 2).

Owns: the table of all tools of this server. Does not own: which of them a prompt gets (its declarations) or whether a call may
run (the gate).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ochat_site.packs.time import Clock
from sessions_app.runtime.ports import Tool

TOOLS: Mapping[str, Tool] = MappingProxyType({tool.spec.name: tool for tool in (Clock(),)})
"""Every tool of this server by the name that a prompt declares."""
