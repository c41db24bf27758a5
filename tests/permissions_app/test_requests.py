"""The life of a permission request: opened, answered once, timed out, or cancelled with its operation (behaviour 7.2, 7.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from permissions_app import requests
from permissions_app.grants import prefix_digest
from permissions_app.models import SCOPES, AuditRecord, Grant, PermissionRequest
from permissions_app.participants import GrantParticipant, PermissionParticipant
from sessions_app import clock, ids, ledger, limits, participants
from sessions_app.callers import Caller, system
from sessions_app.commands import messages, operations
from sessions_app.commands.operations import Claim, Ending
from sessions_app.encoding import encode
from sessions_app.errors import (
    AlreadyResolved,
    Conflict,
    Interrupted,
    InvalidRequest,
    LeaseStale,
    PermissionDenied,
    Refusal,
    ResourceLimit,
    SessionNotFound,
)
from sessions_app.models import HistoryEntry, Operation, Receipt, Session, SessionEvent, ToolCall
from sessions_app.receipts import Call
from sessions_app.views import FULL, TRANSCRIPT
from tests.permissions_app import world

if TYPE_CHECKING:
    from sessions_app.records import Permission, PermissionChoice
    from sessions_app.runtime.ports import Tier
    from tests.permissions_app.conftest import Dispatched

HOUR_MS = 3_600_000


@dataclass
class Asked:
    """A session whose turn is parked on requests about calls, and a writer who may answer them."""

    session: Session
    caller: Caller
    claim: Claim
    before: int = 0
    """The newest sequence once everything was asked."""
    opened: list[PermissionRequest] = field(default_factory=list)

    def respond(
        self,
        choice: PermissionChoice = "approve_once",
        *,
        index: int = 0,
        reason: str = "",
        generation: int = 0,
        caller: Caller | None = None,
        key: str | None = None,
    ) -> requests.Resolved:
        by = Call(caller=caller or self.caller, method="permission.respond", key=key)
        return requests.respond(
            by, self.session.id, self.opened[index].id, generation=generation, choice=choice, reason=reason
        )

    def now(self) -> Session:
        return Session.objects.select_related("active_operation").get(pk=self.session.pk)

    def new_kinds(self) -> list[str]:
        return [*world.kinds(self.session, self.before)]

    def shown(self, index: int = 0) -> Permission:
        return requests.request_record(PermissionRequest.objects.get(pk=self.opened[index].pk))


def ask(*names: str, tier: Tier = "edit", wait: str = "wait", **profile: Any) -> Asked:
    """Let a turn ask about calls of these tools until it is parked."""
    identity = world.identity_of("robot", SCOPES)
    session = world.make_session(identity.principal.id, tool_default="ask", unattended=wait, **profile)
    asked = Asked(session, world.attach(session, identity), world.begin(session))
    assert world.propose(asked.claim, *(names or ("write",)), tier=tier).parked
    asked.before = asked.now().latest_sequence
    asked.opened = list(PermissionRequest.objects.filter(session=session).order_by("tool_call"))
    return asked


def payloads(session: Session, kind: str) -> list[dict[str, Any]]:
    rows = SessionEvent.objects.filter(session=session, kind=kind).order_by("sequence")
    return [msgspec.json.decode(row.payload) for row in rows]


def outputs(session: Session) -> list[str]:
    rows = HistoryEntry.objects.filter(session=session, kind="tool_output").order_by("position")
    return [msgspec.json.decode(row.payload)["output"] for row in rows]


pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("dispatched")]


def test_an_open_request_is_a_row_that_says_nothing_of_the_arguments() -> None:
    asked = ask("write", approval_timeout_ms=HOUR_MS)
    shown = asked.shown()
    assert world.kinds(asked.session)[-2:] == ["permission.requested", "session.state_changed"]
    assert payloads(asked.session, "permission.requested") == [msgspec.json.decode(encode(shown))]
    assert payloads(asked.session, "session.state_changed")[-1]["observed_state"] == {
        "type": "waiting_for_permission",
        "permission_id": shown.id,
    }
    assert shown.invocation_display == "write(<redacted>)"
    assert shown.effects == ("tool_invocation",)
    assert shown.state == "pending"
    assert shown.resolution is msgspec.UNSET
    created = PermissionRequest.objects.get().created_at
    assert shown.expires_at == clock.wire_time(created + timedelta(hours=1))
    operation = Operation.objects.get()
    assert operation.parked
    assert operation.process is None
    assert world.call_states(asked.session) == ["waiting"]


def test_no_timeout_means_no_expiry() -> None:
    asked = ask("write", approval_timeout_ms="none")
    assert asked.shown().expires_at is msgspec.UNSET
    assert requests.next_due() is None
    far_away = clock.parse_wire_time("2999-01-01T00:00:00Z")
    with clock.using(lambda: far_away):
        assert requests.expire_due(far_away) == 0


def test_an_approved_call_runs_once_the_answer_is_committed(dispatched: Dispatched) -> None:
    asked = ask("write")
    dispatched.operations.clear()
    answered = asked.respond("approve_once", reason="looks right")
    assert asked.new_kinds() == ["permission.resolved", "session.state_changed"]
    assert answered.permission == asked.shown()
    assert answered.permission.state == "approved"
    resolution = answered.permission.resolution
    assert not isinstance(resolution, msgspec.UnsetType)
    assert (resolution.choice, resolution.principal_id) == ("approve_once", asked.caller.principal_id)
    assert resolution.reason == "looks right"
    now = asked.now()
    assert (answered.revision, answered.latest_event_sequence) == (now.revision, now.latest_sequence)
    assert (now.observed, now.waiting_on) == ("running_turn", "")
    assert dispatched.operations == [asked.claim.operation_id]
    assert [call.name for call in world.resume(asked.claim).start] == ["write"]
    assert world.call_states(asked.session) == ["running"]
    assert not Grant.objects.exists()


def test_a_denied_call_does_not_run_and_the_turn_goes_on_with_the_reason() -> None:
    asked = ask("write")
    asked.respond("deny", reason="not today")
    assert asked.shown().state == "denied"
    progress = world.resume(asked.claim)
    assert progress.start == []
    assert progress.complete
    assert outputs(asked.session) == ["The call was not run: permission was denied. Reason: not today"]


@pytest.mark.parametrize(
    ("choice", "scope", "same", "other"),
    [
        ("approve_session", "exact_session", "running", "waiting"),
        ("durable_exact", "durable_exact", "running", "waiting"),
        ("approve_prefix", "prefix_session", "running", "running"),
    ],
)
def test_a_remembering_choice_leaves_a_grant_for_later_calls(
    choice: PermissionChoice, scope: str, same: str, other: str
) -> None:
    asked = ask("write")
    asked.respond(choice)
    assert asked.new_kinds() == ["permission.resolved", "session.state_changed", "grant.created"]
    grant = Grant.objects.get()
    assert (grant.scope, grant.state, grant.principal_id) == (scope, "active", asked.caller.principal_id)
    assert payloads(asked.session, "grant.created")[0]["id"] == grant.id
    claim = operations.claim(asked.session.id, asked.claim.operation_id)
    assert claim is not None
    world.propose(claim, "write")
    world.propose(claim, "write", arguments='{"path":"elsewhere"}')
    assert world.call_states(asked.session)[1:] == [same, other]


def test_several_requests_show_the_oldest_until_none_is_left(dispatched: Dispatched) -> None:
    asked = ask("one", "two", "three")
    assert world.kinds(asked.session)[-4:] == [
        "permission.requested",
        "session.state_changed",
        "permission.requested",
        "permission.requested",
    ]
    assert asked.now().waiting_on == asked.opened[0].id
    asked.respond("deny", index=1)
    assert asked.new_kinds() == ["permission.resolved"]
    assert dispatched.operations[-1] == asked.claim.operation_id
    assert world.resume(asked.claim).parked
    asked.respond("deny", index=0)
    now = asked.now()
    assert (now.observed, now.waiting_on) == ("waiting_for_permission", asked.opened[2].id)
    assert [call.name for call in world.resume(asked.claim).start] == []
    asked.respond(index=2)
    assert asked.now().observed == "running_turn"
    assert asked.new_kinds() == [
        "permission.resolved",
        "permission.resolved",
        "session.state_changed",
        "history.appended",
        "permission.resolved",
        "session.state_changed",
    ]


def test_the_checks_of_an_answer_come_in_their_order() -> None:
    asked = ask("rm", tier="hard_stop")
    wrong: dict[str, Any] = {"choice": "approve_session", "generation": 3}
    unknown = Call(caller=asked.caller, method="permission.respond")
    with pytest.raises(InvalidRequest, match="no such permission"):
        requests.respond(unknown, asked.session.id, "per_unknown", **wrong)
    with pytest.raises(Conflict):
        asked.respond(**wrong)
    with pytest.raises(InvalidRequest, match="not offered"):
        asked.respond("approve_session")
    assert asked.shown().state == "pending"
    asked.respond("approve_once")
    with pytest.raises(Conflict):
        asked.respond(**wrong)
    with pytest.raises(AlreadyResolved):
        asked.respond("approve_session")


def test_a_request_of_another_session_is_unknown() -> None:
    asked, other = ask("write"), ask("write")
    by = Call(caller=other.caller, method="permission.respond")
    with pytest.raises(InvalidRequest):
        requests.respond(by, other.session.id, asked.opened[0].id, generation=0, choice="deny")


def test_an_operation_that_is_being_cancelled_is_no_longer_waiting() -> None:
    asked = ask("write")
    claim = operations.claim(asked.session.id, asked.claim.operation_id)
    assert claim is None
    Operation.objects.update(state="cancelling")
    with pytest.raises(Interrupted):
        asked.respond()
    assert asked.shown().state == "pending"


def refused_callers(asked: Asked) -> list[tuple[Caller, type[Refusal]]]:
    stranger = world.identity_of("stranger", SCOPES[:12])
    reader = world.attach(asked.session, world.identity_of("robot", SCOPES), "read_only")
    elsewhere = world.attach(world.make_session(), world.identity_of("robot", SCOPES))
    return [
        (reader, PermissionDenied),
        (elsewhere, PermissionDenied),
        (world.attach(asked.session, stranger), PermissionDenied),
    ]


def test_whoever_may_not_write_cannot_answer() -> None:
    asked = ask("write")
    for caller, refusal in refused_callers(asked):
        with pytest.raises(refusal):
            asked.respond(caller=caller)
    Session.objects.update(liveness="owner_bound")
    owner = world.attach(asked.session, world.identity_of("robot", SCOPES), "owner_read_write")
    with pytest.raises(LeaseStale):
        asked.respond(caller=owner)
    assert asked.shown().state == "pending"
    Session.objects.update(archived_at=clock.now())
    with pytest.raises(SessionNotFound):
        asked.respond()


def test_an_answer_with_a_key_is_replayed_and_audited_twice() -> None:
    asked = ask("write")
    first = asked.respond("deny", key="k")
    assert asked.respond("deny", key="k") == first
    assert asked.new_kinds() == ["permission.resolved", "session.state_changed"]
    assert Receipt.objects.count() == 1
    names = [row.name for row in AuditRecord.objects.filter(name__startswith="protocol.")]
    assert names == ["protocol.command.succeeded"] * 2
    with pytest.raises(AlreadyResolved):
        asked.respond("deny", key="k2")
    last = AuditRecord.objects.latest("id")
    assert last.name == "protocol.command.failed"
    assert last.payload == b'{"method":"permission.respond","outcome":"already_resolved"}'
    assert last.session_id == asked.session.id


@pytest.mark.parametrize(
    ("fallback", "tier", "state"),
    [
        ("deny", "edit", "denied"),
        ("allow", "edit", "approved"),
        ("allow_if_policy", "edit", "denied"),
        ("reviewer", "edit", "denied"),
        ("allow", "hard_stop", "denied"),
    ],
)
def test_expiry_applies_the_fallback_as_an_ordinary_resolution(fallback: str, tier: Tier, state: str) -> None:
    asked = ask("write", tier=tier, approval_fallback=fallback, approval_timeout_ms=HOUR_MS)
    due = requests.next_due()
    assert due is not None
    assert requests.expire_due(due - timedelta(seconds=1)) == 0
    with clock.using(lambda: due):
        assert requests.expire_due(due) == 1
        assert requests.expire_due(due) == 0
    shown = asked.shown()
    assert shown.state == state
    resolution = shown.resolution
    assert not isinstance(resolution, msgspec.UnsetType)
    assert resolution.reason == "timed out"
    assert resolution.principal_id is msgspec.UNSET
    assert resolution.choice == ("approve_once" if state == "approved" else "deny")
    assert asked.new_kinds() == ["permission.resolved", "session.state_changed"]
    assert len(world.resume(asked.claim).start) == (state == "approved")


def test_a_timeout_of_nothing_is_due_at_once() -> None:
    asked = ask("write", approval_timeout_ms=0)
    with pytest.raises(AlreadyResolved):
        asked.respond("approve_once")
    assert asked.shown().state == "denied"


def test_an_answer_after_the_time_applies_the_expiry_first() -> None:
    asked = ask("write", approval_timeout_ms=HOUR_MS, approval_fallback="allow")
    later = clock.now() + timedelta(hours=1)
    with clock.using(lambda: later):
        with pytest.raises(AlreadyResolved):
            asked.respond("deny")
        assert asked.shown().state == "approved"
        assert requests.expire_due(clock.now()) == 0


def test_what_was_refused_stays_so_when_the_session_is_gone() -> None:
    """Behaviour 9.5: "a known key replays its receipt"."""
    asked = ask("write", approval_timeout_ms=0)
    for _ in range(2):
        with pytest.raises(AlreadyResolved):
            asked.respond(key="k")
        Session.objects.update(archived_at=clock.now())


def test_a_reason_is_kept_in_bounds_and_as_any_store_keeps_it() -> None:
    asked = ask("one", "two")
    with pytest.raises(ResourceLimit):
        asked.respond("deny", reason="€" * (limits.MAX_REASON_BYTES // 3 + 1))
    assert asked.new_kinds() == []
    longest = "x" * limits.MAX_REASON_BYTES
    for index, reason, kept in ((0, longest, longest), (1, "a\0b", "a␀b")):
        resolution = asked.respond("deny", reason=reason, index=index).permission.resolution
        assert not isinstance(resolution, msgspec.UnsetType)
        assert resolution.reason == kept
        assert asked.shown(index).resolution == resolution


def test_one_session_that_cannot_expire_does_not_stop_the_others() -> None:
    first, second = (ask("write", approval_timeout_ms=HOUR_MS) for _ in range(2))
    Session.objects.filter(pk=first.session.pk).update(archived_at=clock.now())
    later = clock.now() + timedelta(hours=2)
    with clock.using(lambda: later):
        assert requests.expire_due(later) == 1
    assert first.shown().state == "pending"
    assert second.shown().state == "denied"


def test_the_end_of_the_operation_cancels_what_is_pending() -> None:
    asked = ask("one", "two", "three")
    asked.respond(index=1)
    before = asked.now().latest_sequence
    messages.cancel_operation(
        Call(caller=asked.caller, method="session.cancel_operation"),
        asked.session.id,
        asked.claim.operation_id,
    )
    assert world.kinds(asked.session, before) == [
        "session.updated",
        "history.appended",
        "operation.cancelled",
        "moderator.notification",
        "session.state_changed",
        "permission.resolved",
        "permission.resolved",
    ]
    assert [asked.shown(index).state for index in range(3)] == ["cancelled", "approved", "cancelled"]
    resolution = asked.shown().resolution
    assert not isinstance(resolution, msgspec.UnsetType)
    assert (resolution.choice, resolution.principal_id) == ("deny", msgspec.UNSET)
    assert asked.now().observed == "idle"
    assert len(outputs(asked.session)) == 3
    with pytest.raises(AlreadyResolved):
        asked.respond()


def test_a_request_survives_the_worker_that_asked() -> None:
    asked = ask("write")
    operations.interrupt(asked.session.id, asked.claim.operation_id, "prc_gone", operations.WORKER_LOST)
    assert asked.shown().state == "pending"
    asked.respond()
    assert len(world.resume(asked.claim).start) == 1


def test_a_lost_worker_takes_the_requests_of_a_turn_that_was_not_parked_with_it() -> None:
    identity = world.identity_of("robot", SCOPES)
    session = world.make_session(identity.principal.id, tool_default="ask", unattended="wait")
    claim = world.begin(session)
    Grant.objects.create(
        id=ids.new_id("grt"),
        session=session,
        principal_id="pri_ada",
        tool_name="free",
        identity_digest=prefix_digest("free"),
        scope="prefix_session",
        created_at=clock.now(),
    )
    assert not world.propose(claim, "free", "write").parked
    process = Operation.objects.get().process_id
    operations.interrupt(session.id, claim.operation_id, process or "", operations.WORKER_LOST)
    assert PermissionRequest.objects.get().state == "cancelled"


def test_requests_are_listed_by_id_and_state() -> None:
    asked = ask("one", "two", "three")
    asked.respond(index=0)
    everything = requests.list_requests(asked.session, limit=10)
    assert [one.id for one in everything] == sorted(request.id for request in asked.opened)
    pending = requests.list_requests(asked.session, state="pending", limit=10)
    assert {one.id for one in pending} == {request.id for request in asked.opened[1:]}
    page = requests.list_requests(asked.session, after=everything[0].id, limit=1)
    assert page == everything[1:]


def test_a_snapshot_shows_live_ones_first_and_each_reader_its_own() -> None:
    asked = ask("one", "two")
    asked.respond("approve_session", index=1)
    permissions = PermissionParticipant().snapshot_part(asked.session, FULL)
    assert [one.state for one in permissions.permissions] == ["pending", "approved"]
    assert permissions.grants == ()
    grants = GrantParticipant().snapshot_part(asked.session, FULL)
    assert [one.state for one in grants.grants] == ["active"]
    for participant in (PermissionParticipant(), GrantParticipant()):
        assert participant.snapshot_part(asked.session, TRANSCRIPT) == participants.SnapshotPart()


@pytest.mark.parametrize("keep", [True, False])
def test_a_reset_drops_requests_and_keeps_grants_when_asked_to(keep: bool) -> None:
    asked = ask("write")
    asked.respond("approve_session")
    with ledger.session_txn(asked.session.id, system("test")) as txn:
        operations.end(txn, Ending("completed"))
        for participant in participants.installed():
            participant.on_reset(txn, keep_grants=keep)
    assert not PermissionRequest.objects.exists()
    assert Grant.objects.exists() is keep


def test_calls_that_go_with_their_session_take_their_requests_along() -> None:
    asked = ask("write")
    Session.objects.filter(pk=asked.session.pk).update(active_operation=None)
    Session.objects.get(pk=asked.session.pk).delete()
    assert not ToolCall.objects.exists()
    assert not PermissionRequest.objects.exists()
