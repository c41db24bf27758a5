"""Bearer tokens: making, revoking, and following the catalog file (behaviour 2.3).

Owns: the rows of `Token` and the plain text of a new one, which exists only in the answer of `create_token`.
Does not own: checking a token that a client sends (`authentication.py`), or reading the file that lists some
(`sessions_app.catalog_file`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from django.db import transaction

from permissions_app import audit
from permissions_app.models import SCOPES, Principal, Token
from permissions_app.principals import scopes_of_user
from sessions_app import clock, ids
from sessions_app.errors import AlreadyResolved, ConfigurationInvalid, InvalidRequest, PermissionDenied

if TYPE_CHECKING:
    from sessions_app.callers import Caller
    from sessions_app.catalog_file import TokenEntry

PREFIX = "ochat_"
"""So that scanners for leaked secrets can know our tokens."""
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Issued:
    """A new token: its row, and its plain text, to be shown once."""

    token: Token
    plaintext: str = field(repr=False)


def digest_of(token: bytes) -> str:
    """Return the digest under which a token is known."""
    return hashlib.sha256(token).hexdigest()


def create_token(
    by: Caller,
    principal: Principal,
    *,
    scopes: Iterable[str],
    source: Literal["command", "admin"],
    name: str = "",
    expires_at: datetime | None = None,
) -> Issued:
    """Make a token for `principal` and return it with its plain text, which is kept nowhere.

    Raises as `check_token`. Audited as `operator.token.create`.
    """
    wanted = frozenset(scopes)
    check_token(principal, wanted, expires_at)
    plaintext = PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    with transaction.atomic():
        token = Token.objects.create(
            id=ids.new_id("tok"),
            principal=principal,
            name=name,
            sha256=digest_of(plaintext.encode()),
            scopes=tuple(scope for scope in SCOPES if scope in wanted),
            source=source,
            created_at=clock.now(),
            expires_at=expires_at,
        )
        audit.record_operator(by, "token.create")
    return Issued(token, plaintext)


def check_token(principal: Principal, scopes: Iterable[str], expires_at: datetime | None) -> None:
    """Refuse what no token may be: InvalidRequest for an unknown scope or an expiry that has passed,
    PermissionDenied for a scope that the user behind the principal does not hold.
    """
    wanted = frozenset(scopes)
    if unknown := sorted(wanted.difference(SCOPES)):
        raise InvalidRequest(f"unknown scope {unknown[0]}")
    if expires_at is not None and expires_at <= clock.now():
        raise InvalidRequest("the expiry has passed")
    if principal.user_id is not None and (missing := sorted(wanted - scopes_of_user(principal.user_id))):
        raise PermissionDenied(f"the user does not hold the scope {missing[0]}")


def revoke_token(by: Caller, token_id: str) -> Token:
    """Revoke a token; open connections that used it close within 2 s.

    Raises InvalidRequest for an unknown one and for one of the catalog file, which would come back with the
    next reload; AlreadyResolved when it is revoked. Audited as `operator.token.revoke`.
    """
    with transaction.atomic():
        token = Token.objects.select_for_update().filter(id=token_id).first()
        if token is None:
            raise InvalidRequest("no such token")
        if token.source == "file":
            raise InvalidRequest("this token belongs to the catalog file: remove it there")
        if token.revoked_at is not None:
            raise AlreadyResolved("the token is revoked already")
        token.revoked_at = clock.now()
        token.save(update_fields=["revoked_at"])
        audit.record_operator(by, "token.revoke")
    return token


def list_tokens() -> list[Token]:
    """Return all tokens with their principals, newest first."""
    return list(Token.objects.select_related("principal").order_by("-created_at", "id"))


def sync_file_tokens(specs: Sequence[TokenEntry]) -> None:
    """Make the tokens of the catalog file those of the store, inside the catalog's transaction.

    Of two records with the same digest the first counts. A token that has left the file is revoked. Raises
    ConfigurationInvalid for the digest of a token that was made here: it is listed, and revoked, here only.
    """
    now = clock.now()
    wanted: dict[str, TokenEntry] = {}
    for spec in specs:
        wanted.setdefault(spec.token_sha256.lower(), spec)
    stored = {token.sha256: token for token in Token.objects.filter(sha256__in=wanted)}
    if any(token.source != "file" for token in stored.values()):
        raise ConfigurationInvalid("the file lists a token that was made by command or in the admin")
    _make_services({spec.principal_id for spec in wanted.values()}, now)
    Token.objects.bulk_create(
        [_from_file(spec, digest, stored.get(digest), now) for digest, spec in wanted.items()],
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=["principal", "scopes", "attributes", "expires_at", "revoked_at"],
    )
    left = Token.objects.filter(source="file", revoked_at=None).exclude(sha256__in=wanted)
    left.update(revoked_at=now)


def _make_services(principal_ids: set[str], now: datetime) -> None:
    known = set(Principal.objects.filter(id__in=principal_ids).values_list("id", flat=True))
    Principal.objects.bulk_create(
        Principal(id=principal_id, created_at=now) for principal_id in sorted(principal_ids - known)
    )


def _from_file(spec: TokenEntry, digest: str, stored: Token | None, now: datetime) -> Token:
    return Token(
        id=ids.new_id("tok") if stored is None else stored.id,
        principal_id=spec.principal_id,
        name="catalog file",
        sha256=digest,
        scopes=tuple(scope for scope in SCOPES if scope in set(spec.scopes)),
        attributes=dict(spec.attributes),
        source="file",
        created_at=now if stored is None else stored.created_at,
        expires_at=spec.expires_at,
    )
