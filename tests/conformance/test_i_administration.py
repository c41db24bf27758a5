"""Scenarios I: histories edited, compacted and exported; sessions made anew and deleted."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from ochat_client import methods, new_key
from ochat_site.dialects.ochat1.types import SessionExportResult, SessionMutationResult
from sessions_app.chatmd.pin import PinnedPrompt, capture
from sessions_app.records import BlobChunk, DeletePolicy, Schedule
from sessions_app.records import ScheduleDueAfterMs as After
from tests.conformance.fixture import EDITABLE, READER, SMOKE, prompt, write_prompt
from tests.conformance.peers import Hold, Peer, answered, code, history, told
from tests.conformance.sites import Site
from tests.support.model_scripts import Reply, Text, Wait

KEPT: Mapping[str, bool] = {
    f"keep_{name}": True for name in ("history", "tasks", "cache", "workspace", "grants", "labels")
}


async def talked(site: Site, *, source: str = SMOKE, **options: Any) -> Hold:
    """Make a session that has had one turn, and stop it."""
    hold = await (await site.peer()).create(source, start=True, **options)
    await hold.say("hello")
    await hold.until_ended()
    stopped = await hold.stop()
    await hold.until(lambda: hold.sequence == stopped.latest_event_sequence)
    return hold


async def reset(hold: Hold, **flags: Any) -> SessionMutationResult:
    """Reset a session at its present revision, with everything kept but what is named."""
    revision = (await hold.counters())[0]
    wanted = {**KEPT, "expected_revision": revision, **flags}
    return await hold.mutate(methods.SESSION_RESET, **wanted)


async def export(hold: Hold, **wanted: Any) -> SessionExportResult:
    """Export a session."""
    named = {"session_id": hold.session_id, "attachment_id": hold.attachment_id}
    result = await hold.peer.call("session.export", **{**named, "format": "json", **wanted})
    return msgspec.convert(result, SessionExportResult)


async def chunk(hold: Hold, blob_id: str, offset: int, max_bytes: int) -> BlobChunk:
    """Read a part of a blob."""
    named = {"session_id": hold.session_id, "attachment_id": hold.attachment_id, "blob_id": blob_id}
    return msgspec.convert(
        await hold.peer.call("blob.read", **named, offset=offset, max_bytes=max_bytes), BlobChunk
    )


async def test_i1(site: Site) -> None:
    """delete_history of an entry: revision and sequence rise by one, everybody is told; stale: conflict; again: the same answer."""
    hold = await talked(site)
    other = await (await site.peer(READER)).attach(hold.session_id, "read_only")
    before = await hold.snapshot()
    first = before.canonical_history.entries[0].id
    wanted = {"history_id": first, "expected_revision": before.revision, "idempotency_key": "i1"}
    stale = hold.raw("session.delete_history", history_id=first, expected_revision=before.revision - 1)

    assert await code(stale) == "conflict"
    assert await hold.snapshot() == before
    changed = await hold.mutate(methods.SESSION_DELETE_HISTORY, **wanted)
    assert changed.revision == before.revision + 1
    assert changed.latest_event_sequence == before.latest_event_sequence + 1
    assert await hold.mutate(methods.SESSION_DELETE_HISTORY, **wanted) == changed
    for each in (hold, other):
        await each.until_kind("history.replaced")
        assert history(each.view.snapshot()) == history(before)[1:]


async def test_i4(site: Site) -> None:
    """compact a stopped session: compacting, then stopped; the history replaced; the revision just before is archived."""
    hold = await talked(site)
    site.model.answer(Reply(Text("Short.")))
    seen = len(hold.events)
    started = await hold.mutate(methods.SESSION_COMPACT)
    await hold.until_ended()
    now = await hold.snapshot()

    assert told(hold.events[seen:]) == [
        ["operation.started", "state(stopped,compacting)"],
        ["updated(running)"],
        ["history.replaced", "operation.completed", "state(stopped,stopped)"],
    ]
    assert hold.events[seen].revision == started.revision
    assert now.archived_revisions == (now.revision - 1,)
    entries = history(now)
    assert entries[0] == "developer: Be brief."
    assert len(entries) == 2
    assert entries[1].endswith("Short.")


async def test_i5(site: Site) -> None:
    """compact, cancelled: the history is unchanged, nothing is archived."""
    hold = await talked(site)
    before = await hold.snapshot()
    site.model.answer(Reply(Text("Sho", Wait("on"), "rt.")))
    started = await hold.mutate(methods.SESSION_COMPACT)
    operation = started.session.active_operation
    assert operation is not UNSET
    await hold.until_kind("session.updated")
    await hold.cancel(operation.id)
    ended = await hold.until_ended()
    site.model.open("on")
    now = await hold.snapshot()

    assert ended.kind == "operation.cancelled"
    assert now.canonical_history == before.canonical_history
    assert now.archived_revisions == ()
    assert now.session.observed_state == before.session.observed_state


async def test_i8(site: Site) -> None:
    """export as json, read in chunks: contiguous, whole, with snapshot and history."""
    hold = await talked(site)
    made = await export(hold)
    content, ends = b"", []
    while True:
        part = await chunk(hold, made.blob.id, len(content), 100)
        assert part.offset == len(content)
        content += base64.b64decode(part.data_base64)
        assert part.next_offset == len(content)
        ends.append(part.eof)
        if part.eof:
            break

    assert ends == [False] * (len(ends) - 1) + [True]
    assert len(content) == made.blob.byte_length
    assert sha256(content).hexdigest() == made.blob.digest
    document = msgspec.json.decode(content)
    assert document.keys() == {"snapshot", "history"}
    now = await hold.snapshot()
    assert document["snapshot"]["revision"] == now.revision == made.session_revision
    assert [entry["id"] for entry in document["history"]] == [
        entry.id for entry in now.canonical_history.entries
    ]


async def test_i8_of_an_archive(site: Site) -> None:
    """export as json, read in chunks: contiguous, whole, with snapshot and history.

    What is archived is exported as it was; any other revision is a conflict.
    """
    hold = await talked(site)
    before = await hold.snapshot()
    await reset(hold, keep_history=False)
    made = await export(hold, format="chatmd", revision=before.revision)
    part = await chunk(hold, made.blob.id, 0, 1000)

    assert base64.b64decode(part.data_base64).decode().count("<msg role") == 2
    assert (part.eof, part.blob.media_type) == (True, "text/markdown; charset=utf-8")
    assert await code(export(hold, revision=before.revision - 1)) == "conflict"


async def test_i9(site: Site) -> None:
    """An export belongs to its exact principal: permission_denied for fewer scopes."""
    hold = await talked(site)
    made = await export(hold)
    reader = await (await site.peer(READER)).attach(hold.session_id, "read_only")

    assert await code(chunk(reader, made.blob.id, 0, 1)) == "permission_denied"
    other = await (await site.peer()).attach(hold.session_id, "read_only")
    assert (await chunk(other, made.blob.id, 0, 1)).next_offset == 1


async def scheduled(hold: Hold) -> Schedule:
    """Put a schedule into a session."""
    wanted = {"payload": msgspec.Raw(b"{}"), "due": After(delay_ms=600_000)}
    made = await hold.mutate(methods.SCHEDULE_CREATE, **wanted, misfire="fail")
    return made.schedule


@pytest.mark.parametrize("dropped", ["nothing", "history", "labels", "grants", "workspace"])
async def test_i11(local_site: Site, dropped: str) -> None:
    """reset flags one by one: only dropped parts change; generation +1; ends stopped; the events in their order."""
    hold = await talked(local_site, labels={"a": "b"})
    await scheduled(hold)
    before = await hold.snapshot()
    changed = await reset(hold, **({} if dropped == "nothing" else {f"keep_{dropped}": False}))
    await hold.until_kind("session.state_changed")
    now = await hold.snapshot()

    assert told(hold.events)[-1] == ["updated()", "history.replaced", "state(stopped,stopped)"]
    assert changed.session.generation == before.session.generation + 1
    assert history(now) == history(before)[: 1 if dropped == "history" else None]
    assert now.session.spec.labels == ({} if dropped == "labels" else {"a": "b"})
    assert now.schedules == ()
    assert now.archived_revisions == (before.revision,)
    assert now.session.workspace_instance == before.session.workspace_instance


async def test_i12(site: Site) -> None:
    """rebuild with the current catalog after an edit: the new prompt alone, fresh ids, generation +1, archived."""
    hold = await talked(site, source=EDITABLE)
    before = await hold.snapshot()
    async with edited(site, hold.peer, "Say B."):
        changed = await hold.mutate(
            methods.SESSION_REBUILD, expected_revision=before.revision, prompt_choice="current_catalog"
        )
    await hold.until_kind("prompt.upgraded")
    now = await hold.snapshot()

    assert history(now) == ["developer: Say B."]
    assert now.canonical_history.entries[0].id != before.canonical_history.entries[0].id
    assert changed.session.generation == before.session.generation + 1
    assert now.archived_revisions == (before.revision,)


async def test_i13(site: Site) -> None:
    """upgrade to the new revision: the same history and generation; prompt.upgraded."""
    hold = await talked(site, source=EDITABLE)
    before = await hold.snapshot()
    async with edited(site, hold.peer, "Say C.") as revision:
        changed = await hold.mutate(
            methods.SESSION_UPGRADE_PROMPT,
            expected_revision=before.revision,
            target_revision=revision,
            allow_migration=False,
        )
    upgraded = await hold.until_kind("prompt.upgraded")

    assert changed.session.generation == before.session.generation
    assert changed.session.prompt_revision == revision
    assert history(await hold.snapshot()) == history(before)
    assert msgspec.json.decode(upgraded.payload) == {
        "prompt_id": prompt(EDITABLE),
        "previous_revision": before.session.prompt_revision,
        "current_revision": revision,
    }


@asynccontextmanager
async def edited(site: Site, peer: Peer, text: str) -> AsyncIterator[str]:
    """Give the editable prompt another text inside the block; its revision, which the catalog has by then."""
    try:
        yield await _written(site, peer, text)
    finally:
        await _written(site, peer, "Say A.")


async def _written(site: Site, peer: Peer, text: str) -> str:
    write_prompt(site.data_dir, EDITABLE, text)
    captured = capture(site.data_dir / "prompts" / f"{EDITABLE}.chatmd", lambda _tool: True)
    assert isinstance(captured, PinnedPrompt)
    await site.reload()

    async def is_current() -> bool:
        found = await peer.call("prompt.get", prompt_id=prompt(EDITABLE))
        return bool(found["current_revision"] == captured.revision)

    await answered(is_current, "the catalog has the new revision")
    return captured.revision


async def test_i14(site: Site) -> None:
    """reset and upgrade with a stale revision: conflict; running: invalid_state."""
    hold = await (await site.peer()).create()
    target = (await hold.snapshot()).session.prompt_revision
    for started, expected in ((False, "conflict"), (True, "invalid_state")):
        if started:
            await hold.start()
        revision = (await hold.counters())[0] - (not started)
        before = await hold.snapshot()
        assert await code(hold.raw("session.reset", **KEPT, expected_revision=revision)) == expected
        upgrade = {"target_revision": target, "allow_migration": True, "expected_revision": revision}
        assert await code(hold.raw("session.upgrade_prompt", **upgrade)) == expected
        assert await hold.snapshot() == before


async def test_i15(site: Site) -> None:
    """delete: wrong confirmation, running, then done; afterwards not found, the attachment is gone, the key answers again.

    With both policies, and also when every process was replaced.
    """
    policies: tuple[DeletePolicy, ...] = ("archive", "remove")
    gone = [await deleted(await (await site.peer()).create(start=True), policy) for policy in policies]
    for restarted in (False, True):
        if restarted:
            await site.restart()
        for hold, wanted, answer in gone:
            if restarted:
                hold.peer = await site.peer()
            get = hold.peer.call("session.get", session_id=hold.session_id)
            assert await code(get) == "session_not_found"
            send = {"content": {"kind": "plain_text", "text": "hello", "attachments": []}}
            assert await code(hold.raw("session.send_message", **send)) == "permission_denied"
            assert await hold.raw("session.delete", **wanted) == answer


async def deleted(hold: Hold, policy: DeletePolicy) -> tuple[Hold, Mapping[str, Any], Any]:
    """Try to delete a running session in every way that is refused, then delete it; with the params and the answer."""
    wanted = {"policy": policy, "confirmation": hold.session_id, "expected_revision": await revision(hold)}
    assert await code(hold.raw("session.delete", **wanted)) == "invalid_state"
    await hold.stop()
    wanted["expected_revision"] = await revision(hold)
    assert await code(hold.raw("session.delete", **{**wanted, "confirmation": "no"})) == "invalid_request"
    assert await code(hold.raw("session.delete", **{**wanted, "expected_revision": 1})) == "conflict"
    wanted["idempotency_key"] = new_key()
    hold.leave()
    answer = await hold.raw("session.delete", **wanted)
    assert answer.keys() == {"session_id", "deleted_at"}
    return hold, wanted, answer


async def revision(hold: Hold) -> int:
    """Return the session's revision."""
    return (await hold.counters())[0]
