"""Keyset pages and filters of prompts, workspaces and sessions (behaviour 12.1, 12.2, 2.6)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from msgspec import UNSET

from permissions_app.scopes import OwnAndShared
from sessions_app import clock, listing
from sessions_app.callers import EVERYTHING
from sessions_app.encoding import encode
from sessions_app.models import PromptDefinition, Session, WorkspaceDefinition
from sessions_app.records import PromptLimit
from tests.support.world import World

if TYPE_CHECKING:
    from sessions_app.callers import Visible


def walk(read: Callable[[str, int], list[Any]], limit: int) -> list[str]:
    """Read page after page, as cursors do: behind the last key, one item more than a page says that there is a next."""
    found: list[str] = []
    after = ""
    while True:
        page = read(after, limit)
        found += [item.id for item in page[:limit]]
        if len(page) <= limit:
            return found
        after = found[-1]


# Sessions


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_every_session_once_in_the_order_of_ids(world: World, limit: int) -> None:
    """12.1: "Order: stable, by ID"; K8: "every item once, stable order"."""
    made = sorted(world.create().session_id for _ in range(5))
    assert walk(lambda after, size: listing.list_sessions(EVERYTHING, after=after, limit=size), limit) == made


def test_a_walk_goes_on_behind_the_last_key(world: World) -> None:
    """12.2: "Added or removed rows do not matter: the listing goes on behind the last key without repeats"."""
    made = sorted(world.create().session_id for _ in range(4))
    first = listing.list_sessions(EVERYTHING, after="", limit=2)
    assert [session.id for session in first] == made[:3], (
        "one more than the page says that there is a next one"
    )
    Session.objects.filter(id=made[1]).delete()
    added = world.create().session_id
    rest = listing.list_sessions(EVERYTHING, after=made[1], limit=10)
    assert [session.id for session in rest] == [*made[2:], added]


def test_only_visible_sessions_are_listed(world: World) -> None:
    """2.6: "session.list … silently filter[s]"; archived ones are hidden from everybody."""
    mine, other, gone = world.create(), world.create(by=world.client("bob")), world.create()
    Session.objects.filter(id=gone.session_id).update(archived_at=clock.now())
    everything = listing.list_sessions(EVERYTHING, after="", limit=10)
    assert [session.id for session in everything] == sorted([mine.session_id, other.session_id])
    visible = listing.list_sessions(OwnAndShared("pri_ann", None), after="", limit=10)
    assert [session.id for session in visible] == [mine.session_id]


def test_filters_combine_with_and(world: World) -> None:
    """12.1: "`session.list` desired state, prompt, workspace, owner principal (= creator)… Filters combine with "and""."""
    other_prompt = world.prompt(name="other")
    sessions = {
        "plain": world.create().session_id,
        "running": world.idle().session_id,
        "prompt": world.create(prompt=other_prompt).session_id,
        "workspace": world.create(workspace=world.temporary()).session_id,
        "bob": world.idle(by=world.client("bob"), prompt=other_prompt).session_id,
    }

    def found(**filters: Any) -> set[str]:
        rows = listing.list_sessions(EVERYTHING, after="", limit=10, **filters)
        ids = {row.id for row in rows}
        return {name for name, session_id in sessions.items() if session_id in ids}

    assert found() == set(sessions)
    assert found(desired="running") == {"running", "bob"}
    assert found(desired="stopped") == {"plain", "prompt", "workspace"}
    assert found(prompt_id=other_prompt.id) == {"prompt", "bob"}
    assert found(workspace_id=world.temporary().id) == {"workspace"}
    assert found(creator="pri_bob") == {"bob"}
    assert found(desired="stopped", prompt_id=other_prompt.id) == {"prompt"}
    assert found(desired="stopped", creator="pri_bob") == set()
    assert found(creator="pri_nobody") == set()


def test_every_given_label_must_match(world: World) -> None:
    """12.1: "labels (every given pair must match)"."""
    both = world.create(labels={"team": "red", "env": "prod"}).session_id
    one = world.create(labels={"team": "red"}).session_id
    swapped = world.create(labels={"red": "team"}).session_id

    def found(**labels: str) -> set[str]:
        return {row.id for row in listing.list_sessions(EVERYTHING, after="", limit=10, labels=labels)}

    assert found() == {both, one, swapped}
    assert found(team="red") == {both, one}
    assert found(team="red", env="prod") == {both}
    assert found(team="red", env="test") == set()
    assert found(team="Red") == set()
    assert found(team="") == set()


def test_a_page_costs_the_same_in_any_table(world: World) -> None:
    """Design 1.8: "Cost follows the work asked for": active operations and labels included; an index for each condition, one
    check of what the narrowest of them gave, and the sessions."""
    for number in range(3):
        client = world.idle(labels={"n": str(number), "all": "x"})
        world.turn(client)
    with CaptureQueriesContext(connection) as asked:
        found = listing.list_sessions(OwnAndShared("pri_ann", None), after="", limit=2, labels={"all": "x"})
    assert len(found) == 3
    assert all(session.active_operation is not UNSET for session in found)
    assert len(asked) == 4


def test_a_page_is_found_however_rare_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """12.1: conditions that many sessions meet, and few meet together: pages of every size have each of them once, in order."""
    monkeypatch.setattr(listing, "SAMPLE", 4)
    made = [
        world.create(labels={"even": str(number % 2), "third": str(number % 3)}, by=world.client("bob"))
        for number in range(24)
    ]
    wanted = sorted(client.session_id for number, client in enumerate(made) if number % 6 == 0)
    for visible in (EVERYTHING, OwnAndShared("pri_bob", None)):
        for size in (1, 2, 3, 30):
            labels = {"even": "0", "third": "0"}
            assert walk(partial(_listed, visible, labels), size) == wanted


def _listed(visible: Visible, labels: dict[str, str], after: str, size: int) -> list[Any]:
    return listing.list_sessions(visible, after=after, limit=size, labels=labels, desired="stopped")


# The catalog


def catalog(world: World) -> dict[str, str]:
    """A catalog with a prompt of every sort; their ids by name."""
    world.prompt()
    PromptDefinition.objects.filter(name="demo").update(description="Says little", runtime_policy="careful")
    world.prompt(name="disabled")
    PromptDefinition.objects.filter(name="disabled").update(enabled=False)
    world.prompt(name="broken")
    PromptDefinition.objects.filter(name="broken").update(unavailable_reason="does not parse")
    world.prompt(name="unbuilt")
    PromptDefinition.objects.filter(name="unbuilt").update(current_revision=None)
    world.prompt(name="removed")
    PromptDefinition.objects.filter(name="removed").update(removed=True)
    return dict(PromptDefinition.objects.values_list("id", "name"))


def test_prompts_and_their_filters(world: World) -> None:
    """3.1: "Disabled and broken prompts stay listed. Filters: `enabled`, `available` (available = enabled and revision built)"."""
    names = catalog(world)

    def found(**filters: Any) -> set[str]:
        return {names[row.id] for row in listing.list_prompts(after="", limit=10, **filters)}

    assert found() == {"demo", "disabled", "broken", "unbuilt"}
    assert found(enabled=True) == {"demo", "broken", "unbuilt"}
    assert found(enabled=False) == {"disabled"}
    assert found(available=True) == {"demo"}
    assert found(available=False) == {"disabled", "broken", "unbuilt"}
    assert found(enabled=True, available=False) == {"broken", "unbuilt"}


def test_prompts_are_read_in_pages_of_two_queries(world: World) -> None:
    ids = sorted(identifier for identifier, name in catalog(world).items() if name != "removed")
    assert walk(lambda after, size: listing.list_prompts(after=after, limit=size), 2) == ids
    with CaptureQueriesContext(connection) as asked:
        listing.list_prompts(after="", limit=10)
    assert len(asked) == 2, "the prompts, and the workspaces of all of them"


def test_a_prompt_as_it_is_listed(world: World) -> None:
    names = {name: identifier for identifier, name in catalog(world).items()}
    WorkspaceDefinition.objects.filter(kind="temporary").update(removed=True)
    demo = listing.get_prompt(names["demo"])
    assert demo is not None
    assert (demo.name, demo.description, demo.runtime_policy, demo.enabled) == (
        "demo",
        "Says little",
        "careful",
        True,
    )
    assert demo.allowed_workspaces == (world.physical().id,), "those that are still there"
    assert (demo.availability, demo.unavailable_reason) == ("available", UNSET)
    broken = listing.get_prompt(names["broken"])
    assert broken is not None
    assert (broken.availability, broken.unavailable_reason) == ("unavailable", "does not parse")
    unbuilt = listing.get_prompt(names["unbuilt"])
    assert unbuilt is not None
    assert (unbuilt.availability, unbuilt.current_revision) == ("unavailable", UNSET)
    assert unbuilt.unavailable_reason
    assert listing.get_prompt(names["removed"]) is None
    assert listing.get_prompt("prd_unknown") is None


def test_workspaces_and_their_filters(world: World) -> None:
    """12.1: "`workspace.list` kind, access, available"."""
    physical, temporary = world.physical().id, world.temporary().id
    definitions: dict[str, dict[str, Any]] = {
        "exclusive": {"access": "exclusive"},
        "missing": {"unavailable_reason": "the folder is gone"},
        "removed": {"removed": True},
    }
    for name, fields in definitions.items():
        WorkspaceDefinition.objects.create(
            **{
                "id": f"wsd_{name}",
                "name": name,
                "kind": "physical",
                "path": "/",
                "access": "shared_write",
                **fields,
            }
        )

    def found(**filters: Any) -> set[str]:
        return {row.id for row in listing.list_workspaces(after="", limit=10, **filters)}

    assert found() == {physical, temporary, "wsd_exclusive", "wsd_missing"}
    assert found(kind="temporary") == {temporary}
    assert found(access="exclusive") == {"wsd_exclusive"}
    assert found(available=False) == {"wsd_missing"}
    assert found(available=True, kind="physical") == {physical, "wsd_exclusive"}
    assert walk(lambda after, size: listing.list_workspaces(after=after, limit=size), 1) == sorted(found())


def test_a_workspace_as_it_is_listed(world: World) -> None:
    limit = PromptLimit(prompt_id="prd_x", max_root_agents=2, overflow="queue")
    definition = world.temporary()
    WorkspaceDefinition.objects.update(prompt_limits=encode([limit]), conflict_domain="shared")
    row = listing.get_workspace(definition.id)
    assert row is not None
    assert (row.temporary_location, row.cleanup, row.conflict_domain) == (
        "session_dir",
        "on_session_delete",
        "shared",
    )
    assert row.prompt_limits == (limit,)
    physical = listing.get_workspace(world.physical().id)
    assert physical is not None
    assert (physical.temporary_location, physical.cleanup) == (UNSET, UNSET)
    WorkspaceDefinition.objects.update(removed=True)
    assert listing.get_workspace(definition.id) is None
