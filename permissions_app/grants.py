"""Grants: what a person allowed for later calls, and deny rules, which win over them (behaviour 7.4).

Owns: the digests by which calls match, making, matching, revoking and listing grants. Does not own: when a
decision asks for them (`decisions.py`), or the answer that makes one (`requests.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import msgspec
from django.db.models import Exists, OuterRef
from msgspec import UNSET

from permissions_app import reasons
from permissions_app.models import DenyRule, Grant
from sessions_app import ids, ledger, records, store
from sessions_app.clock import wire_time
from sessions_app.errors import AlreadyResolved, InvalidRequest
from sessions_app.limits import MAX_SNAPSHOT_ITEMS
from sessions_app.models import Session
from sessions_app.rows import Select

if TYPE_CHECKING:
    from sessions_app.callers import Visible
    from sessions_app.ledger import Txn
    from sessions_app.models import ToolCall
    from sessions_app.receipts import Call
    from sessions_app.records import GrantScope, GrantState, PermissionChoice

SCOPE_OF: Mapping[PermissionChoice, GrantScope] = MappingProxyType(
    {"approve_session": "exact_session", "approve_prefix": "prefix_session", "durable_exact": "durable_exact"}
)
"""The choices that leave a grant, and its scope."""


@dataclass(frozen=True, slots=True)
class Digests:
    """By what a call is recognised, each as hex SHA-256 (wire 9)."""

    exact: str
    """Over kind, name and payload."""
    prefix: str
    """Over the tool's name: any payload."""
    shapes: tuple[str, ...]
    """Over each of its shapes; one for all but shell lines of several commands."""

    @classmethod
    def of(cls, call: ToolCall, shapes: Iterable[str]) -> Digests:
        """Return the digests of a call with these shape keys."""
        return cls(
            exact=_sha256(f"{call.kind}\0{call.name}\0{call.arguments}"),
            prefix=prefix_digest(call.name),
            shapes=tuple(_sha256(f"tool-shape:{key}") for key in shapes),
        )


def prefix_digest(tool_name: str) -> str:
    """Return the digest of a grant for every call of a tool."""
    return _sha256(f"tool-prefix:{tool_name}")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def allows(session_id: str, digests: Digests) -> bool:
    """Tell whether an active grant of the session matches: the exact call, its tool, or all of its shapes."""
    known = {digests.exact, digests.prefix, *digests.shapes}
    found = set(
        Grant.objects.filter(session=session_id, state="active", identity_digest__in=known).values_list(
            "identity_digest", flat=True
        )
    )
    by_shape = bool(digests.shapes) and found.issuperset(digests.shapes)
    return digests.exact in found or digests.prefix in found or by_shape


def denies(session_ids: Collection[str], digests: Digests) -> bool:
    """Tell whether a deny rule of the session or of an ancestor matches: all of the rule's shapes are in
    the call.
    """
    rules = DenyRule.objects.filter(session__in=session_ids, revoked_at=None).values_list("shapes", flat=True)
    return any(set(shapes) <= set(digests.shapes) for shapes in rules)


def create_grant(txn: Txn, choice: PermissionChoice, tool_name: str, digest: str, principal_id: str) -> Grant:
    """Store the grant of a remembering choice and emit `grant.created`."""
    grant = Grant(
        id=ids.new_id("grt"),
        session=txn.session,
        principal_id=principal_id,
        tool_name=tool_name,
        identity_digest=digest,
        scope=SCOPE_OF[choice],
        created_at=txn.now,
    )
    grant.save(force_insert=True)
    txn.emit("grant.created", grant_record(grant))
    return grant


class Revoked(msgspec.Struct, frozen=True, kw_only=True):
    """A revoked grant, as the mutation left the session."""

    grant: records.Grant
    revision: int
    latest_event_sequence: int


def revoke_grant(call: Call, session_id: str, grant_id: str, reason: str) -> Revoked:
    """Revoke a grant of the session, with effect on later calls, and emit `grant.revoked`.

    Raises, beside what `ledger.command` raises, InvalidRequest for an unknown grant, AlreadyResolved for a
    revoked one, ResourceLimit for a reason that is too long (behaviour 4.6).
    """

    def body(txn: Txn) -> Revoked:
        grant = Grant.objects.filter(pk=grant_id, session=txn.session).first()
        if grant is None:
            raise InvalidRequest("no such grant in this session")
        if grant.state != "active":
            raise AlreadyResolved("the grant is revoked already")
        grant.state, grant.revoked_at, grant.revocation_reason = "revoked", txn.now, reasons.kept(reason)
        grant.save(update_fields=["state", "revoked_at", "revocation_reason"])
        told = grant_record(grant)
        txn.emit("grant.revoked", told)
        return Revoked(
            grant=told, revision=txn.session.revision, latest_event_sequence=txn.session.latest_sequence
        )

    return ledger.command(call, session_id, Revoked, body)


def list_grants(
    visible: Visible,
    *,
    session_id: str | None = None,
    principal_id: str | None = None,
    state: GrantState | None = None,
    after: str = "",
    limit: int,
) -> list[records.Grant]:
    """Return the grants behind id `after`, those of invisible sessions left out: one more than `limit`
    when there are more.
    """
    shown = visible.restrict(Session.objects.filter(pk=OuterRef("session_id")))
    rows = Grant.objects.filter(Exists(shown), pk__gt=after).order_by("pk")
    if session_id is not None:
        rows = rows.filter(session=session_id)
    elif not visible.everything:
        few = visible.ids("", _FEW_SESSIONS)
        if len(few) < _FEW_SESSIONS:
            # By their sessions: all grants there are would be gone through to find those of a few.
            rows = rows.filter(session__in=few)
    if principal_id is not None:
        rows = rows.filter(principal_id=principal_id)
    if state is not None:
        rows = rows.filter(state=state)
    with store.errors():
        return [grant_record(row) for row in rows[: limit + 1]]


_FEW_SESSIONS = 1000
"""A caller who sees more than these finds the grants of its page among all there are soon enough."""


def newest(session: Session) -> list[records.Grant]:
    """Return what a snapshot shows: active grants, then revoked ones, each newest first, at most 256."""
    active = _NEWEST_ACTIVE.all(session.id, at_most=MAX_SNAPSHOT_ITEMS)
    rest = _NEWEST_REVOKED.all(session.id, at_most=MAX_SNAPSHOT_ITEMS - len(active))
    return [grant_record(row) for row in (*active, *rest)]


_NEWEST_FIRST = "created_at DESC, id DESC"
_NEWEST_ACTIVE = Select(Grant, "session_id = %s AND state = 'active'", order=_NEWEST_FIRST)
_NEWEST_REVOKED = Select(Grant, "session_id = %s AND state <> 'active'", order=_NEWEST_FIRST)


def clear(session: Session) -> None:
    """Remove the grants and deny rules of a session that is reset without keeping them."""
    Grant.objects.filter(session=session).delete()
    DenyRule.objects.filter(session=session).delete()


def grant_record(grant: Grant) -> records.Grant:
    """Return a grant as the protocol says it."""
    return records.Grant(
        id=grant.id,
        session_id=grant.session_id,
        principal_id=grant.principal_id,
        tool_name=grant.tool_name,
        identity_digest=grant.identity_digest,
        scope=cast("GrantScope", grant.scope),
        state=cast("GrantState", grant.state),
        created_at=wire_time(grant.created_at),
        revoked_at=wire_time(grant.revoked_at) if grant.revoked_at else UNSET,
        revocation_reason=grant.revocation_reason or UNSET,
    )
