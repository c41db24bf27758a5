"""`manage.py audit verify|cut`: is the audit log whole and unaltered; letting go of its oldest part."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from permissions_app import audit
from permissions_app.scopes import command_line
from sessions_app.errors import Refusal

if TYPE_CHECKING:
    from django.core.management.base import CommandParser


class Command(BaseCommand):
    """Checks the chain of the audit log, or cuts its oldest part."""

    help = "Check that every audit record is there, in place and unaltered, or let go of the oldest ones."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the two actions."""
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("verify", help="recompute the chain")
        cut = actions.add_parser(
            "cut", help="remove the oldest records; the chain goes on from the last of them"
        )
        cut.add_argument(
            "--before", type=_instant, required=True, help="an ISO 8601 time, UTC unless it says else"
        )

    def handle(self, *_args: Any, **options: Any) -> None:
        """Chain what waits, then run one action; whatever is wrong is one line and exit 1."""
        try:
            audit.chain_waiting()
            if options["action"] == "cut":
                count = audit.cut(command_line(), options["before"])
                self.stdout.write(f"{count} audit records removed.")
                return
            verdict = audit.verify()
        except Refusal as refusal:
            raise CommandError(refusal.message) from None
        if verdict.reason:
            raise CommandError(f"The audit log is broken at record {verdict.broken_at}: {verdict.reason}.")
        self.stdout.write(f"{verdict.count} audit records, none missing, none altered.")


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
