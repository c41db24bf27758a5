"""`manage.py session restore`: archived sessions from the command line (behaviour 9.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from permissions_app.scopes import command_line
from sessions_app.commands import deletion
from sessions_app.errors import Refusal
from sessions_app.receipts import Call

if TYPE_CHECKING:
    from django.core.management.base import CommandParser


class Command(BaseCommand):
    """Restores sessions."""

    help = "Bring back a session that was deleted with policy archive."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the one action."""
        actions = parser.add_subparsers(dest="action", required=True)
        restore = actions.add_parser("restore", help="bring an archived session back, stopped")
        restore.add_argument("session_id")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run the action; a refusal is one line."""
        call = Call(caller=command_line(), method="operator.restore")
        try:
            deletion.restore_session(call, options["session_id"])
        except Refusal as refusal:
            raise CommandError(refusal.message) from None
        self.stderr.write("The session is restored, stopped.")
