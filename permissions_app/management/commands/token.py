"""`manage.py token create|list|revoke`: bearer tokens from the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from permissions_app import tokens
from permissions_app.models import SCOPES
from permissions_app.principals import of_service, of_user
from permissions_app.scopes import command_line
from sessions_app import clock
from sessions_app.errors import Refusal

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

    from permissions_app.models import Principal, Token


class Command(BaseCommand):
    """Makes, lists and revokes bearer tokens."""

    help = "Make, list and revoke bearer tokens; the text of a new one is shown once."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the three actions."""
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="make a token and print it, once")
        owner = create.add_mutually_exclusive_group(required=True)
        owner.add_argument("--user", help="name of the Django user it stands for")
        owner.add_argument("--service", help="name of a service; made if it is new")
        rights = create.add_mutually_exclusive_group(required=True)
        rights.add_argument("--scope", action="append", choices=SCOPES, dest="scopes", help="may be repeated")
        rights.add_argument("--all-scopes", action="store_const", const=list(SCOPES), dest="scopes")
        create.add_argument("--name", default="", help="what it is for")
        create.add_argument("--expires", type=_instant, help="end of its life, as in 2030-01-31T00:00:00Z")
        actions.add_parser("list", help="list all tokens, newest first")
        revoke = actions.add_parser("revoke", help="revoke a token")
        revoke.add_argument("token_id")

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run one action; a refusal is one line."""
        try:
            getattr(self, f"_{options['action']}")(options)
        except Refusal as refusal:
            raise CommandError(refusal.message) from None

    def _create(self, options: dict[str, Any]) -> None:
        issued = tokens.create_token(
            command_line(),
            self._principal(options),
            scopes=options["scopes"],
            source="command",
            name=options["name"],
            expires_at=options["expires"],
        )
        self.stderr.write(f"{issued.token.id} for {issued.token.principal}; the token is shown only now:")
        self.stdout.write(issued.plaintext)

    def _principal(self, options: dict[str, Any]) -> Principal:
        if options["service"]:
            return of_service(options["service"])
        user = get_user_model().objects.filter(username=options["user"]).first()
        if user is None:
            raise CommandError(f"there is no user {options['user']}")
        return of_user(user)

    def _list(self, _options: dict[str, Any]) -> None:
        for token in tokens.list_tokens():
            columns = (
                token.id,
                token.principal_id,
                token.source,
                _state(token),
                ",".join(token.scopes),
                str(token),
            )
            self.stdout.write("\t".join(columns))

    def _revoke(self, options: dict[str, Any]) -> None:
        tokens.revoke_token(command_line(), options["token_id"])
        self.stderr.write("Revoked; connections that use it close within two seconds.")


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _state(token: Token) -> str:
    if token.revoked_at is not None:
        return "revoked"
    if token.expires_at is None:
        return "active"
    return "expired" if token.expires_at <= clock.now() else f"active until {token.expires_at.isoformat()}"
