"""The contract's own requests, sent to a server that serves a real world: each is answered as the contract says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest

from jobs_app.models import Job, Schedule
from ochat_site.rpc.methods import METHODS
from permissions_app.models import Grant, PermissionRequest
from sessions_app import blobs, models
from sessions_app.db import in_db
from sessions_app.ids import derived_id, history_id
from sessions_app.records import LivenessOwnerBound
from tests.golden.contract import EXAMPLES, Example
from tests.support.serving import Held, Host, check, identity
from tests.support.world import World

EXAMPLE_SESSION = "ses_Ddw3r5REKHqpz1tRX7s9b4xv"
EXAMPLE_ATTACHMENT = "att_V85-ma_TwDgTtYg_aDW0Q0p5"
OWNED = LivenessOwnerBound(disconnect_grace_ms=60_000, stop_mode="graceful")

RESPONSE = {"permission_generation": 0, "choice": "approve_session"}

HANDLED = {method for dialect, method in METHODS if dialect == "ochat1"}
REQUESTS = [example for example in EXAMPLES if example.definition.removesuffix(".request") in HANDLED]
REFUSED_HERE = {
    "prompt.list.request.json": "invalid_request",  # its cursor is an example of one
    "session.get.request-4.json": "invalid_request",  # as above
    "session.cancel_operation.request.json": "operation_not_found",
    "session.send_message.request-2.json": "blob_unavailable",  # its stored blob is not here
    "session.upgrade_prompt.request.json": "prompt_unavailable",  # its revision is no digest of any source
}
"""Valid requests that ask for something which this world does not have."""

WITHOUT_LIMITS = {
    "session.start.invalid.no-capacity.json",
    "session.upgrade_prompt.invalid.migration-needed.json",
}
"""States that a world in which nothing is full, and no prompt has a moderator, cannot be in."""

Scene = Callable[[Host, World, Mapping[str, Any]], Awaitable[Held]]


async def idle(host: Host, world: World, _params: Mapping[str, Any]) -> Held:
    return await (await host.client()).create(world, start=True)


async def uninitialized(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await idle(host, world, params)
    held.peer.connection.initialized = False
    return held


async def foreign(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await idle(host, world, params)
    return Held(await host.client(), held.session_id, held.attachment_id, held.answer)


async def read_only(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await idle(host, world, params)
    return await held.peer.attach(held.session_id, "read_only")


async def owned(host: Host, world: World, _params: Mapping[str, Any]) -> Held:
    return await (await host.client()).create(world, "owner_read_write", liveness=OWNED)


async def renewed(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await owned(host, world, params)
    await held.call("session.renew_owner", lease_generation=1)
    return held


async def busy(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await idle(host, world, params)
    await held.say()
    return held


async def unpowered(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await idle(host, world, params)
    held.peer.connection.identity = identity(scopes=())
    return held


async def asking(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await busy(host, world, params)
    request, *_ = await in_db(world.ask, held.session_id, "write")
    await in_db(PermissionRequest.objects.filter(id=request).update, id=params["permission_id"])
    return held


async def offering_less(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await asking(host, world, params)
    await in_db(PermissionRequest.objects.update, choices=("approve_once", "deny"))
    return held


async def answered(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await asking(host, world, params)
    await held.call("permission.respond", **{**RESPONSE, "permission_id": params["permission_id"]})
    return held


async def given_up(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await asking(host, world, params)
    await in_db(models.ToolCall.objects.update, state="proposed")
    return held


async def granted(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await busy(host, world, params)
    request, *_ = await in_db(world.ask, held.session_id, "write")
    await held.call("permission.respond", **{**RESPONSE, "permission_id": request})
    await in_db(Grant.objects.update, id=params["grant_id"])
    return held


async def granted_read_only(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await granted(host, world, params)
    return await held.peer.attach(held.session_id, "read_only")


async def with_job(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await idle(host, world, params)
    await in_db(world.job, held.session_id)
    await in_db(Job.objects.update, id=params["job_id"])
    return held


async def with_schedule(
    host: Host, world: World, params: Mapping[str, Any], status: str = "scheduled"
) -> Held:
    held = await idle(host, world, params)
    await in_db(world.schedule, held.session_id, status)
    await in_db(Schedule.objects.update, id=params["schedule_id"])
    return held


async def with_ended_schedule(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    return await with_schedule(host, world, params, "cancelled")


async def with_blob(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await idle(host, world, params)

    def store() -> None:
        content = b"a few bytes"
        models.Blob.objects.create(
            id=params["blob_id"],
            session_id=held.session_id,
            kind="file",
            media_type="text/plain",
            byte_length=len(content),
            sha256=blobs.save(content),
            created_at=world.clock(),
        )

    await in_db(store)
    return held


async def stopped(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await (await host.client()).create(world)
    await at_its_revision(held, params)
    return held


async def resting(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await idle(host, world, params)
    await at_its_revision(held, params)
    return held


async def working(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await busy(host, world, params)
    await at_its_revision(held, params)
    return held


async def at_its_revision(held: Held, params: Mapping[str, Any]) -> None:
    """Let a session stand at the revision that an example speaks of."""
    session = models.Session.objects.filter(id=held.session_id)
    await in_db(session.update, revision=params["expected_revision"])


async def with_entry(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await resting(host, world, params)
    number = int(params["history_id"].rpartition(":")[2])
    await in_db(models.HistoryEntry.objects.update, number=number)
    await in_db(models.Session.objects.update, next_history=number + 1)
    return held


async def archived(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await stopped(host, world, {"expected_revision": params["revision"]})
    keep = {f"keep_{name}": True for name in ("history", "tasks", "cache", "workspace", "grants", "labels")}
    await held.call("session.reset", expected_revision=params["revision"], **keep)
    return held


async def halted(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await idle(host, world, params)
    await in_db(models.Session.objects.filter(id=held.session_id).update, halted=True)
    return held


async def used_key(host: Host, world: World, params: Mapping[str, Any]) -> Held:
    held = await idle(host, world, params)
    await held.say("said before", idempotency_key=params["idempotency_key"])
    return held


SCENES: Mapping[str, Scene] = {
    "session.detach.invalid.not-mine.json": foreign,
    "session.stop.invalid.read-only.json": read_only,
    "session.attach.invalid.second-owner.json": owned,
    "session.renew_owner.request.json": renewed,
    "session.renew_owner.invalid.stale-generation.json": renewed,
    "session.cancel_operation.invalid.other-active.json": busy,
    "session.send_message.invalid.halted.json": halted,
    "session.send_message.invalid.key-reuse.json": used_key,
    "session.compact.request.json": resting,
    "session.delete_history.request.json": with_entry,
    "session.delete_history.invalid.unknown-entry.json": resting,
    "session.export.request.json": archived,
    "session.reset.request.json": stopped,
    "session.reset.invalid.not-stopped.json": resting,
    "session.rebuild.request.json": stopped,
    "session.rebuild.invalid.active-operation.json": working,
    "session.upgrade_prompt.request.json": stopped,
    "session.upgrade_prompt.invalid.unknown-revision.json": stopped,
    "session.delete.request.json": stopped,
    "session.delete.invalid.not-stopped.json": resting,
    "blob.read.request.json": with_blob,
    "blob.read.invalid.offset-past-end.json": with_blob,
    "permission.list.invalid.no-scope.json": unpowered,
    "permission.respond.request.json": asking,
    "permission.respond.invalid.not-offered.json": offering_less,
    "permission.respond.invalid.resolved.json": answered,
    "permission.respond.invalid.other-generation.json": asking,
    "permission.respond.invalid.continuation-lost.json": given_up,
    "grant.revoke.request.json": granted,
    "grant.revoke.invalid.read-only.json": granted_read_only,
    "audit.read.invalid.no-scope.json": unpowered,
    "job.get.request.json": with_job,
    "job.cancel.request.json": with_job,
    "schedule.get.request.json": with_schedule,
    "schedule.cancel.request.json": with_schedule,
    "schedule.cancel.invalid.terminal.json": with_ended_schedule,
}


def scene(example: Example) -> Scene:
    return uninitialized if "before-initialize" in example.file else SCENES.get(example.file, idle)


def here(text: bytes, held: Held) -> bytes:
    """Return an example with this world's ids in place of its own."""
    own = {
        f"28:{EXAMPLE_SESSION}:7": history_id(held.session_id, 0),
        f"28:{EXAMPLE_SESSION}": history_id(held.session_id, 0).rpartition(":")[0],
        EXAMPLE_SESSION: held.session_id,
        EXAMPLE_ATTACHMENT: held.attachment_id,
        "prd_iHYeg8pARR4RA5fx7Lt6rQEn": derived_id("prd", "demo"),
        "wsd_eGFBuS8peCs0yB9emS9mwH-_": derived_id("wsd", "physical"),
    }
    for theirs, ours in own.items():
        text = text.replace(theirs.encode(), ours.encode())
    return text


async def answer_to(example: Example, host: Host, world: World) -> Any:
    document = msgspec.json.decode(example.text)
    held = await scene(example)(host, world, document.get("params", {}))
    return await held.peer.ask(here(example.text, held))


def file(example: Example) -> str:
    return example.file.removesuffix(".json")


@pytest.mark.parametrize("example", [each for each in REQUESTS if each.valid], ids=file)
async def test_a_valid_request_is_answered(example: Example, host: Host, served_world: World) -> None:
    answer = await answer_to(example, host, served_world)
    method = example.definition.removesuffix(".request")

    if example.file in REFUSED_HERE:
        assert answer["error"]["code"] == REFUSED_HERE[example.file]
    else:
        check(f"{method}.response", answer)


@pytest.mark.parametrize(
    "example",
    [each for each in REQUESTS if each.detect == "state" and each.file not in WITHOUT_LIMITS],
    ids=file,
)
async def test_a_state_refuses_as_the_contract_says(
    example: Example, host: Host, served_world: World
) -> None:
    answer = await answer_to(example, host, served_world)

    assert answer["error"]["code"] == example.refusal
