"""The first people of a new installation: the operator's account and the token of the local client (design
6).

Owns: making them once. Does not own: where the password is shown and the token is kept, which is the start of
the server, or anything about later accounts, which the admin makes.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django.contrib.auth import get_user_model
from django.db import transaction

from permissions_app.models import SCOPES, Token
from permissions_app.principals import of_service, of_user, scope_permissions, scopes_of_user
from permissions_app.scopes import command_line
from permissions_app.tokens import create_token
from sessions_app import clock

if TYPE_CHECKING:
    from permissions_app.models import Principal

USERNAME = "operator"
CLIENT_TOKEN = "client.token"  # noqa: S105 - the name of a file
_PASSWORD_BYTES = 15
"""20 characters that can be typed."""


@dataclass(frozen=True, slots=True)
class NewOperator:
    """An account that was just made; the password is kept nowhere else."""

    username: str
    password: str = field(repr=False)


def ensure_operator() -> NewOperator | None:
    """Make the operator's account, a superuser with every scope, unless there is a superuser already."""
    users = get_user_model().objects
    with transaction.atomic():
        if users.filter(is_superuser=True).exists():
            return None
        password = secrets.token_urlsafe(_PASSWORD_BYTES)
        user = users.create_superuser(USERNAME, password=password)
        user.user_permissions.set(scope_permissions())
        of_user(user)
    return NewOperator(USERNAME, password)


def issue_client_token() -> str:
    """Return the plain text of a new token with every scope for the local client; the one before it is
    revoked.

    It stands for the operator, so that what is made with the client is the operator's own at the console.
    """
    with transaction.atomic():
        former = Token.objects.filter(name=CLIENT_TOKEN, source="command", revoked_at=None)
        former.update(revoked_at=clock.now())
        issued = create_token(
            command_line(), _all_powerful(), scopes=SCOPES, source="command", name=CLIENT_TOKEN
        )
    return issued.plaintext


def _all_powerful() -> Principal:
    """Return the oldest operator who holds every scope, else a service of the client's own."""
    for user in get_user_model().objects.filter(is_superuser=True, is_active=True).order_by("pk"):
        if scopes_of_user(user.pk).issuperset(SCOPES):
            return of_user(user)
    return of_service("client")
