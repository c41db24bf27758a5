"""The page about the protocol says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from django.core.management import CommandError, call_command
from pytest_django.fixtures import Settings

from ochat_site import reference
from ochat_site.rpc.methods import METHODS
from sessions_app.records import DurableEventKind, ErrorCode, RecoverableEventKind
from tests.golden.contract import DEFS

PAGE = Path(__file__).parent.parent.parent / "docs" / "protocol-reference.md"


def section(name: str) -> str:
    """A section of the page as the code renders it now."""
    return re.split(rf"^## {name}$", reference.render(), flags=re.MULTILINE)[1].partition("\n## ")[0]


def firsts(name: str) -> set[str]:
    """What stands first in the rows of a section's tables."""
    return set(re.findall(r"^\| `([^`]+)` \|", section(name), flags=re.MULTILINE))


def test_the_committed_page_is_not_stale() -> None:
    call_command("protocol_reference", check=True)


def test_a_stale_page_is_told_and_written_anew(tmp_path: Path, settings: Settings) -> None:
    settings.BASE_DIR = tmp_path
    (tmp_path / "docs").mkdir()
    for text in (None, "stale"):
        if text is not None:
            (tmp_path / "docs" / PAGE.name).write_text(text)
        with pytest.raises(CommandError, match="is stale"):
            call_command("protocol_reference", check=True)
    call_command("protocol_reference")
    call_command("protocol_reference", check=True)


def test_every_method_event_and_code_is_on_it() -> None:
    assert firsts("Methods") == {name for dialect, name in METHODS if dialect == "ochat1"}
    assert firsts("Events") == {*get_args(DurableEventKind), *get_args(RecoverableEventKind)}
    assert firsts("Errors") == set(get_args(ErrorCode))


def test_every_link_leads_to_a_type() -> None:
    page = reference.render()
    headings = {heading.lower() for heading in re.findall(r"^### (\w+)$", page, flags=re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= headings


def test_types_have_the_members_of_the_schema() -> None:
    found = dict(re.findall(r"^### (\w+)\n\n.*\n\n((?:\|.*\n)+)", reference.render(), flags=re.MULTILINE))
    compared = 0
    for name, definition in DEFS.items():
        if name in found and "properties" in definition:
            compared += 1
            assert set(re.findall(r"^\| `(\w+)`", found[name], flags=re.MULTILINE)) == set(
                definition["properties"]
            )
    assert compared > 60
