"""The gate: which rule decides, and who counts as somebody that can answer (behaviour 7.1)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from permissions_app import grants
from permissions_app.models import SCOPES, DenyRule, Grant, PermissionRequest
from sessions_app import clock, ids
from sessions_app.callers import Attached
from sessions_app.models import Attachment, Session, ToolCall
from tests.permissions_app import world

if TYPE_CHECKING:
    from sessions_app.records import AttachmentMode
    from sessions_app.runtime.ports import Tier

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("dispatched")]

TIERS: tuple[Tier, ...] = ("read", "edit", "execute", "network")


def decided(session: Session, *, tier: Tier = "edit", origin: str = "ochat", name: str = "write") -> str:
    """Return what became of one call in a new turn: running, waiting or refused."""
    world.propose(world.begin(session, origin), name, tier=tier)
    state = world.call_states(session)[-1]
    return "refused" if state == "done" else state


def remember(session: Session, digest: str) -> None:
    Grant.objects.create(
        id=ids.new_id("grt"),
        session=session,
        principal_id="pri_ada",
        tool_name="write",
        identity_digest=digest,
        scope="prefix_session",
        created_at=clock.now(),
    )


def refuse(session: Session, *shapes: str, name: str = "write") -> None:
    call = ToolCall(kind="function", name=name, arguments="{}")
    DenyRule.objects.create(
        id=ids.new_id("dny"),
        session=session,
        principal_id="pri_ada",
        tool_name=name,
        shapes=grants.Digests.of(call, shapes).shapes,
        created_at=clock.now(),
    )


def digests(name: str = "write", arguments: str = "{}") -> grants.Digests:
    return grants.Digests.of(ToolCall(kind="function", name=name, arguments=arguments), [name])


def writer(session: Session, mode: AttachmentMode = "read_write", scopes: Any = SCOPES) -> str:
    """Attach somebody and return the attachment's id."""
    access = world.attach(session, world.identity_of("robot", scopes), mode).access
    assert isinstance(access, Attached)
    return access.attachment_id


@pytest.mark.parametrize("tier", TIERS)
def test_the_profile_denies_before_everything(tier: Tier) -> None:
    session = world.make_session(tool_default="deny")
    writer(session)
    remember(session, digests().exact)
    assert decided(session, tier=tier) == "refused"
    assert decided(world.make_session(tool_default="deny"), tier="hard_stop") == "refused"


@pytest.mark.parametrize("fallback", ["deny", "allow"])
def test_a_hard_stop_waits_whatever_else_would_allow_it_and_denies_at_expiry(fallback: str) -> None:
    session = world.make_session(tool_default="allow", approval_fallback=fallback, approval_timeout_ms=1000)
    remember(session, digests().prefix)
    refuse(session, "write")
    assert decided(session, tier="hard_stop") == "waiting"
    asked = PermissionRequest.objects.get()
    assert asked.choices == ("approve_once", "deny")
    assert asked.fallback == "deny"


def test_a_deny_rule_wins_over_a_grant() -> None:
    session = world.make_session(tool_default="allow")
    remember(session, digests().exact)
    refuse(session, "write")
    assert decided(session) == "refused"


def test_a_deny_rule_matches_only_calls_with_all_of_its_shapes() -> None:
    session = world.make_session(tool_default="allow")
    refuse(session, "write", "other")
    assert decided(session) == "running"


def test_a_revoked_deny_rule_counts_no_more() -> None:
    session = world.make_session(tool_default="allow")
    refuse(session, "write")
    DenyRule.objects.update(revoked_at=clock.now())
    assert decided(session) == "running"


@pytest.mark.parametrize(
    ("digest", "runs"),
    [
        (digests().exact, True),
        (digests().prefix, True),
        (digests().shapes[0], True),
        (digests(arguments="{ }").exact, False),
        (digests(name="other").prefix, False),
        (digests(name="other").shapes[0], False),
    ],
)
def test_a_grant_lets_the_calls_that_match_it_run(digest: str, runs: bool) -> None:
    session = world.make_session(tool_default="ask")
    remember(session, digest)
    assert decided(session) == ("running" if runs else "refused")


def test_a_grant_counts_only_in_its_session_and_only_while_it_is_active() -> None:
    session, other = world.make_session(tool_default="ask"), world.make_session(tool_default="ask")
    remember(session, digests().exact)
    assert decided(other) == "refused"
    Grant.objects.update(state="revoked", revoked_at=clock.now())
    assert decided(session) == "refused"


def test_the_digests_are_those_of_the_contract() -> None:
    known = digests("list_issues")
    # SHA-256 of `function NUL list_issues NUL {}`, `tool-prefix:list_issues` and `tool-shape:list_issues` (wire 9).
    assert known.exact == "06bf98068ee62774ef317c67355f82ee41f6925c7155747b0b5bfc0e68655863"
    assert known.prefix == "abeb597be7b45b4135bf7bba72760662fde5fdaca46d3cd7acfa5433a0a6d10a"
    assert known.shapes == ("0188a3d2236db0d780e97cc43ce7d1ac213d906a9bfe148f8dcfc4b0bbf4badc",)


