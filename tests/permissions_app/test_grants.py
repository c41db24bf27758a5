"""Grants after they were given: listed to whoever may see them, and revoked (behaviour 7.4)."""

from __future__ import annotations

import pytest

from permissions_app import grants
from permissions_app.models import SCOPES, Grant
from sessions_app.callers import EVERYTHING
from sessions_app.errors import AlreadyResolved, InvalidRequest, PermissionDenied, ResourceLimit
from sessions_app.limits import MAX_REASON_BYTES
from sessions_app.receipts import Call
from tests.permissions_app import world
from tests.permissions_app.test_requests import Asked, ask

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("dispatched")]


@pytest.fixture
def granted() -> Asked:
    asked = ask("write")
    asked.respond("approve_session")
    asked.before = asked.now().latest_sequence
    return asked


def revoke(asked: Asked, grant_id: str | None = None, *, key: str | None = None) -> grants.Revoked:
    call = Call(caller=asked.caller, method="grant.revoke", key=key)
    return grants.revoke_grant(call, asked.session.id, grant_id or Grant.objects.get().id, "no longer needed")


def test_a_revoked_grant_lets_nothing_run_and_says_when_and_why(granted: Asked) -> None:
    answered = revoke(granted, key="k")
    assert granted.new_kinds() == ["grant.revoked"]
    assert (answered.grant.state, answered.grant.revocation_reason) == ("revoked", "no longer needed")
    assert answered.grant.revoked_at is not None
    assert answered == revoke(granted, key="k")
    assert answered.latest_event_sequence == granted.now().latest_sequence
    claim = granted.claim
    assert not grants.allows(granted.session.id, _digests(granted))
    assert world.resume(claim).start[0].name == "write"


def test_the_reason_of_a_revocation_is_bounded(granted: Asked) -> None:
    call = Call(caller=granted.caller, method="grant.revoke")
    with pytest.raises(ResourceLimit):
        grants.revoke_grant(call, granted.session.id, Grant.objects.get().id, "x" * (MAX_REASON_BYTES + 1))
    assert granted.new_kinds() == []
    told = grants.revoke_grant(call, granted.session.id, Grant.objects.get().id, "a\0b").grant
    assert told.revocation_reason == "a␀b"
    assert told == grants.grant_record(Grant.objects.get())


def _digests(asked: Asked) -> grants.Digests:
    call = asked.opened[0].tool_call
    return grants.Digests.of(call, [call.name])


def test_revoking_is_refused_for_the_unknown_the_foreign_and_the_revoked(granted: Asked) -> None:
    with pytest.raises(InvalidRequest):
        revoke(granted, "grt_unknown")
    other = ask("write")
    with pytest.raises(InvalidRequest):
        revoke(other)
    reader = world.attach(granted.session, world.identity_of("robot", SCOPES), "read_only")
    with pytest.raises(PermissionDenied):
        grants.revoke_grant(
            Call(caller=reader, method="grant.revoke"), granted.session.id, Grant.objects.get().id, "no"
        )
    revoke(granted)
    with pytest.raises(AlreadyResolved):
        revoke(granted)


def test_a_listing_leaves_out_what_the_reader_may_not_see(granted: Asked) -> None:
    other = ask("write")
    other.respond("durable_exact")
    ids = sorted(Grant.objects.values_list("id", flat=True))
    everything = grants.list_grants(EVERYTHING, limit=10)
    assert [one.id for one in everything] == ids
    assert grants.list_grants(EVERYTHING, after=ids[0], limit=10) == everything[1:]
    mine = grants.list_grants(EVERYTHING, session_id=other.session.id, limit=10)
    assert [one.scope for one in mine] == ["durable_exact"]
    stranger = world.reader(world.identity_of("stranger", SCOPES[:12])).visible
    assert grants.list_grants(stranger, limit=10) == []
    assert grants.list_grants(granted.caller.visible, limit=10) == everything
    assert grants.list_grants(EVERYTHING, principal_id="pri_nobody", limit=10) == []
    revoke(other, mine[0].id)
    active = grants.list_grants(EVERYTHING, state="active", limit=10)
    assert [one.session_id for one in active] == [granted.session.id]
