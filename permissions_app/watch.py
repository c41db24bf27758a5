"""What no longer stands: credentials of open connections, and shares that attachments rest on (behaviour 1.4,
2.6).

Owns: the two questions that every process asks once a second, each one query however much is open. Does not
own: the loop that asks, nor what follows: the transport closes with 4401, the connection layer detaches.

The rows themselves are read again, not a version beside them: what is revoked by any path is seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import msgspec
from django.contrib.sessions.models import Session as ConsoleSession
from django.db.models import Exists, F, OuterRef, Q, TextField, Value
from django.db.models.functions import Cast

from permissions_app.authentication import password_digest
from permissions_app.models import SCOPES, Principal, SessionGroupShare, SessionUserShare, Token
from permissions_app.principals import ConsoleCredential, Credential, Identity, TokenCredential
from permissions_app.scopes import ENOUGH_FOR
from sessions_app import clock, records
from sessions_app.models import Attachment

if TYPE_CHECKING:
    from django.db.models import QuerySet


def ended(identities: Iterable[Identity]) -> set[Credential]:
    """Return the credentials of `identities` that prove them no more.

    A token ends when it is revoked or expires, a login with the console session or a new password; both end
    with a disabled or removed account, and when the identity holds a scope that the credential no longer
    carries.
    """
    held = {one.credential: one for one in identities if one.credential is not None}
    if not held:
        return set()
    standing = _Standing(held.values())
    return {credential for credential, one in held.items() if not standing.proves(one)}


class _Standing:
    """What the store says now about some identities, read in one query."""

    def __init__(self, identities: Collection[Identity]) -> None:
        tokens = [
            one.credential.token_id for one in identities if isinstance(one.credential, TokenCredential)
        ]
        logins = [
            one.credential.session_key for one in identities if isinstance(one.credential, ConsoleCredential)
        ]
        users = {one.principal.id for one in identities if one.user_id is not None}
        self.token_scopes: dict[str, frozenset[str]] = {}
        self.logins: set[str] = set()
        self.passwords: dict[str, str] = {}
        self.user_scopes: defaultdict[str, set[str]] = defaultdict(set)
        for kind, key, said in self._query(tokens, logins, users):
            if kind == "token":
                self.token_scopes[key] = frozenset(said.split())
            elif kind == "login":
                self.logins.add(key)
            elif kind == "user":
                self.passwords[key] = password_digest(said)
            else:
                self.user_scopes[key].add(said)

    @staticmethod
    def _query(
        tokens: Collection[str], logins: Collection[str], users: Collection[str]
    ) -> Iterable[tuple[str, str, str]]:
        """Return rows of (kind, key, what it says)."""
        now = clock.now()
        unexpired = Q(expires_at=None) | Q(expires_at__gt=now)
        people = Principal.objects.filter(pk__in=users, user__is_active=True)
        direct, by_group = "user__user_permissions__codename", "user__groups__permissions__codename"
        token, *others = (
            rows.annotate(
                kind=Value(kind, TextField()),
                key=Cast("pk", TextField()),
                said=Cast(said, TextField()),
            ).values_list("kind", "key", "said")
            for kind, said, rows in (
                ("token", "scopes", Token.objects.filter(unexpired, pk__in=tokens, revoked_at=None)),
                ("login", "pk", ConsoleSession.objects.filter(pk__in=logins, expire_date__gt=now)),
                ("user", "user__password", people),
                ("scope", direct, people.filter(**{f"{direct}__in": SCOPES})),
                ("scope", by_group, people.filter(**{f"{by_group}__in": SCOPES})),
            )
        )
        return token.union(*others, all=True)

    def proves(self, one: Identity) -> bool:
        principal_id, scopes = one.principal.id, set(one.principal.scopes)
        if one.user_id is not None and not (
            principal_id in self.passwords and scopes <= self.user_scopes[principal_id]
        ):
            return False
        if isinstance(one.credential, TokenCredential):
            carried = self.token_scopes.get(one.credential.token_id)
            return carried is not None and scopes <= carried
        if isinstance(one.credential, ConsoleCredential):
            same_password = self.passwords.get(principal_id) == one.credential.password_digest
            return same_password and one.credential.session_key in self.logins
        return True


def withdrawn(attachment_ids: Collection[str]) -> set[str]:
    """Return those attachments whose principal neither created the session nor has a share that covers their
    mode.

    Leave out the attachments of identities that hold `configuration.admin`: theirs rest on the token, not on
    a share.
    """
    return set(_uncovered().filter(pk__in=attachment_ids).values_list("pk", flat=True))


def withdrawn_unheld(at_most: int) -> list[tuple[str, str]]:
    """Return the same, as (session id, attachment id), of the attachments that no process holds: those of logical connections
    between their streams. Leaves out itself those that rest on a token with `configuration.admin`.
    """
    rows = _uncovered().filter(process=None, connection__isnull=False)
    found = rows.values_list("session_id", "pk", "connection__principal")
    return [
        (session_id, attachment_id)
        for session_id, attachment_id, principal in found
        if "configuration.admin" not in msgspec.json.decode(bytes(principal), type=records.Principal).scopes
    ][:at_most]


def _uncovered() -> QuerySet[Attachment]:
    """Return the attachments whose principal neither created the session nor has a share that covers their mode."""
    covered = Q(session__creator=F("principal_id"))
    for mode, levels in ENOUGH_FOR.items():
        share = {"content_object": OuterRef("session"), "permission__codename__in": levels}
        users = SessionUserShare.objects.filter(user__principal=OuterRef("principal_id"), **share)
        groups = SessionGroupShare.objects.filter(group__user__principal=OuterRef("principal_id"), **share)
        covered |= Q(mode=mode) & (Q(Exists(users)) | Q(Exists(groups)))
    return Attachment.objects.filter(~covered)
