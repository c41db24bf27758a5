"""`manage.py protocol_reference [--check]`: the page about the protocol, from the code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from ochat_site import reference

if TYPE_CHECKING:
    from django.core.management.base import CommandParser


class Command(BaseCommand):
    """Writes the page, or tells that it is stale."""

    help = "Write docs/protocol-reference.md from the code, or check that it says what the code does."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the one option."""
        parser.add_argument(
            "--check", action="store_true", help="write nothing; exit 1 when the page is stale"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Write or check."""
        file = Path(settings.BASE_DIR) / "docs" / "protocol-reference.md"
        text = reference.render()
        if not options["check"]:
            file.write_text(text, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            raise CommandError("docs/protocol-reference.md is stale: run manage.py protocol_reference.")
