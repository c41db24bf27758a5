"""The folder of a session: there, gone, replaced, or on another machine (behaviour 3.2); making it is tested with sessions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from django.conf import settings

from sessions_app import clock, ledger, workspaces
from sessions_app.callers import system
from sessions_app.errors import WorkspaceUnavailable
from sessions_app.models import Session, WorkspaceDefinition, WorkspaceInstance
from tests.support.replay_law import replay_law
from tests.support.world import Client, World


def test_a_folder_that_is_there(world: World) -> None:
    workspaces.check(world.session(world.create().session_id))


@pytest.mark.parametrize("damage", ["gone", "a file", "removed", "none"])
def test_a_session_without_its_folder(world: World, damage: str) -> None:
    """3.2: "must exist at creation and at each start (`workspace_unavailable` otherwise)"; C: 14.4."""
    client = world.create()
    root = world.folder / "project"
    match damage:
        case "gone":
            root.rmdir()
        case "a file":
            root.rmdir()
            root.write_text("")
        case "removed":
            WorkspaceInstance.objects.update(removed_at=clock.now())
        case _:
            session = world.session(client.session_id)
            session.workspace_instance = None
            session.save()
    with pytest.raises(WorkspaceUnavailable) as refused:
        world.start(client)
    assert str(world.folder) not in refused.value.message


def test_another_machine_looks_for_itself(world: World) -> None:
    """Design 5: "A workspace names its host; its turns and shells go to that host's queue"."""
    client = world.create()
    (world.folder / "project").rmdir()
    WorkspaceInstance.objects.update(host="elsewhere")
    world.start(client)


@pytest.mark.parametrize("missing", ["nowhere", "circle"])
def test_roots_that_cannot_be_resolved(world: World, missing: str) -> None:
    circle = world.folder / "circle"
    circle.symlink_to(circle)
    with pytest.raises(WorkspaceUnavailable):
        workspaces.physical_root(str(world.folder / missing))


def scratch(world: World, cleanup: str = "on_session_stop") -> WorkspaceDefinition:
    definition = world.temporary()
    WorkspaceDefinition.objects.filter(id=definition.id).update(cleanup=cleanup)
    return definition


def folder(world: World, client: Client) -> Path:
    instance = world.session(client.session_id).workspace_instance
    assert instance is not None
    return Path(instance.path)


@pytest.mark.parametrize("how", ["idle", "turn"])
def test_a_stop_that_cleans_up_leaves_a_fresh_folder(world: World, how: str) -> None:
    """3.2: "after an on-stop cleanup a fresh instance is prepared and installed (**R** event `workspace.state_changed`)"."""
    client = world.idle(workspace=scratch(world))
    old = folder(world, client)
    (old / "left").write_text("")
    claim = world.turn(client) if how == "turn" else None
    with world.telling(client) as story, replay_law(client.session_id, "session"):
        answer = world.stop(client)
        if claim is not None:
            world.finish(claim)
        else:
            assert answer.session.workspace_instance == world.session(client.session_id).workspace_instance_id
    assert story[-1] == ["workspace.state_changed"]
    fresh = folder(world, client)
    assert fresh.is_dir()
    assert fresh != old
    workspaces.tidy()
    assert not old.exists()
    assert WorkspaceInstance.objects.count() == 1
    assert list(fresh.iterdir()) == []
    world.start(client)


@pytest.mark.parametrize("cleanup", ["on_session_delete", "retain"])
def test_other_policies_keep_the_folder_through_stops(world: World, cleanup: str) -> None:
    client = world.idle(workspace=scratch(world, cleanup))
    kept = folder(world, client)
    with world.telling(client) as story:
        world.stop(client)
    assert story == [["state stopped/stopped"]]
    assert folder(world, client) == kept


def test_a_compaction_of_a_stopped_session_keeps_the_folder(world: World) -> None:
    """3.2: it is replaced "after an on-stop cleanup": this one has stopped before, and nothing ran in it since."""
    client = world.idle(workspace=scratch(world))
    world.stop(client)
    kept = folder(world, client)
    world.compact(client)
    world.cancel(client)
    assert world.states(client) == ("stopped", "stopped")
    assert folder(world, client) == kept


def test_a_stop_never_fails_for_want_of_a_folder(world: World) -> None:
    definition = scratch(world)
    root = world.folder / "managed"
    WorkspaceDefinition.objects.filter(id=definition.id).update(
        temporary_location="system_tmp", path=str(root)
    )
    client = world.idle(workspace=definition)
    shutil.rmtree(root)
    root.write_text("")
    world.stop(client)
    assert world.states(client) == ("stopped", "stopped")


def test_what_was_given_up_is_removed_only_in_its_place(world: World) -> None:
    """3.2: "deleted only when server-created, inside the expected root, policy allows"."""
    kept = world.folder / "kept"
    kept.mkdir()
    for client in (world.create(workspace=scratch(world)), world.create()):
        instance = world.session(client.session_id).workspace_instance
        assert instance is not None
        WorkspaceInstance.objects.filter(id=instance.id).update(path=str(kept))
        Session.objects.filter(id=client.session_id).update(workspace_instance=None)
        workspaces.give_up(instance, clock.now())
    workspaces.tidy()
    assert kept.exists()
    assert not WorkspaceInstance.objects.exists()


def test_a_folder_whose_session_was_never_made_does_not_stay(world: World) -> None:
    """A crash between the folder and the commit: the note that was left leads to it, once no commit can come any more."""

    class Crash(BaseException):
        pass

    definition = scratch(world)
    with pytest.raises(Crash), ledger.session_txn(world.create().session_id, system("test")) as txn:
        lost = Path(workspaces.prepare(txn, definition, "ses_lost").path)
        raise Crash
    made = folder(world, world.create(workspace=definition))
    workspaces.tidy()
    assert lost.exists()
    world.clock.advance(minutes=6)
    workspaces.tidy()
    assert not lost.parent.exists()
    assert made.exists()
    assert list((Path(settings.ENV.data_dir) / "workspaces").iterdir()) == []
