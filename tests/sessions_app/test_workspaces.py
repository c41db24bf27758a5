"""The folder of a session: there, gone, or on another machine (behaviour 3.2); making it is tested with sessions."""

from __future__ import annotations

import pytest

from sessions_app import clock, workspaces
from sessions_app.errors import WorkspaceUnavailable
from sessions_app.models import WorkspaceInstance
from tests.support.world import World


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
