"""Making a session (behaviour 4.1, 4.2): the checks in their order, the first revisions, nothing left of a refused one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from permissions_app.models import AuditRecord
from sessions_app import embedding, limits, listing, pinned, workspaces
from sessions_app.commands import sessions
from sessions_app.embedding import Embedding
from sessions_app.errors import (
    ConfigurationInvalid,
    InvalidRequest,
    PermissionDenied,
    PersistenceError,
    PromptNotFound,
    PromptUnavailable,
    Refusal,
    ResourceLimit,
    WorkspaceNotFound,
    WorkspaceUnavailable,
)
from sessions_app.models import (
    Attachment,
    HistoryEntry,
    PromptDefinition,
    PromptRevision,
    Receipt,
    Session,
    SessionEvent,
    SessionLabel,
    WorkspaceDefinition,
    WorkspaceInstance,
)
from sessions_app.records import (
    AttachmentMode,
    LivenessProcessBound,
    ObservedIdle,
    ObservedStopped,
    PromptRefCatalog,
    PromptRefLocalPath,
    SessionSpec,
    WorkspaceRequestConfigured,
    WorkspaceRequestCurrent,
    WorkspaceRequestLocalPath,
)
from sessions_app.records import Session as Summary
from tests.support.world import World

UNKNOWN_PROMPT = PromptRefCatalog(prompt_id="prd_unknown")
UNKNOWN_WORKSPACE = WorkspaceRequestConfigured(workspace_id="wsd_unknown")


def create(
    world: World, spec: SessionSpec, mode: AttachmentMode | None = None, key: str | None = None
) -> sessions.Created:
    call = world.call(world.client().connected, "session.create", key)
    return sessions.create_session(call, spec, mode)


def test_a_session_begins_with_the_prompts_messages(world: World) -> None:
    """4.2.6: "initial history = prompt's own messages; event `session.created`. Revision 1, sequence 1"."""
    world.prompt('<config model="demo:x"/><system>Obey.</system><user>Hi</user><assistant>Hello</assistant>')
    made = create(world, world.spec(labels={"b": "2", "a": "1"}, display_name="Mine"))
    row = Session.objects.get()
    assert (made.revision, made.latest_event_sequence, made.attachment) == (1, 1, None)
    assert (row.creator, row.generation, row.liveness, row.transient) == ("pri_ann", 0, "detached", False)
    assert made.session.spec.display_name == "Mine"
    entries = HistoryEntry.objects.order_by("position")
    assert [(entry.position, entry.number, entry.role, entry.initial) for entry in entries] == [
        (0, 0, "system", True),
        (1, 1, "user", True),
        (2, 2, "assistant", True),
    ]
    assert (row.next_position, row.next_history) == (3, 3)
    event = SessionEvent.objects.get()
    assert (event.kind, event.revision, event.sequence) == ("session.created", 1, 1)
    assert msgspec.json.decode(event.payload, type=Summary) == made.session


@pytest.mark.parametrize(
    ("start", "observed"), [(False, ObservedStopped()), (True, ObservedIdle())], ids=["stopped", "started"]
)
def test_observed_state_of_a_new_session(world: World, start: bool, observed: object) -> None:
    """4.2.7: "observed: `stopped` unless `start_immediately`, then `idle` (no starting event)"; 4.4: "create + start | R, idle |
    created"."""
    made = create(world, world.spec(start=start))
    assert made.session.observed_state == observed
    assert made.session.desired_state == ("running" if start else "stopped")
    assert SessionEvent.objects.count() == 1


def test_a_session_and_its_attachment_are_two_revisions(world: World) -> None:
    """4.2.8: "optional attachment (5), then answer with the final summary; `mutation` equals that summary's counters"."""
    made = create(world, world.spec(), "read_write")
    assert made.attachment is not None
    assert (made.revision, made.latest_event_sequence) == (2, 1)
    assert (made.session.revision, made.session.latest_event_sequence) == (2, 1)
    assert Attachment.objects.get().id == made.attachment.id

    owned = create(world, world.spec(liveness=world.owner_bound()), "owner_read_write")
    assert (owned.revision, owned.latest_event_sequence) == (2, 2)
    assert owned.attachment is not None
    assert owned.attachment.owner_lease


