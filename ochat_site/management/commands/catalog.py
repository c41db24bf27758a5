"""`manage.py catalog check|load FILE`: the catalog from the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from ochat_site import configuration
from sessions_app import catalog
from sessions_app.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.core.management.base import CommandParser


class Command(BaseCommand):
    """Checks a catalog file, or puts it in force."""

    help = "Check a catalog file, or put it in force in running servers too."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the two actions."""
        actions = parser.add_subparsers(dest="action", required=True)
        check = actions.add_parser("check", help="say what is wrong with a file; touches nothing")
        load = actions.add_parser("load", help="put a file in force, and read its prompts again")
        for action in (check, load):
            action.add_argument("file", type=Path)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run one action; everything that is wrong is one line, and exit 1."""
        try:
            getattr(self, f"_{options['action']}")(options["file"])
        except Refusal as refusal:
            raise CommandError(refusal.message) from None

    def _check(self, file: Path) -> None:
        problems = catalog.check(file, configuration.has_tool)
        self._say(file, problems)
        if problems:
            sys.exit(1)
        self.stdout.write(f"{file.name} is a catalog, and everything in it is available.")

    def _load(self, file: Path) -> None:
        loaded = catalog.load(configuration.source(file), at_start=True)
        self._say(file, loaded.problems)
        tables = loaded.diff.tables
        if "server" in tables:
            self.stderr.write("The [server] table counts for processes that start from now on.")
        self.stdout.write(
            f"Version {loaded.diff.version} is in force; changed: {', '.join(tables) or 'nothing'}."
        )

    def _say(self, file: Path, problems: Sequence[str]) -> None:
        for problem in problems:
            self.stderr.write(f"{file.name}: {problem}")
