"""The catalog in force: swapped as one, followed by every process (behaviour 3.1, 3.2)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from django.contrib.auth.models import Group

from sessions_app import callers, catalog, limits, listing, pinned, records
from sessions_app.catalog import Change, Follower
from sessions_app.catalog_file import CatalogFile
from sessions_app.chatmd.elements import Tool
from sessions_app.commands.sessions import create_session
from sessions_app.errors import ConfigurationInvalid, Refusal, StoreLocked
from sessions_app.models import (
    CatalogState,
    HistoryEntry,
    ProfileRevision,
    PromptDefinition,
    PromptRevision,
    Session,
    WorkspaceDefinition,
)
from sessions_app.receipts import Call
from tests.permissions_app.world import together
from tests.support.catalogs import CATALOG, SECOND_PROMPT, Catalog, has_clock_only

pytestmark = pytest.mark.django_db

CODING = catalog.prompt_id("coding")
SCRATCH = catalog.workspace_id("scratch")


@pytest.fixture(autouse=True)
def _fresh_process() -> Iterator[None]:
    with limits.using(limits.server()):
        restart()
        yield
        restart()


@pytest.fixture
def written(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path)


def restart() -> None:
    """Forget what a process keeps of the store."""
    catalog.forget()
    pinned.forget()


def prompts() -> dict[str, records.Prompt]:
    return {prompt.name: prompt for prompt in listing.list_prompts(after="", limit=100)}


def workspaces() -> dict[str, records.Workspace]:
    return {workspace.name: workspace for workspace in listing.list_workspaces(after="", limit=100)}


def version() -> int:
    return CatalogState.objects.get().version


def new_session(prompt: str = "coding") -> Session:
    caller = callers.system("test")
    spec = records.SessionSpec(
        execution_host="daemon",
        prompt=records.PromptRefCatalog(prompt_id=catalog.prompt_id(prompt)),
        workspace=records.WorkspaceRequestConfigured(workspace_id=SCRATCH),
        liveness=records.LivenessDetached(),
        persistence="durable",
        start_immediately=True,
        labels={},
    )
    made = create_session(Call(caller=caller, method="session.create"), spec, None)
    return Session.objects.get(id=made.session.id)


def said_to_the_model(session: Session) -> bytes:
    return HistoryEntry.objects.get(session=session).payload


def test_a_load_makes_rows_of_every_entry(written: Catalog) -> None:
    loaded = catalog.load(written.source)

    assert loaded.diff.version == version() == 1
    assert loaded.diff.tables["prompts"] == Change(added=("coding",))
    assert loaded.problems == ()
    assert prompts()["coding"] == records.Prompt(
        id=CODING,
        name="coding",
        description="Writes code.",
        enabled=True,
        current_revision=PromptRevision.objects.get().id,
        allowed_workspaces=(SCRATCH,),
        permission_profile="open",
        availability="available",
    )
    assert workspaces()["scratch"] == records.Workspace(
        id=SCRATCH,
        name="scratch",
        kind="temporary",
        temporary_location="session_dir",
        cleanup="on_session_delete",
        access="shared_write",
        prompt_limits=(records.PromptLimit(prompt_id=CODING, max_root_agents=4, overflow="queue"),),
        availability="available",
    )
    profile = ProfileRevision.objects.get()
    assert msgspec.json.decode(profile.content)["tool_default"] == "allow"
    assert PromptDefinition.objects.get().profile_revision == profile
    assert (catalog.current().prompt_id, catalog.current().workspace_id) == (CODING, SCRATCH)
    assert catalog.current().models == ("demo:demo",)
    assert [file.default_prompt for file in written.swapped] == ["coding"]


def test_the_same_content_changes_nothing(written: Catalog) -> None:
    catalog.load(written.source)
    written.write(CATALOG + "\n# A comment says nothing.\n")

    loaded = catalog.load(written.source)

    assert loaded.diff.tables == {}
    assert version() == 1
    assert len(written.swapped) == 1


def test_entries_that_left_the_file_are_gone_and_their_sessions_go_on(written: Catalog) -> None:
    written.write(CATALOG + SECOND_PROMPT)
    catalog.load(written.source)
    session = new_session("writing")
    written.write(CATALOG)

    diff = catalog.load(written.source).diff

    assert diff.tables == {"prompts": Change(removed=("writing",))}
    assert set(prompts()) == {"coding"}
    pinned.check(session.prompt_revision_id)
    written.write(CATALOG + SECOND_PROMPT)
    assert catalog.load(written.source).diff.tables == {"prompts": Change(added=("writing",))}
    assert prompts()["writing"].allowed_workspaces == (SCRATCH,)


def test_rows_made_in_the_admin_stay_and_follow_the_profile_they_name(written: Catalog) -> None:
    WorkspaceDefinition.objects.create(
        id="wsd_mine", name="mine", kind="physical", path="/", access="read_only"
    )
    mine = PromptDefinition.objects.create(id="prd_mine", name="mine", permission_profile="open")
    catalog.load(written.source)
    written.write(CATALOG.replace('"allow"', '"deny"'))
    catalog.load(written.source)

    assert set(prompts()) == {"coding", "mine"}
    assert set(workspaces()) == {"scratch", "mine"}
    mine.refresh_from_db()
    assert mine.profile_revision is not None
    assert b'"deny"' in mine.profile_revision.content


def test_a_name_that_is_taken_in_the_admin_refuses_the_file(written: Catalog) -> None:
    PromptDefinition.objects.create(id=CODING, name="coding", permission_profile="mine")
    with pytest.raises(ConfigurationInvalid, match="prompt definition coding was made in the admin"):
        catalog.load(written.source)
    assert not WorkspaceDefinition.objects.exists()
    assert PromptDefinition.objects.get().permission_profile == "mine"


def test_a_changed_profile_counts_for_new_sessions_only(written: Catalog) -> None:
    catalog.load(written.source)
    before = new_session()
    written.write(CATALOG.replace('"allow"', '"deny"'))
    assert catalog.load(written.source).diff.tables == {"permission_profiles": Change(changed=("open",))}
    after = new_session()
    before.refresh_from_db()
    assert b'"allow"' in before.profile.content
    assert b'"deny"' in after.profile.content


def test_a_broken_prompt_is_listed_with_its_reason(written: Catalog) -> None:
    catalog.load(written.source)
    (written.folder / "prompts" / "coding.chatmd").write_text('<tool name="time_machine"/>')

    loaded = catalog.load(written.source)

    reason = "the tool time_machine is not available here"
    assert [problem.partition(": ")[0] for problem in loaded.problems] == ["prompt coding"]
    assert loaded.problems[0].endswith(reason)
    shown = prompts()["coding"]
    assert (shown.availability, shown.current_revision) == ("unavailable", msgspec.UNSET)
    assert str(shown.unavailable_reason).endswith(reason)


def test_a_missing_root_makes_a_workspace_unavailable_until_a_reload_finds_it(written: Catalog) -> None:
    root = written.folder / "project"
    written.write(
        CATALOG + '[[workspaces]]\nid = "project"\nsource = { physical = "project" }\naccess = "exclusive"\n'
    )
    follower = Follower(written.source)
    follower.start()
    assert workspaces()["project"].unavailable_reason == "the workspace is not there"

    root.mkdir()
    follower.request_reload()
    follower.reload_if_changed()

    assert workspaces()["project"].availability == "available"
    assert WorkspaceDefinition.objects.get(name="project").path == str(root)


def test_old_sessions_keep_their_prompt_through_edits_restart_and_deletion(written: Catalog) -> None:
    """Scenario C4."""
    follower = Follower(written.source)
    follower.start()
    first = new_session()
    written.write_prompt("coding", "You write tests.")

    follower.reload_if_changed()
    assert prompts()["coding"].current_revision == first.prompt_revision_id, "the file was not touched"
    follower.request_reload()
    follower.reload_if_changed()

    second = new_session()
    assert prompts()["coding"].current_revision == second.prompt_revision_id != first.prompt_revision_id
    shutil.rmtree(written.folder / "prompts")
    restart()
    Follower(written.source).start()
    assert prompts()["coding"].availability == "unavailable"
    for session, text in ((first, b"You write code."), (second, b"You write tests.")):
        session.refresh_from_db()
        pinned.check(session.prompt_revision_id)
        (entry,) = pinned.initial_entries(session.prompt_revision)
        assert text in entry.payload == said_to_the_model(session)


def test_a_broken_file_keeps_the_old_catalog_and_says_which_line(written: Catalog) -> None:
    follower = Follower(written.source)
    follower.start()
    before = prompts(), workspaces(), version()
    written.write(CATALOG.replace('description = "Writes code."', 'colour = "red"'))

    follower.reload_if_changed()

    assert (prompts(), workspaces(), version()) == before
    line = written.file.read_text().splitlines().index('colour = "red"') + 1
    assert catalog.error() == f"ochat.toml: line {line}: prompts has no key colour"
    written.file.unlink()
    follower.reload_if_changed()
    assert catalog.error() == "ochat.toml: line 1: the file cannot be read: No such file or directory"
    written.write(CATALOG)
    follower.reload_if_changed()
    assert catalog.error() == ""
    assert version() == 1


def test_a_process_starts_with_the_old_catalog_when_the_file_is_broken(written: Catalog) -> None:
    catalog.load(written.source)
    written.write("version = 2")
    Follower(written.source).start()
    assert catalog.error().startswith("ochat.toml: line 1: version")
    assert catalog.current().prompt_id == CODING


def test_without_a_file_there_is_nothing_to_follow(tmp_path: Path) -> None:
    follower = Follower(Catalog(tmp_path).source)
    (tmp_path / "ochat.toml").unlink()
    follower.start()
    follower.reload_if_changed()
    assert not CatalogState.objects.exists()
    assert catalog.error() == ""
    assert catalog.current() == catalog.Defaults()


def test_another_server_table_counts_from_the_next_start_only(written: Catalog) -> None:
    follower = Follower(written.source)
    follower.start()
    changed = "[server]\nmax_attachments_per_session = 7\n" + SECOND_PROMPT
    written.write(CATALOG + changed)

    follower.reload_if_changed()

    assert set(prompts()) == {"coding"}, "the file is refused as a whole"
    assert "the [server] table was changed" in catalog.error()
    assert limits.server().max_attachments_per_session == 1024
    Follower(written.source).start()
    assert limits.server().max_attachments_per_session == 7
    assert set(prompts()) == {"coding", "writing"}
    assert catalog.error() == ""
    follower.request_reload()
    follower.reload_if_changed()
    assert catalog.error() == "", "the table is the stored one"


def test_what_on_swap_refuses_is_undone_with_everything(written: Catalog) -> None:
    catalog.load(written.source)
    written.write(CATALOG.replace('"allow"', '"deny"') + SECOND_PROMPT)

    def refuse(_file: CatalogFile, _diff: catalog.Diff) -> None:
        Group.objects.create(name="made in the swap")
        raise ConfigurationInvalid("no")

    with pytest.raises(ConfigurationInvalid):
        catalog.load(replace(written.source, on_swap=refuse))

    assert (version(), set(prompts())) == (1, {"coding"})
    assert ProfileRevision.objects.count() == 1
    assert not Group.objects.exists()


def test_what_failed_for_want_of_the_store_is_tried_again(written: Catalog) -> None:
    failures: list[Refusal] = [StoreLocked("the store is busy")]

    def fail_once(_file: CatalogFile, _diff: catalog.Diff) -> None:
        if failures:
            raise failures.pop()

    follower = Follower(replace(written.source, on_swap=fail_once))
    with pytest.raises(StoreLocked):
        follower.reload_if_changed()
    follower.reload_if_changed()
    assert version() == 1


def test_the_other_processes_follow_the_version(written: Catalog) -> None:
    follower = Follower(written.source)
    follower.start()
    written.write(CATALOG.replace('models = ["demo:demo"]', 'models = ["gpt-5"]'))

    catalog.load(written.source)  # as another process does
    assert catalog.current().models == ("demo:demo",)
    catalog.refresh()

    assert catalog.current().models == ("gpt-5",)


def test_a_load_that_was_overtaken_reads_the_files_again(written: Catalog) -> None:
    """Whoever read old files must not put them in force over newer ones."""
    overtakes = [True]

    def has_tool(tool: Tool) -> bool:
        if overtakes:
            overtakes.clear()
            written.write(CATALOG.replace("Writes code.", "Writes better code."))
            catalog.load(written.source)
        return has_clock_only(tool)

    loaded = catalog.load(replace(written.source, has_tool=has_tool))

    assert loaded.diff.tables == {}
    assert version() == 1
    assert prompts()["coding"].description == "Writes better code."


def test_of_two_processes_that_load_at_once_one_does(database: str, tmp_path: Path) -> None:
    written = Catalog(tmp_path)
    barrier = threading.Barrier(2)

    def process() -> int:
        met: list[int] = []

        def has_tool(tool: Tool) -> bool:
            if not met:
                # Both have read the version and the file before either of them swaps.
                met.append(barrier.wait(30))
            return has_clock_only(tool)

        return len(catalog.load(replace(written.source, has_tool=has_tool)).diff.tables)

    changed = together(process, process)

    assert sorted(bool(one) for one in changed) == [False, True]
    assert version() == 1
    assert len(written.swapped) == 1
    assert set(prompts()) == {"coding"}


def test_a_check_finds_everything_and_stores_nothing(written: Catalog) -> None:
    assert catalog.check(written.file, has_clock_only) == ()
    (written.folder / "prompts" / "coding.chatmd").unlink()
    (problem,) = catalog.check(written.file, has_clock_only)
    assert problem.startswith("prompt coding: coding.chatmd")
    written.write('version = 1\ndefault_prompt = "none"\n')
    with pytest.raises(ConfigurationInvalid, match="line 2: there is no prompt none"):
        catalog.check(written.file, has_clock_only)
    assert not CatalogState.objects.exists()
