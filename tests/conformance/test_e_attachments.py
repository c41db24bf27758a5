"""Scenarios E: attachments and owners."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ochat_client import methods
from sessions_app import limits
from sessions_app.records import LivenessOwnerBound, StopMode
from tests.conformance.fixture import ADMIN, SECOND_ADMIN, THIRD_ADMIN
from tests.conformance.local import LocalSite
from tests.conformance.peers import Hold, Peer, answered, code, history
from tests.conformance.sites import Site
from tests.support.model_scripts import Reply, Text, Wait


def owned(grace_ms: int = 60_000, stop: StopMode = "graceful") -> LivenessOwnerBound:
    """Return the liveness of a session that lives with its owner."""
    return LivenessOwnerBound(disconnect_grace_ms=grace_ms, stop_mode=stop)


async def test_e1(site: Site) -> None:
    """A detached session works on without clients; a replay behind the old cursor tells of it."""
    site.model.answer(Reply(Text("first ", Wait("gate"), "second")))
    peer = await site.peer()
    hold = await peer.create(start=True)
    await hold.say()
    await hold.until_text("first ")
    known = hold.sequence
    await peer.close()

    request = site.model.wait_request()
    site.model.open("gate")
    request.wait_over()
    again = await (await site.peer()).attach(hold.session_id, after=known)
    await again.until(lambda: again.kinds[-1:] == ["session.state_changed"])

    assert again.kinds == ["history.appended", "operation.completed", "session.state_changed"]
    assert [event.sequence for event in again.events] == [known + 1, known + 2, known + 3]
    assert history(await again.snapshot())[-1] == "assistant: first second"


async def test_e2(site: Site) -> None:
    """An attachment of another connection: permission_denied."""
    hold = await (await site.peer()).create(start=True)
    other = await site.peer()

    for method, params in (
        ("session.send_message", hold.params(methods.SESSION_SEND_MESSAGE, text="hello")),
        ("session.stop", hold.params(methods.SESSION_STOP, mode="cancel")),
        ("session.detach", hold.params(methods.SESSION_DETACH)),
    ):
        assert await code(other.client.request(method, params)) == "permission_denied"
    assert history(await hold.snapshot()) == ["developer: Be brief."]


async def test_e3(site: Site) -> None:
    """A read-only attachment changes nothing: permission_denied, the snapshot unchanged."""
    peer = await site.peer()
    created = await peer.create(start=True)
    reader = await (await site.peer()).attach(created.session_id, "read_only")
    before = await reader.snapshot()

    assert await code(reader.start()) == "permission_denied"
    assert await code(reader.stop("cancel")) == "permission_denied"
    assert await code(reader.say()) == "permission_denied"
    assert await code(reader.cancel("op_none")) == "permission_denied"
    answer = {"permission_id": "per_none", "permission_generation": 0, "choice": "deny"}
    assert await code(reader.raw("permission.respond", **answer)) == "permission_denied"
    schedule = {"payload": 1, "due": {"type": "after_ms", "delay_ms": 0}, "misfire": "fail"}
    assert await code(reader.raw("schedule.create", **schedule)) == "permission_denied"
    assert await code(reader.raw("schedule.cancel", schedule_id="sch_none")) == "permission_denied"
    assert await code(reader.raw("job.cancel", job_id="job_none")) == "permission_denied"
    assert await code(reader.raw("grant.revoke", grant_id="grt_none", reason="no")) == "permission_denied"
    assert await code(reader.raw("session.renew_owner", lease_generation=0)) == "permission_denied"
    keep = {f"keep_{name}": True for name in ("history", "tasks", "cache", "workspace", "grants", "labels")}
    edits: dict[str, dict[str, Any]] = {
        "session.compact": {},
        "session.delete_history": {"history_id": before.canonical_history.entries[0].id},
        "session.reset": keep,
        "session.rebuild": {"prompt_choice": "pinned"},
        "session.upgrade_prompt": {"target_revision": "prv_none", "allow_migration": True},
        "session.delete": {"policy": "remove", "confirmation": reader.session_id},
    }
    for method, params in edits.items():
        call = reader.raw(method, **params, expected_revision=before.revision)
        assert await code(call) == "permission_denied"
    assert await reader.snapshot() == before


async def test_e4(site: Site) -> None:
    """A non-owner attach raises the revision by one and the sequence by none; detach the same."""
    hold = await (await site.peer()).create()
    revision, sequence = await hold.counters()

    other = await (await site.peer()).attach(hold.session_id)
    assert await hold.counters() == (revision + 1, sequence)
    left = await other.detach()
    assert (left.revision, left.latest_event_sequence) == (revision + 2, sequence)
    assert await hold.counters() == (revision + 2, sequence)


async def test_e6(site: Site) -> None:
    """Renewing raises the lease's generation and expiry and tells of it; an old generation is stale.

    An attachment of that mode to a detached session has no lease to renew.
    """
    owner, token = await _owned(site)
    observer = await (await site.peer()).attach(owner.session_id)
    first = owner.attached.result.attachment.owner_lease
    assert first
    before = await observer.counters()

    renewed = await owner.mutate(methods.SESSION_RENEW_OWNER, lease_generation=first.generation)

    lease = renewed.owner_lease
    assert lease.generation == first.generation + 1
    assert lease.expires_at > first.expires_at
    assert lease.principal_id == first.principal_id
    await observer.until_kind("attachment.owner_changed")
    assert observer.view.owner
    assert observer.view.owner.owner_lease == lease
    after = (renewed.revision, renewed.latest_event_sequence)
    assert after == await observer.counters() == (before[0] + 1, before[1] + 1)

    old = owner.mutate(methods.SESSION_RENEW_OWNER, lease_generation=first.generation)
    assert await code(old) == "lease_stale"
    by_other = observer.mutate(methods.SESSION_RENEW_OWNER, lease_generation=lease.generation)
    assert await code(by_other) == "permission_denied"
    detached = await (await site.peer()).create(mode="owner_read_write")
    assert await code(detached.mutate(methods.SESSION_RENEW_OWNER, lease_generation=0)) == "invalid_state"
    assert await observer.counters() == after
    await owner.peer.close()
    await _reclaimed(await site.peer(SECOND_ADMIN), owner.session_id, token)


async def test_e6_by_attaching(site: Site) -> None:
    """Renewing raises the lease's generation and expiry and tells of it; an old generation is stale.

    Each owner attach does the same.
    """
    observer = await (await site.peer()).create(liveness=owned())
    owner = await (await site.peer()).attach(observer.session_id, "owner_read_write")
    lease = owner.attached.result.attachment.owner_lease
    assert lease
    assert await code((await site.peer()).attach(observer.session_id, "owner_read_write")) == "conflict"

    await owner.peer.close()
    await observer.until(lambda: observer.kinds == ["attachment.owner_changed"] * 2)
    assert observer.view.owner is None
    again = await (await site.peer()).attach(observer.session_id, "owner_read_write")
    renewed = again.attached.result.attachment.owner_lease
    await observer.until(lambda: observer.view.owner)

    assert renewed
    assert renewed.generation == lease.generation + 1
    assert renewed.expires_at > lease.expires_at
    assert observer.view.owner == again.attached.result.attachment


@pytest.mark.parametrize("way", ["closes", "detaches"])
async def test_e9(site: Site, way: str) -> None:
    """The owner is gone: another principal reclaims with the token and gets a new one."""
    owner, token = await _owned(site)
    await _leave(owner, way)

    second = await _reclaimed(await site.peer(SECOND_ADMIN), owner.session_id, token)

    assert second.attached.result.reclaim_token
    assert second.attached.result.reclaim_token != token
    assert _generation(second) > _generation(owner)
    assert second.attachment_id != owner.attachment_id


async def test_e10(site: Site) -> None:
    """A reclaim token that was used is dead; the new one is good."""
    owner, first = await _owned(site)
    await owner.peer.close()
    second = await _reclaimed(await site.peer(SECOND_ADMIN), owner.session_id, first)
    new = second.attached.result.reclaim_token
    assert new
    await second.peer.close()

    third = await site.peer(THIRD_ADMIN)
    await answered(lambda: _in_grace(third, owner.session_id), "the owner's grace")
    old = third.attach(owner.session_id, "owner_read_write", token=first)
    assert await code(old) == "permission_denied"
    last = await third.attach(owner.session_id, "owner_read_write", token=new)
    assert _generation(last) > _generation(second)


async def test_e12(site: Site) -> None:
    """The owner leaves and its grace passes: stopped, whatever observers do."""
    owner, _ = await _owned(site, grace_ms=150, start=True)
    observer = await (await site.peer()).attach(owner.session_id)
    assert observer.view.session.desired_state == "running"

    await owner.peer.close()
    await observer.until(lambda: observer.view.session.desired_state == "stopped")

    assert observer.view.session.observed_state.__struct_config__.tag == "stopped"
    assert observer.view.owner is None


async def test_e12_without_renewal(local_site: LocalSite) -> None:
    """The owner leaves and its grace passes: stopped, whatever observers do.

    One that stays connected and does not renew is dropped alike, and its attachment is no longer active.
    """
    with limits.using(replace(limits.server(), owner_lease_duration_ms=100, owner_renew_after_ms=50)):
        owner, _ = await _owned(local_site, start=True)
        observer = await (await local_site.peer()).attach(owner.session_id)
        await observer.until(lambda: observer.view.session.desired_state == "stopped")

    assert await code(owner.say()) == "invalid_request"
    assert await code(owner.start()) == "invalid_request"
    assert await code(owner.mutate(methods.SESSION_RENEW_OWNER, lease_generation=1)) == "invalid_request"
    before = await observer.counters()
    await owner.detach()
    assert await observer.counters() == before
    assert await code(owner.start()) == "permission_denied"
    await (await local_site.peer()).attach(owner.session_id, "owner_read_write")


async def _owned(site: Site, *, grace_ms: int = 60_000, start: bool = False) -> tuple[Hold, str]:
    """Create a session with an owner; the owner's hold, and its reclaim token."""
    peer = await site.peer(ADMIN)
    owner = await peer.create(mode="owner_read_write", liveness=owned(grace_ms), start=start)
    token = owner.attached.result.reclaim_token
    assert token
    return owner, token


async def _leave(owner: Hold, way: str) -> None:
    if way == "closes":
        await owner.peer.close()
    else:
        await owner.detach()


async def _reclaimed(peer: Peer, session_id: str, token: str) -> Hold:
    """Reclaim as soon as the server has noticed that the owner's connection is gone."""
    await answered(lambda: _in_grace(peer, session_id), "the owner's grace")
    return await peer.attach(session_id, "owner_read_write", token=token)


async def _in_grace(peer: Peer, session_id: str) -> bool:
    return await code(peer.attach(session_id, "owner_read_write")) == "permission_denied"


def _generation(owner: Hold) -> int:
    lease = owner.attached.result.attachment.owner_lease
    assert lease
    return lease.generation
