"""`manage.py grant list|revoke`: remembered permissions from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from permissions_app import grants
from permissions_app.scopes import command_line
from sessions_app.errors import Refusal
from sessions_app.limits import MAX_PAGE_SIZE
from sessions_app.receipts import Call

if TYPE_CHECKING:
    from django.core.management.base import CommandParser


class Command(BaseCommand):
    """Lists and revokes grants."""

    help = "List the grants of sessions, or revoke one."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the two actions."""
        actions = parser.add_subparsers(dest="action", required=True)
        shown = actions.add_parser("list", help="list grants by id")
        shown.add_argument("--session", help="only those of this session")
        revoke = actions.add_parser("revoke", help="revoke a grant, with effect on later calls")
        revoke.add_argument("session_id")
        revoke.add_argument("grant_id")
        revoke.add_argument("--reason", default="revoked by an operator")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run one action; a refusal is one line."""
        try:
            getattr(self, f"_{options['action']}")(options)
        except Refusal as refusal:
            raise CommandError(refusal.message) from None

    def _list(self, options: dict[str, Any]) -> None:
        last = ""
        while page := grants.list_grants(
            command_line().visible, session_id=options["session"], after=last, limit=MAX_PAGE_SIZE
        ):
            for grant in page:
                columns = (grant.id, grant.session_id, grant.state, grant.scope, grant.tool_name)
                self.stdout.write("\t".join(columns))
            last = page[-1].id

    def _revoke(self, options: dict[str, Any]) -> None:
        call = Call(caller=command_line(), method="grant.revoke")
        grants.revoke_grant(call, options["session_id"], options["grant_id"], options["reason"])
        self.stderr.write("Revoked.")
