"""What an identity may see and do: the way from an id to a session (behaviour 2.5, 2.6).

Owns: the `Visible` filters, building callers, and `access_session`, the only way from an id to a session on a
read path. Does not own: the writer check of a mutation (`sessions_app.access`), which asks the same filters
under the session's lock.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from django.contrib.auth.models import Group, Permission
from django.db import connection
from django.db.models import Exists, OuterRef, Q

from permissions_app.models import SessionGroupShare, SessionUserShare
from permissions_app.principals import Identity, of_user, scopes_of_user
from sessions_app import queries
from sessions_app.callers import EVERYTHING, Caller, Operator, SeesEverything
from sessions_app.errors import PermissionDenied, SessionNotFound
from sessions_app.models import Session

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from django.db.models import QuerySet

    from sessions_app.callers import Access, Visible
    from sessions_app.records import AttachmentMode, Scope

ADMIN: Scope = "configuration.admin"

ENOUGH_FOR: Mapping[AttachmentMode, tuple[str, ...]] = MappingProxyType(
    {"read_only": ("read", "write", "own"), "read_write": ("write", "own"), "owner_read_write": ("own",)}
)
"""The levels of a share that cover each mode."""


@dataclass(frozen=True, slots=True)
class EverySession(SeesEverything):
    """For a token with `configuration.admin`: all sessions but archived ones."""

    def sees(self, session: Session) -> bool:
        """Tell whether the session is not archived."""
        return session.archived_at is None

    def covers(self, session: Session, mode: AttachmentMode) -> bool:
        """Tell whether the session is not archived."""
        return self.sees(session)

    def restrict(self, sessions: QuerySet[Session]) -> QuerySet[Session]:
        """Return all but archived ones."""
        return sessions.filter(archived_at=None)


@dataclass(frozen=True, slots=True)
class OwnAndShared:
    """What a principal created, and what is shared with the user behind it or a group of that user."""

    principal_id: str
    user_id: int | None
    least: AttachmentMode = "read_only"
    """A share must cover this mode to count at all."""

    def sees(self, session: Session) -> bool:
        """Tell whether the principal created the session or has a share of it; without a query for its
        creator.
        """
        return self.covers(session, self.least)

    def covers(self, session: Session, mode: AttachmentMode) -> bool:
        """Tell whether the principal created the session or has a share wide enough for `mode`."""
        if session.archived_at is not None:
            return False
        if session.creator == self.principal_id:
            return True
        return self.user_id is not None and self._shared(Session.objects.filter(pk=session.pk), mode).exists()

    def restrict(self, sessions: QuerySet[Session]) -> QuerySet[Session]:
        """Return those created by or shared with the principal, archived ones left out, still one query."""
        shown = Q(creator=self.principal_id)
        if self.user_id is not None:
            shown |= self._share_exists(self.least)
        return sessions.filter(shown, archived_at=None)

    @property
    def everything(self) -> bool:
        """False."""
        return False

    def ids(self, after: str, limit: int) -> list[str]:
        """Return the ids behind `after` of what was created by or is shared with the principal, in order."""
        sources: list[tuple[str, list[str | int]]] = [(_CREATED, [self.principal_id])]
        if self.user_id is not None:
            groups = Group.objects.filter(user=self.user_id).values_list("pk", flat=True)
            for permission in _levels(self.least):
                sources.append((_SHARED_WITH_USER, [self.user_id, permission]))
                sources += [(_SHARED_WITH_GROUP, [group, permission]) for group in groups]
        parts = [
            f"SELECT id FROM ({source}) AS s{place}"  # noqa: S608 - texts of this module
            for place, (source, _) in enumerate(sources)
        ]
        values: list[str | int] = [value for _, given in sources for value in (*given, after, limit)]
        with connection.cursor() as cursor:
            cursor.execute(" UNION ".join(parts) + " ORDER BY id LIMIT %s", [*values, limit])
            return [found for (found,) in cursor.fetchall()]

    def _shared(self, sessions: QuerySet[Session], mode: AttachmentMode) -> QuerySet[Session]:
        return sessions.filter(self._share_exists(mode))

    def _share_exists(self, mode: AttachmentMode) -> Q:
        wide = {"content_object": OuterRef("pk"), "permission__codename__in": ENOUGH_FOR[mode]}
        users = SessionUserShare.objects.filter(user=self.user_id, **wide)
        groups = SessionGroupShare.objects.filter(group__user=self.user_id, **wide)
        return Q(Exists(users)) | Q(Exists(groups))


# Each is read from one index, which has the ids in order; a union of them in one statement.
_CREATED = (
    "SELECT id FROM sessions_app_session"
    " WHERE creator = %s AND archived_at IS NULL AND id > %s ORDER BY id LIMIT %s"
)
_SHARED_WITH_USER = (
    "SELECT content_object_id AS id FROM permissions_app_sessionusershare"
    " WHERE user_id = %s AND permission_id = %s AND content_object_id > %s ORDER BY content_object_id LIMIT %s"
)
_SHARED_WITH_GROUP = (
    "SELECT content_object_id AS id FROM permissions_app_sessiongroupshare"
    " WHERE group_id = %s AND permission_id = %s AND content_object_id > %s ORDER BY content_object_id LIMIT %s"
)


def _levels(least: AttachmentMode) -> list[int]:
    """Return the permissions that a share for `least` may carry."""
    kinds = Permission.objects.filter(
        content_type__app_label="sessions_app",
        content_type__model="session",
        codename__in=ENOUGH_FOR[least],
    )
    return list(kinds.values_list("pk", flat=True))


def caller_for(identity: Identity, access: Access) -> Caller:
    """Return an identity as a caller that comes by `access`."""
    scopes = frozenset(identity.principal.scopes)
    visible: Visible = (
        EverySession() if ADMIN in scopes else OwnAndShared(identity.principal.id, identity.user_id)
    )
    return Caller(principal_id=identity.principal.id, scopes=scopes, visible=visible, access=access)


def operator(user: User) -> Caller:
    """Return a person at the console: sees everything with `configuration.admin`, else what it created or
    has an own share of.
    """
    principal = of_user(user)
    scopes = scopes_of_user(user.pk)
    visible: Visible = (
        EverySession() if ADMIN in scopes else OwnAndShared(principal.id, user.pk, least="owner_read_write")
    )
    return Caller(principal.id, scopes, visible, Operator(user.get_username()))


def command_line() -> Caller:
    """Return whoever runs a management command: no principal, audited by the name of the machine's user."""
    return Caller(
        principal_id=None, scopes=frozenset(), visible=EVERYTHING, access=Operator(getpass.getuser())
    )


def access_session(caller: Caller, session_id: str) -> Session:
    """Return the session, its active operation loaded, if the caller may see it.

    Raises SessionNotFound for an unknown or archived one, PermissionDenied for one that is not the caller's:
    that it exists is shown (behaviour 2.6).
    """
    session = queries.load(session_id)
    if session is None:
        raise SessionNotFound("no such session")
    if not caller.visible.sees(session):
        raise PermissionDenied("this session is not yours")
    return session
