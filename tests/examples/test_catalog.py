"""The catalog that a first start loads: it is one, and its prompts can run without anything else."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from sessions_app import catalog_file, limits
from sessions_app.catalog_file import PromptEntry, read_catalog
from sessions_app.chatmd.elements import Tool
from sessions_app.chatmd.pin import PinnedPrompt, capture

EXAMPLES = Path(__file__).parents[2] / "examples"
CATALOG = read_catalog(EXAMPLES / "ochat.toml")


def has_clock_only(tool: Tool) -> bool:
    return tool.name == "clock"


@pytest.mark.parametrize("entry", CATALOG.prompts, ids=lambda entry: entry.id)
def test_every_prompt_is_available(entry: PromptEntry) -> None:
    pinned = capture(EXAMPLES / entry.path, has_clock_only)
    assert isinstance(pinned, PinnedPrompt), pinned.reason
    assert pinned.prompt.config.model
    assert len(pinned.prompt.items) == 1


def test_the_default_prompt_runs_offline_in_the_default_workspace() -> None:
    (demo,) = [prompt for prompt in CATALOG.prompts if prompt.id == CATALOG.default_prompt]
    assert CATALOG.default_workspace in demo.allowed_workspaces
    pinned = capture(EXAMPLES / demo.path, has_clock_only)
    assert isinstance(pinned, PinnedPrompt)
    assert (pinned.prompt.config.model or "").startswith("demo:")


def test_profiles_ask_deny_and_allow() -> None:
    assert {profile.id: profile.tool_default for profile in CATALOG.permission_profiles} == {
        "interactive": "ask",
        "unattended": "deny",
        "open": "allow",
    }


@pytest.mark.parametrize(
    "table",
    [
        catalog_file.CatalogFile,
        catalog_file.WorkspaceEntry,
        catalog_file.WorkspaceSource,
        catalog_file.TemporarySource,
        catalog_file.PromptLimitEntry,
        catalog_file.ProfileEntry,
        catalog_file.PromptEntry,
        catalog_file.TokenEntry,
        catalog_file.ManifestGrantEntry,
        catalog_file.TrustedProxyEntry,
        limits.ServerSettings,
        limits.JobLimits,
    ],
)
def test_the_manual_has_every_key(table: type[msgspec.Struct]) -> None:
    manual = (EXAMPLES.parent / "docs" / "catalog.md").read_text(encoding="utf-8")
    missing = [one.name for one in msgspec.structs.fields(table) if not re.search(rf"\b{one.name}\b", manual)]
    assert missing == []
