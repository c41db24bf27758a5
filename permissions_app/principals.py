"""Who acts: principals, and the identity that a credential proves (behaviour 2.1, 2.2).

Owns: `Identity`, making the principal of a user or a service, a user's scopes. Does not own: how a credential
is checked (`authentication.py`), tokens (`tokens.py`), or what an identity may see (`scopes.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django.contrib.auth.models import Permission
from django.db.models import Q

from permissions_app.models import SCOPES, Principal
from sessions_app import clock, ids, records

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from django.db.models import QuerySet

    from sessions_app.records import Scope


@dataclass(frozen=True, slots=True)
class TokenCredential:
    """A bearer token; ends when it is revoked or expires, or with its user."""

    token_id: str


@dataclass(frozen=True, slots=True)
class ConsoleCredential:
    """A login at the console; ends with a logout, a new password or a disabled account."""

    session_key: str = field(repr=False)
    password_digest: str = field(repr=False)
    """SHA-256 of the stored password hash at the time."""


Credential = TokenCredential | ConsoleCredential


@dataclass(frozen=True, slots=True)
class Identity:
    """A principal as one credential proves it; kept by the connection for as long as the credential
    stands.
    """

    principal: records.Principal
    user_id: int | None = None
    """The Django user behind it, who may be shared with and loses scopes; None for services and machine
    users.
    """
    credential: Credential | None = None
    """None: proved by the transport itself (peer credentials, proxy), nothing that could end before the
    connection.
    """


def identity(
    principal_id: str,
    kind: str,
    scopes: Iterable[str],
    *,
    attributes: Mapping[str, str] | None = None,
    user_id: int | None = None,
    credential: Credential | None = None,
) -> Identity:
    """Return an identity, its scopes in the order of the wire and its attributes sorted by name."""
    held = frozenset(scopes)
    principal = records.Principal(
        id=principal_id,
        authentication_kind=kind,
        scopes=tuple(scope for scope in SCOPES if scope in held),
        attributes=dict(sorted((attributes or {}).items())),
    )
    return Identity(principal, user_id, credential)


def of_user(user: User) -> Principal:
    """Return the principal of a Django user, made at first use."""
    principal, _ = Principal.objects.get_or_create(
        user=user,
        defaults={"id": ids.new_id("pri"), "name": user.get_username(), "created_at": clock.now()},
    )
    return principal


def of_service(name: str) -> Principal:
    """Return the service principal of this name, made at first use."""
    principal, _ = Principal.objects.get_or_create(
        user=None, name=name, defaults={"id": ids.new_id("pri"), "created_at": clock.now()}
    )
    return principal


def scope_permissions() -> QuerySet[Permission]:
    """Return the Django permissions that are scopes."""
    return Permission.objects.filter(
        content_type__app_label="permissions_app", content_type__model="principal", codename__in=SCOPES
    )


def scopes_of_user(user_id: int) -> frozenset[Scope]:
    """Return the scopes given to a user, directly or through groups, in one query; being a superuser gives
    none.
    """
    given = scope_permissions().filter(Q(user=user_id) | Q(group__user=user_id))
    held = frozenset(given.values_list("codename", flat=True))
    return frozenset(scope for scope in SCOPES if scope in held)
