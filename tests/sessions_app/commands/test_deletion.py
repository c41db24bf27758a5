"""Deleting and restoring sessions (behaviour 4.6, 9.5)."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.files.storage import default_storage
from django.core.management import CommandError, call_command

from jobs_app import sweep
from permissions_app.models import AuditRecord, Grant
from permissions_app.scopes import command_line
from sessions_app import archives, blobs, exports, queries, workspaces
from sessions_app.commands import deletion
from sessions_app.errors import (
    Conflict,
    InvalidRequest,
    InvalidState,
    PermissionDenied,
    SessionNotFound,
)
from sessions_app.models import (
    Archive,
    Attachment,
    Blob,
    HistoryEntry,
    LooseContent,
    Receipt,
    Session,
    WorkspaceInstance,
)
from sessions_app.receipts import Call
from sessions_app.records import DeletePolicy, LivenessOwnerBound
from tests.support.replay_law import snapshot
from tests.support.world import Client, World

OWNED = LivenessOwnerBound(disconnect_grace_ms=60_000, stop_mode="graceful")
POLICIES: list[DeletePolicy] = ["archive", "remove"]


def restore(world: World, session_id: str) -> deletion.Restored:
    return deletion.restore_session(Call(command_line(), "operator.restore"), session_id)


def lived(world: World, **options: object) -> Client:
    """Make a stopped session with a history, an archive, a job and a schedule."""
    client = world.idle(**options)
    world.finish(world.turn(client), "answer")
    world.stop(client)
    world.reset(client)
    world.job(client.session_id, "succeeded")
    world.schedule(client.session_id)
    return client


@pytest.mark.parametrize("policy", POLICIES)
def test_afterwards_it_is_not_there(world: World, policy: DeletePolicy) -> None:
    """9.5: "a method with an attachment answers `permission_denied`…; every other `session_not_found`"; no event."""
    client = lived(world)
    world.attach(client.session_id, "read_only")
    head = world.counters(client)[1]
    deleted = world.delete(client, policy)

    assert deleted.session_id == client.session_id
    assert queries.load(client.session_id) is None
    assert not Attachment.objects.filter(session=client.session_id).exists()
    with pytest.raises(PermissionDenied):
        world.send(client)
    with pytest.raises(SessionNotFound):
        world.attach(client.session_id)
    if policy == "archive":
        assert world.counters(client)[1] == head


@pytest.mark.parametrize("policy", POLICIES)
def test_its_keys_keep_their_outcomes(world: World, policy: DeletePolicy) -> None:
    """9.5: "a known key replays its receipt"."""
    client = world.idle()
    sent = world.send(client, key="sent")
    world.stop(client, "cancel")
    revision = world.counters(client)[0]
    once = world.delete(client, policy, expected=revision, key="deleted")

    assert world.delete(client, policy, expected=revision, key="deleted") == once
    assert world.send(client, key="sent") == sent
    with pytest.raises(PermissionDenied):
        world.delete(client, policy, expected=revision, key="another")
    assert Receipt.objects.filter(session_id=client.session_id).count() == 4


def test_the_checks_come_in_their_order(world: World) -> None:
    """4.6: "revision → conflict; op active → conflict; not stopped → invalid_state; confirmation → invalid_request"."""
    client = world.idle()
    world.send(client)
    with pytest.raises(Conflict, match="revision"):
        world.delete(client, expected=1, confirmation="no")
    with pytest.raises(Conflict, match="operation"):
        world.delete(client, confirmation="no")
    world.stop(client, "cancel")
    world.start(client)
    with pytest.raises(InvalidState):
        world.delete(client, confirmation="no")
    world.stop(client)
    with pytest.raises(InvalidRequest):
        world.delete(client, confirmation=client.session_id + " ")
    world.delete(client)


def test_a_reader_deletes_nothing(world: World) -> None:
    writer = world.create()
    with pytest.raises(PermissionDenied):
        world.delete(world.attach(writer.session_id, "read_only"), expected=world.counters(writer)[0])
    assert queries.load(writer.session_id) is not None


# What is erased


def test_nothing_of_a_removed_session_is_left(world: World) -> None:
    client = lived(world, workspace=world.temporary())
    instance = world.session(client.session_id).workspace_instance
    assert instance is not None
    archive = Archive.objects.get()
    unfinished = archives.write(client.session_id)  # and its process was killed
    export = Blob.objects.create(
        id="blb_export",
        session_id=client.session_id,
        kind="file",
        media_type="text/plain",
        byte_length=6,
        sha256=blobs.save(client.session_id.encode()),
        allowed_use=exports.USE,
        created_at=world.clock(),
    )
    world.delete(client, "remove")

    assert not Session.objects.exists()
    assert not HistoryEntry.objects.exists()
    assert not Grant.objects.exists()
    assert not default_storage.exists(archive.name)
    assert not default_storage.exists(unfinished.name)
    assert not default_storage.exists(f"archives/{client.session_id}")
    assert LooseContent.objects.filter(digest=export.sha256).exists()
    assert not Path(instance.path).exists()
    workspaces.tidy()
    assert not WorkspaceInstance.objects.exists()
    with pytest.raises(SessionNotFound):
        restore(world, client.session_id)


def test_maintenance_takes_up_what_was_left(world: World) -> None:
    """The process may have died behind its answer."""
    client = lived(world)
    world.delete(client)
    Session.objects.update(removed=True)
    with pytest.raises(SessionNotFound):
        restore(world, client.session_id)
    sweep.maintain()
    assert not Session.objects.exists()


def test_maintenance_leaves_archived_sessions(world: World) -> None:
    client = lived(world)
    world.delete(client)
    sweep.maintain()
    assert Session.objects.get().archived_at is not None
    assert HistoryEntry.objects.filter(session=client.session_id).count() == 3


# What comes back


def test_an_archived_session_comes_back_as_it_was(world: World) -> None:
    """9.5: "it comes back stopped with its history, log, archives and blobs"."""
    client = lived(world)
    before = snapshot(client.session_id)
    log = world.events(client.session_id)
    world.delete(client)
    back = restore(world, client.session_id)

    after = snapshot(client.session_id)
    assert after.canonical_history == before.canonical_history
    assert (after.jobs, after.schedules) == (before.jobs, before.schedules)
    assert after.archived_revisions == before.archived_revisions
    assert after.session.observed_state == before.session.observed_state
    assert world.events(client.session_id) == log
    assert back.revision == after.revision == before.revision + 2
    again = world.attach(client.session_id)
    world.start(again)
    assert world.send(again).disposition == "started"


def test_its_owner_is_not_waited_for(world: World) -> None:
    owner = world.create(mode="owner_read_write", liveness=OWNED)
    world.delete(owner)
    restore(world, owner.session_id)
    row = world.session(owner.session_id)
    assert (row.owner_attachment, row.lease_expires_at, row.reclaim_digest) == ("", None, None)
    world.attach(owner.session_id, "owner_read_write")


@pytest.mark.parametrize(("cleanup", "kept"), [("on_session_delete", False), ("retain", True)])
def test_a_temporary_workspace_goes_by_its_policy(world: World, cleanup: str, kept: bool) -> None:
    workspace = world.temporary()
    workspace.cleanup = cleanup
    workspace.save()
    client = world.create(workspace=workspace)
    old = world.session(client.session_id).workspace_instance
    assert old is not None
    Path(old.path, "file").touch()
    world.delete(client)
    assert Path(old.path).exists() == kept
    restore(world, client.session_id)

    new = world.session(client.session_id).workspace_instance
    assert new is not None
    assert (new.id == old.id) == kept
    assert [file.name for file in Path(new.path).iterdir()] == (["file"] if kept else [])
    assert (world.story(client)[-1] == ["workspace.state_changed"]) != kept
    world.start(world.attach(client.session_id))


def test_a_physical_workspace_stays(world: World) -> None:
    client = world.create()
    world.delete(client, "remove")
    assert Path(world.physical().path).is_dir()


def test_the_command_of_operators(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """9.5: "an operator restores an archived session (`manage.py session restore`…, audited)"."""
    client = lived(world)
    with pytest.raises(CommandError, match="no such session"):
        call_command("session", "restore", client.session_id)
    world.delete(client)
    call_command("session", "restore", client.session_id)

    assert "restored" in capsys.readouterr().err
    assert queries.load(client.session_id) is not None
    found = AuditRecord.objects.filter(name="operator.restore").order_by("id")
    assert [(row.level, row.session_id) for row in found] == [
        ("warning", client.session_id),
        ("info", client.session_id),
    ]
    assert all(b'"operator"' in row.payload for row in found)
