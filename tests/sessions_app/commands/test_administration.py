"""Reset, rebuild and another prompt revision (behaviour 4.6, 9.4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from django.core.files.storage import default_storage

from permissions_app import requests
from permissions_app.decisions import PermissionGate
from sessions_app import archives
from sessions_app.encoding import encode
from sessions_app.errors import (
    Conflict,
    InvalidState,
    PermissionDenied,
    PersistenceError,
    PromptNotFound,
    PromptUnavailable,
    Refusal,
    to_error,
)
from sessions_app.events import SessionUpdatedPayload, read_payload
from sessions_app.models import (
    Archive,
    HistoryEntry,
    PromptDefinition,
    Session,
    SessionLabel,
    WorkspaceInstance,
)
from sessions_app.projection import project_event
from sessions_app.views import FULL, TRANSCRIPT
from tests.support.replay_law import replay_law, snapshot
from tests.support.storages import interrupted
from tests.support.world import Client, World

OTHER = '<config model="demo:echo"/><developer>Be long.</developer><user>Hi.</user>'
REPLACED = "updated, replaced"

STATE, HISTORY = "session", "canonical_history"


def furnished(world: World, **options: object) -> Client:
    """Make a stopped session that has one of everything."""
    client = world.idle(labels={"a": "b"}, **options)
    claim = world.turn(client)
    world.propose(claim, "write", gate=PermissionGate())
    (asked,) = snapshot(client.session_id).permissions
    requests.respond(
        world.call(client.caller, "permission.respond"),
        client.session_id,
        asked.id,
        generation=0,
        choice="approve_session",
    )
    world.send(client, "later")
    world.stop(client, "cancel")
    world.job(client.session_id, "succeeded")
    world.schedule(client.session_id)
    return client


ENTRIES = [
    "developer: Be brief.",
    "user: hello",
    "call: call_0",
    "output: call_0: The call was not run: the operation ended first.",
]


@pytest.fixture
def client(world: World) -> Client:
    return furnished(world)


def test_a_reset_that_keeps_everything(world: World, client: Client) -> None:
    """9.4: the order of events; generation +1; deferred, permissions, jobs and schedules cleared."""
    before = snapshot(client.session_id)
    lists = ["deferred_entries", "permissions", "jobs", "schedules"]
    with replay_law(client.session_id, STATE, *lists), world.telling(client) as story:
        changed = world.reset(client)
    after = snapshot(client.session_id)

    assert story == [[REPLACED, f"replaced by {', '.join(ENTRIES)}", "state stopped/stopped"]]
    assert (changed.revision, changed.latest_event_sequence) == (
        before.revision + 1,
        before.latest_event_sequence + 3,
    )
    assert changed.session == after.session
    assert after.session.generation == before.session.generation + 1
    assert after.archived_revisions == (before.revision,)
    assert world.history(client) == ENTRIES
    assert after.session.spec.labels == {"a": "b"}
    assert len(after.grants) == 1
    assert after.session.workspace_instance == before.session.workspace_instance


def test_a_reset_that_drops_the_history(world: World, client: Client) -> None:
    """9.4: "only the initial-prompt prefix (same IDs)"."""
    first = snapshot(client.session_id).canonical_history.entries[0].id
    with replay_law(
        client.session_id, STATE, HISTORY, "deferred_entries", "permissions", "jobs", "schedules"
    ):
        world.reset(client, history=False)
    assert [entry.id for entry in snapshot(client.session_id).canonical_history.entries] == [first]
    numbers = set(HistoryEntry.objects.filter(session=client.session_id).values_list("number", flat=True))
    world.start(client)
    claim = world.turn(client)
    assert claim.first_number not in numbers
    world.finish(claim, "on it goes")


def test_a_reset_that_drops_grants(world: World, client: Client) -> None:
    lists = ["deferred_entries", "permissions", "grants", "jobs", "schedules"]
    with replay_law(client.session_id, STATE, *lists):
        world.reset(client, grants=False)
    assert world.history(client) == ENTRIES


def test_a_reset_that_drops_labels(world: World, client: Client) -> None:
    world.reset(client, labels=False)
    assert snapshot(client.session_id).session.spec.labels == {}
    assert not SessionLabel.objects.exists()


def test_a_reset_that_drops_a_temporary_workspace(world: World) -> None:
    client = furnished(world, workspace=world.temporary())
    old = world.session(client.session_id).workspace_instance
    assert old is not None
    Path(old.path, "file").touch()
    with replay_law(client.session_id, STATE, "deferred_entries", "permissions", "jobs", "schedules"):
        world.reset(client, workspace=False)
    new = world.session(client.session_id).workspace_instance

    assert new is not None
    assert new.id != old.id
    assert list(Path(new.path).iterdir()) == []
    assert not Path(old.path).exists()
    assert WorkspaceInstance.objects.get(id=old.id).removed_at is not None
    assert world.story(client)[-1][2:] == ["state stopped/stopped", "workspace.state_changed"]


def test_a_physical_workspace_is_never_replaced(world: World, client: Client) -> None:
    old = world.session(client.session_id).workspace_instance_id
    world.reset(client, workspace=False)
    assert world.session(client.session_id).workspace_instance_id == old
    assert world.story(client)[-1][-1] == "state stopped/stopped"


def test_a_reset_ends_failure_and_halt(world: World, client: Client) -> None:
    """9.4: "halted, failure, moderator: cleared"; the overlay event comes last."""
    Session.objects.filter(id=client.session_id).update(
        failure=encode(to_error(InvalidState("broken"))), halted=True, halt_reason="enough"
    )
    with replay_law(
        client.session_id,
        *(STATE, "failure", "halted", "halt_reason"),
        *("deferred_entries", "permissions", "jobs", "schedules"),
    ):
        world.reset(client)
    assert world.story(client)[-1][-1] == "moderator.overlay_changed"
    assert world.start(client).session.desired_state == "running"


def test_a_replacement_is_seen_as_each_view_sees(world: World, client: Client) -> None:
    """8.7: "session.updated with replacement snapshot: redacted, snapshot projected"."""
    after = world.counters(client)[1]
    world.reset(client)
    (event, *_) = world.events(client.session_id, after)
    shown = {}
    for view in (FULL, TRANSCRIPT):
        payload = read_payload(project_event(event, view))
        assert isinstance(payload, SessionUpdatedPayload)
        assert payload.replacement_snapshot is not msgspec.UNSET
        shown[view] = payload.replacement_snapshot
    assert [len(each.grants) for each in shown.values()] == [1, 0]
    redacted = [entry.kind for entry in shown[TRANSCRIPT].canonical_history.entries if entry.redacted]
    assert redacted == ["tool_call", "tool_output"]
    assert not any(entry.redacted for entry in shown[FULL].canonical_history.entries)


# Rebuild


def test_a_rebuild_with_the_pinned_prompt(world: World, client: Client) -> None:
    """9.4: "new initial messages of the chosen revision, fresh IDs"; grants cleared, labels kept."""
    before = snapshot(client.session_id)
    world.edit_prompt(OTHER)
    lists = ["deferred_entries", "permissions", "grants", "jobs", "schedules"]
    with replay_law(client.session_id, STATE, HISTORY, *lists), world.telling(client) as story:
        world.rebuild(client)
    after = snapshot(client.session_id)

    assert story == [[REPLACED, "replaced by developer: Be brief.", "state stopped/stopped"]]
    assert after.session.generation == before.session.generation + 1
    assert after.session.prompt_revision == before.session.prompt_revision
    old = {entry.id for entry in before.canonical_history.entries}
    assert not old.intersection(entry.id for entry in after.canonical_history.entries)
    assert after.session.spec.labels == {"a": "b"}


def test_a_rebuild_with_the_current_prompt(world: World, client: Client) -> None:
    new = world.edit_prompt(OTHER)
    lists = ["deferred_entries", "permissions", "grants", "jobs", "schedules"]
    with replay_law(client.session_id, STATE, HISTORY, *lists), world.telling(client) as story:
        world.rebuild(client, "current_catalog")

    assert story == [
        [
            REPLACED,
            "replaced by developer: Be long., user: Hi.",
            "state stopped/stopped",
            "prompt.upgraded",
        ]
    ]
    assert snapshot(client.session_id).session.prompt_revision == new


def test_a_rebuild_takes_the_profile_of_now(world: World, client: Client) -> None:
    """3.1: the digest of the permission profile is used "forever until rebuild/upgrade"."""
    other = world.profile(tool_default="deny")
    PromptDefinition.objects.update(profile_revision=other)
    world.rebuild(client)
    assert world.session(client.session_id).profile_id != other.digest
    world.rebuild(client, "current_catalog")
    assert world.session(client.session_id).profile_id == other.digest


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"removed": True}, PromptNotFound),
        ({"enabled": False}, PromptUnavailable),
        ({"unavailable_reason": "broken"}, PromptUnavailable),
        ({"current_revision": None}, PromptUnavailable),
        ({"profile_revision": None}, PromptUnavailable),
    ],
    ids=["removed", "disabled", "broken", "never built", "no profile"],
)
def test_a_prompt_that_cannot_be_had(
    world: World, client: Client, change: dict[str, object], refusal: type[Refusal]
) -> None:
    PromptDefinition.objects.update(**change)
    with replay_law(client.session_id), pytest.raises(refusal):
        world.rebuild(client, "current_catalog")
    assert not Archive.objects.exists()
    world.rebuild(client)


# Upgrade


def test_an_upgrade(world: World, client: Client) -> None:
    """9.4: the same generation, history, grants, jobs and schedules; failure cleared, halt kept."""
    Session.objects.filter(id=client.session_id).update(
        failure=encode(to_error(InvalidState("broken"))), halted=True, halt_reason="enough"
    )
    new = world.edit_prompt(OTHER)
    before = snapshot(client.session_id)
    with replay_law(client.session_id, STATE, "failure"), world.telling(client) as story:
        world.upgrade(client, new)
    after = snapshot(client.session_id)

    entries = f"replaced by {', '.join(ENTRIES)}"
    assert story == [[REPLACED, entries, "state stopped/stopped", "prompt.upgraded"]]
    assert after.session.generation == before.session.generation
    assert after.archived_revisions == (before.revision,)
    assert (after.halted, after.session.prompt_revision) == (True, new)


def test_an_upgrade_to_what_it_has(world: World, client: Client) -> None:
    same = world.session(client.session_id).prompt_revision_id
    world.edit_prompt(OTHER)
    world.upgrade(client, same)
    assert world.story(client)[-1][-1] == "state stopped/stopped"


def test_a_revision_that_the_prompt_never_had(world: World, client: Client) -> None:
    """A session cannot be moved to another prompt by the id of its revision."""
    other = world.prompt(OTHER, name="other").current_revision
    assert other is not None
    for wanted in (other.id, "prv_unknown"):
        with pytest.raises(PromptUnavailable):
            world.upgrade(client, wanted)
    PromptDefinition.objects.get(name="demo").revisions.add(other)
    world.upgrade(client, other.id)
    assert world.session(client.session_id).prompt_revision == other


# What is common


ACTS: dict[str, Callable[[World, Client, int | None], object]] = {
    "reset": lambda world, client, expected: world.reset(client, expected),
    "rebuild": lambda world, client, expected: world.rebuild(client, "pinned", expected),
    "upgrade": lambda world, client, expected: world.upgrade(
        client, world.session(client.session_id).prompt_revision_id, expected
    ),
}


@pytest.mark.parametrize("act", ACTS)
def test_the_checks_come_in_their_order(world: World, act: str) -> None:
    """4.6: "revision → conflict; op active → conflict; …; not stopped → invalid_state"."""
    client = world.create()
    world.start(client)
    with pytest.raises(InvalidState):
        ACTS[act](world, client, None)
    world.send(client)
    with pytest.raises(Conflict, match="operation"):
        ACTS[act](world, client, None)
    with pytest.raises(Conflict, match="revision"):
        ACTS[act](world, client, world.counters(client)[0] - 1)
    assert not Archive.objects.exists()


@pytest.mark.parametrize("act", ACTS)
def test_a_reader_changes_nothing(world: World, client: Client, act: str) -> None:
    reader = world.attach(client.session_id, "read_only")
    with replay_law(client.session_id), pytest.raises(PermissionDenied):
        ACTS[act](world, reader, None)


def test_the_key_gives_the_same_answer_without_a_second_archive(world: World, client: Client) -> None:
    """9.4: "Idempotent replay returns the stored answer without a second archive"."""
    revision = world.counters(client)[0]
    once = world.reset(client, revision, key="again")
    assert world.reset(client, revision, key="again") == once
    assert Archive.objects.count() == 1


def test_a_session_that_moves_on_meanwhile(world: World, client: Client) -> None:
    """Somebody attaches while the archive is written: it would be of another revision. Nothing is left of it."""
    before = world.history(client)
    with (
        interrupted(lambda _name: world.attach(client.session_id)),
        pytest.raises(Conflict, match="revision"),
    ):
        world.reset(client, history=False)
    assert world.history(client) == before
    assert not Archive.objects.exists()
    assert default_storage.listdir(f"archives/{client.session_id}")[1] == []


def test_a_storage_that_fails(world: World, client: Client) -> None:
    """9.4: "failure changes nothing"; it is no outcome, so the same key may be used again (11.3)."""

    def fail(_name: str) -> None:
        raise OSError("no space left")

    revision = world.counters(client)[0]
    with interrupted(fail), replay_law(client.session_id), pytest.raises(PersistenceError):
        world.reset(client, revision, key="again", history=False)
    world.reset(client, revision, key="again", history=False)
    assert world.history(client) == ENTRIES[:1]


def test_an_archive_holds_what_was(world: World, client: Client) -> None:
    before = snapshot(client.session_id)
    world.reset(client, history=False)
    archive = Archive.objects.get()
    head = archives.head(archive)
    with archives.opened(archive) as entries:
        kept = [placed.entry for placed in entries]

    assert kept == list(before.canonical_history.entries)
    assert msgspec.structs.replace(head, canonical_history=before.canonical_history) == before
