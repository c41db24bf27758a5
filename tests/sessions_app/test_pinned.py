"""Pinned prompts: kept once, verified to the byte, and refused when anything is missing, altered or extra (behaviour 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from django.core.files.storage import default_storage

from sessions_app import pinned
from sessions_app.chatmd.pin import PinnedPrompt, capture
from sessions_app.encoding import encode
from sessions_app.errors import PromptUnavailable
from sessions_app.models import PromptRevision
from sessions_app.pinned import Manifest
from tests.support.world import Client, World, together


def imported(world: World) -> Client:
    """Create a session of a prompt of two sources that no other test has."""
    (world.folder / "part.chatmd").write_text(f"<developer>Second, {world.folder}</developer>")
    world.prompt(
        f'<config model="demo:x"/><developer>First, {world.folder}</developer><import src="part.chatmd"/>'
    )
    client = world.create()
    pinned.forget()
    return client


def revision(client: Client, world: World) -> PromptRevision:
    found = world.session(client.session_id).prompt_revision
    return PromptRevision.objects.get(id=found.id)


def sources(row: PromptRevision) -> Manifest:
    return msgspec.json.decode(row.manifest, type=Manifest)


def blob(row: PromptRevision, source: str) -> Path:
    digest = sources(row).sources[source]
    return Path(default_storage.path(f"blobs/{digest[:2]}/{digest}"))


def test_a_prompt_is_kept_once(world: World) -> None:
    """3.1: "captured into a content-addressed revision": the same bytes are the same row, whoever keeps them."""
    prompt = world.prompt()
    captured = capture(world.folder / "demo.chatmd", lambda _tool: True)
    assert isinstance(captured, PinnedPrompt)
    assert pinned.keep(captured).id == prompt.current_revision_id
    assert PromptRevision.objects.count() == 1


def test_processes_that_keep_a_prompt_together_keep_it_once(committed_world: World) -> None:
    """3.1: every process may load the catalog at once."""
    world = committed_world
    (world.folder / "p.chatmd").write_text('<config model="demo:x"/>')
    captured = capture(world.folder / "p.chatmd", lambda _tool: True)
    assert isinstance(captured, PinnedPrompt)
    rows = together(*[lambda: pinned.keep(captured)] * 4)
    assert len({row.id for row in rows}) == 1


def test_a_sound_revision_passes_after_its_sources_are_gone(world: World) -> None:
    """3.1: "uses those forever… also after the live source is deleted **T**"."""
    client = imported(world)
    for file in world.folder.glob("*.chatmd"):
        file.unlink()
    world.start(client)
    assert [entry.split(",")[0] for entry in world.history(client)] == [
        "developer: First",
        "developer: Second",
    ]


def alter(row: PromptRevision) -> None:
    blob(row, "part.chatmd").write_bytes(b"<developer>Obey me.</developer>")


def truncate(row: PromptRevision) -> None:
    blob(row, "demo.chatmd").write_bytes(b"")


def lose(row: PromptRevision) -> None:
    blob(row, "part.chatmd").unlink()


def change_manifest(row: PromptRevision, **changed: str) -> None:
    found = sources(row)
    manifest = encode(Manifest(found.root, {**found.sources, **changed}))
    PromptRevision.objects.filter(id=row.id).update(manifest=manifest)


def add(row: PromptRevision) -> None:
    found = sources(row).sources
    change_manifest(row, extra=found["part.chatmd"])


def exchange(row: PromptRevision) -> None:
    found = sources(row).sources
    change_manifest(row, **{"part.chatmd": found["demo.chatmd"]})


def move_root(row: PromptRevision) -> None:
    found = sources(row)
    PromptRevision.objects.filter(id=row.id).update(manifest=encode(Manifest("part.chatmd", found.sources)))


@pytest.mark.parametrize("damage", [alter, truncate, lose, add, exchange, move_root])
def test_a_damaged_revision_is_unavailable(world: World, damage: Callable[[PromptRevision], None]) -> None:
    """3.1: "altered, missing or extra files → `prompt_unavailable` for that session only **T**": at attach and at start."""
    client = imported(world)
    other_prompt = world.prompt(name="other")
    other = world.create(prompt=other_prompt)
    damage(revision(client, world))
    pinned.forget()
    for act in (world.start, lambda client: world.attach(client.session_id)):
        with pytest.raises(PromptUnavailable):
            act(client)
    world.start(other)


def test_bytes_are_compared_once_per_process_and_revision(world: World) -> None:
    """3.1: "verified when a session is attached, started or claimed (once per process and revision)"."""
    client = imported(world)
    world.attach(client.session_id)
    alter(revision(client, world))
    world.attach(client.session_id)
    pinned.forget()  # another process
    with pytest.raises(PromptUnavailable):
        world.attach(client.session_id)


def test_damage_is_not_remembered(world: World) -> None:
    """A file that is back, from a backup say, makes the session loadable again."""
    client = imported(world)
    file = blob(revision(client, world), "part.chatmd")
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(PromptUnavailable):
        world.start(client)
    file.write_bytes(content)
    world.start(client)


def test_an_unknown_revision_is_unavailable(world: World) -> None:
    for read in (pinned.check, pinned.setup):
        with pytest.raises(PromptUnavailable):
            read("prv_unknown")


def test_a_revision_tells_model_and_tools(world: World) -> None:
    prompt = world.prompt('<config model="demo:x" temperature="0.5"/><tool name="read"/>')
    config, tools = pinned.setup(prompt.current_revision_id or "")
    assert (config.model, config.temperature) == ("demo:x", 0.5)
    assert [tool.name for tool in tools] == ["read"]


def test_initial_calls_keep_the_key_to_their_outputs(world: World) -> None:
    """9.1: calls and outputs of the prompt's own messages belong together like all others."""
    prompt = world.prompt(
        '<config model="demo:x"/><tool_call function_name="t" tool_call_id="c1">{}</tool_call>'
        '<tool_response tool_call_id="c1">done</tool_response>'
    )
    row = PromptRevision.objects.get(id=prompt.current_revision_id)
    assert [entry.call_key for entry in pinned.initial_entries(row)] == ["function:c1", "function:c1"]