def test_an_owner_bound_session_keeps_what_its_owner_wants(world: World) -> None:
    """4.1: owner-bound sessions may be transient; 5.3: grace and stop mode are the session's own."""
    create(world, world.spec(liveness=world.owner_bound(1234, "cancel"), transient=True))
    row = Session.objects.get()
    assert (row.liveness, row.disconnect_grace_ms, row.stop_mode, row.transient) == (
        "owner_bound",
        1234,
        "cancel",
        True,
    )


def test_a_session_keeps_revision_and_profile(world: World) -> None:
    """3.1: "A session stores the revision ID and the permission-profile digest at creation and uses those forever"."""
    prompt = world.prompt()
    made = create(world, world.spec())
    later = world.prompt("<config model='demo:y'/>", name="later")
    PromptDefinition.objects.filter(id=prompt.id).update(
        current_revision=later.current_revision, profile_revision=world.profile(tool_default="deny")
    )
    row = Session.objects.get()
    assert made.session.prompt_revision == row.prompt_revision_id == prompt.current_revision_id
    assert row.profile_id == prompt.profile_revision_id


def test_the_requested_profile_is_kept_and_ignored(world: World) -> None:
    """4.2.4: "the request's `permission_profile` is stored in the spec but not used"."""
    made = create(world, world.spec(permission_profile="anything goes"))
    assert made.session.spec.permission_profile == "anything goes"
    assert Session.objects.get().profile_id == PromptDefinition.objects.get().profile_revision_id


def test_labels_may_be_anything(committed_world: World) -> None:
    """4.1 bounds no label but by the request's size: each is kept as it is, and found."""
    world = committed_world
    labels = {"key": "x" * 10_000, "k" * 10_000: "", "nul\0": "\0", "Case": "a", "case": "A"}
    made = create(world, world.spec(labels=labels))
    assert made.session.spec.labels == labels
    for key, value in labels.items():
        found = listing.list_sessions(world.client().caller.visible, after="", limit=5, labels={key: value})
        assert [session.id for session in found] == [made.session.id]


def test_what_a_session_is_created_with_is_bounded(world: World) -> None:
    """16: every event, answer and list repeats it, and none may exceed what is announced."""
    create(world, world.spec(labels={"key": "x" * 255 * limits.KIB}))
    with pytest.raises(ResourceLimit, match="256 KiB") as refused:
        create(world, world.spec(labels={"key": "x" * 256 * limits.KIB}))
    assert not refused.value.retryable


# What is refused, in this order


def spoiled(world: World, **members: Any) -> SessionSpec:
    """Return a spec with some members replaced, the prompt's and the workspace's last."""
    return msgspec.structs.replace(world.spec(), **members)


CHECKS: list[tuple[str, type[Refusal]]] = [
    ("embedded", InvalidRequest),
    ("local prompt", PromptUnavailable),
    ("unknown prompt", PromptNotFound),
    ("disabled prompt", PromptUnavailable),
    ("current workspace", WorkspaceUnavailable),
    ("unknown workspace", WorkspaceNotFound),
    ("other workspace", PermissionDenied),
    ("no profile", ConfigurationInvalid),
    ("no folder", WorkspaceUnavailable),
]


