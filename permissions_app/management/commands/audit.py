"""`manage.py audit verify`: is the audit log whole and unaltered?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from permissions_app import audit
from sessions_app.errors import Refusal

if TYPE_CHECKING:
    from django.core.management.base import CommandParser


class Command(BaseCommand):
    """Checks the chain of the audit log."""

    help = "Check that every audit record is there, in place and unaltered."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the one action."""
        parser.add_argument("action", choices=["verify"])

    def handle(self, *_args: Any, **_options: Any) -> None:
        """Chain what waits, then verify; a broken chain is one line and exit 1."""
        try:
            audit.chain_waiting()
            verdict = audit.verify()
        except Refusal as refusal:
            raise CommandError(refusal.message) from None
        if verdict.reason:
            raise CommandError(f"The audit log is broken at record {verdict.broken_at}: {verdict.reason}.")
        self.stdout.write(f"{verdict.count} audit records, none missing, none altered.")