@pytest.mark.parametrize(
    ("fallback", "tier", "outcome"),
    [
        ("deny", "read", "refused"),
        ("allow", "execute", "running"),
        ("allow_if_policy", "read", "refused"),
        ("reviewer", "read", "refused"),
    ],
)
def test_nobody_there_means_the_fallback_now_and_no_request(fallback: str, tier: Tier, outcome: str) -> None:
    session = world.make_session(tool_default="ask", approval_fallback=fallback)
    assert decided(session, tier=tier) == outcome
    assert not PermissionRequest.objects.exists()


def test_an_unattended_session_may_wait_instead() -> None:
    assert decided(world.make_session(tool_default="ask", unattended="wait")) == "waiting"


@pytest.mark.parametrize(
    ("tier", "outcome"),
    [("read", "running"), ("edit", "refused"), ("execute", "refused"), ("network", "refused")],
)
def test_a_policy_that_cannot_be_evaluated_lets_only_reading_fall_back_to_allow(
    tier: Tier, outcome: str
) -> None:
    session = world.make_session(tool_default="policy", approval_fallback="allow")
    writer(session)
    assert decided(session, tier=tier) == outcome


@pytest.mark.parametrize(
    ("tier", "outcome"),
    [("read", "running"), ("edit", "waiting"), ("execute", "waiting"), ("network", "waiting")],
)
def test_a_default_of_allow_asks_where_a_policy_should_have_judged(tier: Tier, outcome: str) -> None:
    profile: dict[str, Any] = {
        "tool_default": "allow",
        "policy": ["call.tool != 'rm'"],
        "approval_fallback": "allow",
    }
    watched, alone = world.make_session(**profile), world.make_session(**profile)
    writer(watched)
    assert decided(watched, tier=tier) == outcome
    assert decided(alone, tier=tier) == ("refused" if outcome == "waiting" else outcome)


@pytest.mark.parametrize(
    ("origin", "outcome"),
    [
        ("ochat", "refused"),
        ("agent", "refused"),
        ("ocp", "waiting"),
        ("schedule", "waiting"),
        ("console", "waiting"),
    ],
)
def test_the_origin_of_the_turn_may_promise_an_answer(origin: str, outcome: str) -> None:
    assert decided(world.make_session(tool_default="ask"), origin=origin) == outcome


@pytest.mark.parametrize(
    ("mode", "scopes", "outcome"),
    [
        ("read_write", SCOPES, "waiting"),
        ("owner_read_write", SCOPES, "waiting"),
        ("read_only", SCOPES, "refused"),
        ("read_write", ("session.transcript.read", "session.message.send"), "refused"),
    ],
)
def test_a_live_writer_that_may_answer_is_somebody(mode: AttachmentMode, scopes: Any, outcome: str) -> None:
    session = world.make_session(tool_default="ask")
    writer(session, mode, scopes)
    assert decided(session) == outcome


def test_a_writer_of_another_session_or_without_connection_is_nobody() -> None:
    session = world.make_session(tool_default="ask")
    writer(world.make_session())
    assert decided(session) == "refused"
    gone = world.make_session(tool_default="ask")
    writer(gone)
    Attachment.objects.filter(session=gone).update(connection=None)
    assert decided(gone) == "refused"


@pytest.mark.parametrize(
    ("lease", "grace", "owner", "outcome"),
    [
        (60, None, True, "waiting"),
        (60, None, False, "refused"),
        (-1, None, True, "refused"),
        (60, 10, True, "refused"),
        (None, None, True, "refused"),
    ],
)
def test_an_owner_is_somebody_while_its_lease_is_current(
    lease: int | None, grace: int | None, owner: bool, outcome: str
) -> None:
    session = world.make_session(tool_default="ask")
    attachment_id = writer(session, "owner_read_write")

    def when(seconds: int | None) -> Any:
        return None if seconds is None else clock.now() + timedelta(seconds=seconds)

    Session.objects.filter(pk=session.pk).update(
        liveness="owner_bound",
        owner_attachment=attachment_id if owner else "att_other",
        lease_expires_at=when(lease),
        lease_grace_until=when(grace),
    )
    assert decided(session) == outcome


@pytest.mark.parametrize("tier", TIERS)
def test_a_prefix_is_not_offered_where_it_would_allow_every_command(tier: Tier) -> None:
    assert decided(world.make_session(tool_default="ask", unattended="wait"), tier=tier) == "waiting"
    offered = PermissionRequest.objects.get().choices
    assert ("approve_prefix" in offered) is (tier != "execute")
    assert set(offered) >= {"approve_once", "approve_session", "durable_exact", "deny"}