def refused_spec(world: World, faults: list[str]) -> SessionSpec:
    """Return a spec that has all these faults, as far as they do not exclude each other: the first of a kind counts."""
    spec = world.spec()
    other = WorkspaceDefinition.objects.create(
        id="wsd_other", name="other", kind="physical", path="/", access="shared_write"
    )
    members: dict[str, Any] = {}
    for fault in reversed(faults):
        match fault:
            case "embedded":
                members |= {"execution_host": "embedded", "liveness": LivenessProcessBound()}
            case "local prompt":
                members["prompt"] = PromptRefLocalPath(path="x.chatmd")
            case "unknown prompt":
                members["prompt"] = UNKNOWN_PROMPT
            case "disabled prompt":
                PromptDefinition.objects.update(enabled=False)
            case "current workspace":
                members["workspace"] = WorkspaceRequestCurrent()
            case "unknown workspace":
                members["workspace"] = UNKNOWN_WORKSPACE
            case "other workspace":
                members["workspace"] = WorkspaceRequestConfigured(workspace_id=other.id)
            case "no profile":
                PromptDefinition.objects.update(profile_revision=None)
            case "no folder":
                (world.folder / "project").rmdir()
    return msgspec.structs.replace(spec, **members)


@pytest.mark.parametrize("first", range(len(CHECKS)), ids=[name for name, _ in CHECKS])
def test_the_checks_of_a_create_in_their_order(world: World, first: int) -> None:
    """4.2, steps 2 to 5; C1: each refusal with everything that is checked later failing too, and nothing left of it."""
    name, refusal = CHECKS[first]
    spec = refused_spec(world, [fault for fault, _ in CHECKS[first:]])
    with pytest.raises(refusal):
        create(world, spec, "read_write", key="k")
    for model in (Session, SessionEvent, HistoryEntry, SessionLabel, Attachment, WorkspaceInstance):
        assert not model.objects.exists(), name
    assert Receipt.objects.get().state == "refusal"
    assert AuditRecord.objects.get().session_id == "", "15: create has session none"


@pytest.mark.parametrize("broken", [{"unavailable_reason": "does not parse"}, {"current_revision": None}])
def test_broken_prompts_are_unavailable(world: World, broken: dict[str, Any]) -> None:
    """4.2.2: "disabled/broken → `prompt_unavailable`"."""
    spec = world.spec()
    PromptDefinition.objects.update(**broken)
    with pytest.raises(PromptUnavailable):
        create(world, spec)


@pytest.mark.parametrize("model", [PromptDefinition, WorkspaceDefinition])
def test_what_left_the_catalog_is_not_found(world: World, model: Any) -> None:
    spec = world.spec()
    model.objects.update(removed=True)
    with pytest.raises(PromptNotFound if model is PromptDefinition else WorkspaceNotFound):
        create(world, spec)


def test_local_workspaces_are_for_embedded_hosts(world: World) -> None:
    """4.2.3: "not "configured" kind → `workspace_unavailable`"."""
    with pytest.raises(WorkspaceUnavailable):
        create(world, spoiled(world, workspace=WorkspaceRequestLocalPath(path="/")))


# An embedded host


@pytest.fixture
def host(world: World) -> Iterator[dict[str, Any]]:
    """Make this process a host; the members of a spec that it takes."""
    spec = world.spec()
    assert isinstance(spec.prompt, PromptRefCatalog)
    assert isinstance(spec.workspace, WorkspaceRequestConfigured)
    embedding.install(
        Embedding(
            spec.prompt.prompt_id,
            (world.folder / "p.chatmd").resolve(),
            spec.workspace.workspace_id,
            (world.folder / "project").resolve(),
        )
    )
    yield {"execution_host": "embedded", "liveness": LivenessProcessBound()}
    embedding.install(None)


def test_a_host_takes_its_prompt_and_workspace_by_path(world: World, host: dict[str, Any]) -> None:
    """4.1: embedded sessions are bound to their process, durable or transient."""
    by_path = {
        "prompt": PromptRefLocalPath(path=str(world.folder / "project" / ".." / "p.chatmd")),
        "workspace": WorkspaceRequestLocalPath(path=str(world.folder / "project")),
    }
    made = create(world, spoiled(world, **host, **by_path))
    create(world, spoiled(world, **host, workspace=WorkspaceRequestCurrent(), persistence="transient"))

    assert Session.objects.get(id=made.session.id).liveness == "process_bound"
    assert set(Session.objects.values_list("transient", flat=True)) == {False, True}


