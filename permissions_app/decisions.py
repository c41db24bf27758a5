"""The gate: one decision for every tool call of every session (behaviour 7.1).

Owns: the order of the rules, who counts as somebody that can answer, the fallback when nobody does. Does not
own: the life of the request that asking opens (`requests.py`), grants and deny rules (`grants.py`), the tier
of a tool (its pack).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec
from django.db.models import Q

from permissions_app import grants
from permissions_app.requests import Question, open_request
from sessions_app.db import database_now
from sessions_app.models import Attachment, ProfileRevision
from sessions_app.runtime.ports import Refuse, Run, Wait

if TYPE_CHECKING:
    from permissions_app.requests import Fallback
    from sessions_app.ledger import Txn
    from sessions_app.models import Operation, Session, ToolCall
    from sessions_app.runtime.ports import Tier, Verdict

ShapesOf = Callable[[str, str], Iterable[str]]
"""From a tool's name and arguments to the keys of the call's shapes."""

WAITING_ORIGINS = frozenset({"ocp", "schedule", "console"})
"""Operations from there may wait for a person who is not attached yet."""

_NEEDS_POLICY = frozenset({"edit", "execute", "network"})
"""The tiers that never run because of a policy that erred."""

_REFUSED_BY_PROFILE = "The call was not run: the permission profile of this session denies tools."
_REFUSED_BY_RULE = "The call was not run: a rule of this session refuses calls like it."
_REFUSED_UNATTENDED = "The call was not run: it needs permission and nobody is there to give it."


def whole_tool(name: str, _arguments: str) -> Iterable[str]:
    """Return the shape of a call whose tool says nothing finer: the tool itself."""
    return (name,)


class _Profile(msgspec.Struct):
    """What the gate reads of a pinned permission profile (`catalog_file.ProfileEntry`).

    Sessions keep the profile they were made with, so one that an older version wrote must stay readable.
    """

    tool_default: Literal["allow", "ask", "deny", "policy"]
    approval_timeout_ms: int | Literal["none"] = "none"
    approval_fallback: Literal["deny", "allow", "allow_if_policy", "reviewer"] = "deny"
    unattended: Literal["fallback", "wait"] = "fallback"
    policy: tuple[str, ...] = ()

    def is_unsure(self, tier: Tier) -> bool:
        """Tell whether a policy should have judged a call of this tier: none can be evaluated, so each counts as erred."""
        return tier in _NEEDS_POLICY and (self.tool_default == "policy" or bool(self.policy))

    def fallback(self, tier: Tier) -> Fallback:
        """Return what happens when nobody answers; no reviewer is installed, so that `reviewer` denies."""
        return "allow" if self.approval_fallback == "allow" and not self.is_unsure(tier) else "deny"


class PermissionGate:
    """The gate of the turn loop (`runtime.ports.Gate`)."""

    def __init__(self, shapes_of: ShapesOf = whole_tool) -> None:
        self._shapes_of = shapes_of

    def decide(self, txn: Txn, operation: Operation, call: ToolCall, tier: Tier) -> Verdict:
        """Decide one call by the first rule that matches; `Wait` after opening its request in `txn`."""
        session, profile = txn.session, _profile(txn.session.profile_id)
        if profile.tool_default == "deny":
            return Refuse(_REFUSED_BY_PROFILE)
        digests = grants.Digests.of(call, self._shapes_of(call.name, call.arguments))
        timeout = None if profile.approval_timeout_ms == "none" else profile.approval_timeout_ms
        question = Question(tier, digests, "deny" if tier == "hard_stop" else profile.fallback(tier), timeout)
        if tier == "hard_stop":
            return _asked(txn, operation, call, question)
        if grants.denies([session.id], digests):
            return Refuse(_REFUSED_BY_RULE)
        if grants.allows(session.id, digests):
            return Run()
        if profile.tool_default == "allow" and not profile.is_unsure(tier):
            return Run()
        waits = profile.unattended == "wait" or can_answer(session, operation)
        if waits and profile.tool_default != "policy":
            return _asked(txn, operation, call, question)
        return Run() if question.fallback == "allow" else Refuse(_REFUSED_UNATTENDED)


def _asked(txn: Txn, operation: Operation, call: ToolCall, question: Question) -> Wait:
    open_request(txn, operation, call, question)
    return Wait()


def can_answer(session: Session, operation: Operation) -> bool:
    """Tell whether somebody may be expected to answer: a live writer with `permission.respond`, or the
    operation's origin.

    An owner of an owner-bound session counts while its lease is current and not in grace.
    """
    if operation.origin in WAITING_ORIGINS:
        return True
    writers = Q(mode="read_write")
    if session.liveness != "owner_bound":
        writers |= Q(mode="owner_read_write")
    elif _lease_is_current(session):
        writers |= Q(mode="owner_read_write", pk=session.owner_attachment)
    return Attachment.objects.filter(
        writers, session=session, answers=True, hidden=False, connection__isnull=False
    ).exists()


def _lease_is_current(session: Session) -> bool:
    ends = session.lease_expires_at
    return session.lease_grace_until is None and ends is not None and ends > database_now()


@lru_cache(maxsize=256)
def _profile(digest: str) -> _Profile:
    """Return a profile by its digest; content-addressed, so that what was read once stays true."""
    content = ProfileRevision.objects.values_list("content", flat=True).get(pk=digest)
    return msgspec.json.decode(content, type=_Profile)