def test_a_host_takes_nothing_else(world: World, host: dict[str, Any]) -> None:
    refused = [
        (world.spec(), InvalidRequest),
        (spoiled(world, **host, prompt=PromptRefLocalPath(path="/other.chatmd")), PromptUnavailable),
        (spoiled(world, **host, workspace=WorkspaceRequestLocalPath(path="/")), WorkspaceUnavailable),
    ]
    for spec, refusal in refused:
        with pytest.raises(refusal):
            create(world, spec)


# Workspaces


def test_a_temporary_workspace_is_made_for_the_session(world: World) -> None:
    """3.2: "Temporary ones are made mode 0700"."""
    made = create(world, world.spec(workspace=world.temporary()))
    instance = WorkspaceInstance.objects.get()
    path = world.folder_of(made.session.id) / f"ochat-{instance.id}"
    assert (instance.path, instance.created_by_server, instance.conflict_domain) == (
        str(path),
        True,
        instance.id,
    )
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o700, 0o700)


def test_a_physical_workspace_is_resolved_through_links(world: World) -> None:
    """3.2: "Physical roots are canonicalised through symlinks"; the conflict domain is the "canonical path (physical)"."""
    definition = world.physical()
    link = world.folder / "link"
    link.symlink_to(world.folder / "project")
    WorkspaceDefinition.objects.filter(id=definition.id).update(path=str(link))
    create(world, world.spec())
    instance = WorkspaceInstance.objects.get()
    real = str(world.folder / "project")
    assert (instance.path, instance.conflict_domain, instance.created_by_server) == (real, real, False)


def test_a_folder_that_cannot_be_made_is_the_stores_failure(world: World) -> None:
    """4.2.5: "`persistence_error`", not retryable while a session is being created (16.1), and no outcome (11.3)."""
    file = world.folder / "file"
    file.write_text("")
    definition = world.temporary()
    WorkspaceDefinition.objects.filter(id=definition.id).update(
        temporary_location="system_tmp", path=str(file / "below")
    )
    with pytest.raises(PersistenceError) as refused:
        create(world, world.spec(workspace=definition), key="k")
    assert not refused.value.retryable
    assert not Receipt.objects.exists()


@pytest.mark.parametrize("failure", ["attachment", "database"])
def test_a_refused_session_leaves_no_folder(world: World, failure: str) -> None:
    """4.2.5: "Any failure removes everything"."""
    spec = world.spec(workspace=world.temporary())
    folders = world.folder_of("any").parent
    folders.mkdir(exist_ok=True)
    before = set(folders.iterdir())
    if failure == "attachment":
        PromptRevision.objects.update(manifest=b'{"root":"gone","sources":{}}')
        pinned.forget()
    else:
        PromptRevision.objects.update(entries=b"no json")
    with pytest.raises((PromptUnavailable, msgspec.DecodeError)):
        create(world, spec, "read_write")
    assert set(folders.iterdir()) == before


def test_a_physical_root_is_never_removed(world: World) -> None:
    """3.2: physical roots "are never deleted"."""
    create(world, world.spec())
    root = world.folder / "project"
    (root / "kept").write_text("")
    workspaces.discard(WorkspaceInstance.objects.get())
    assert (root / "kept").exists()


def test_a_session_folder_with_other_files_stays(world: World) -> None:
    made = create(world, world.spec(workspace=world.temporary()))
    folder = world.folder_of(made.session.id)
    (folder / "shell.log").write_text("")
    workspaces.discard(WorkspaceInstance.objects.select_related("definition").get())
    assert [path.name for path in folder.iterdir()] == ["shell.log"]


def test_the_refusal_of_an_attachment_limit_takes_the_session_back(world: World) -> None:
    """4.2.8: the attachment is part of the creation: its refusal leaves no session."""
    held = world.create()
    row = Attachment.objects.get()
    for number in range(limits.MAX_ATTACHMENTS_PER_CONNECTION - 1):
        row.pk = f"att_{number}"
        row.save(force_insert=True)
    with pytest.raises(ResourceLimit):
        world.create(by=held)
    assert Session.objects.count() == 1
