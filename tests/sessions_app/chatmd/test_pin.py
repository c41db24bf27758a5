"""Prompts pinned to their bytes (behaviour 3.1)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sessions_app.chatmd.elements import BuiltinTool, Config, Tool
from sessions_app.chatmd.pin import PinnedPrompt, UnavailablePrompt, capture, manifest, restore, revision_id
from sessions_app.limits import MAX_ENTRY_BYTES, MAX_PROMPT_BYTES, MAX_PROMPT_SOURCES

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8


def has_tool(tool: Tool) -> bool:
    return tool.name in {"clock", "helper"}


class Folder:
    """Prompt files in a folder of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, content: str | bytes) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def pinned(self, name: str = "root.chatmd") -> PinnedPrompt:
        pinned = capture(self.root / name, has_tool)
        assert isinstance(pinned, PinnedPrompt), pinned.reason
        return pinned

    def reason(self, source: str | bytes | None = None) -> str:
        if source is not None:
            self.write("root.chatmd", source)
        unavailable = capture(self.root / "root.chatmd", has_tool)
        assert isinstance(unavailable, UnavailablePrompt)
        assert "\n" not in unavailable.reason
        return unavailable.reason


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "prompts")


@pytest.fixture
def whole(folder: Folder) -> Folder:
    """A prompt that uses everything that is captured."""
    folder.write(
        "root.chatmd",
        '<config model="demo:plain"/><import src="shared/tools.chatmd"/>'
        '<developer>See <doc src="guide.md" local/> <img src="a.png" local/></developer>'
        '<tool name="helper" agent="agents/helper.chatmd" local/>',
    )
    folder.write("shared/tools.chatmd", '<tool name="clock"/>')
    folder.write("guide.md", "the guide")
    folder.write("a.png", PNG)
    folder.write("agents/helper.chatmd", '<system><import src="tone.md"/></system>')
    folder.write("agents/tone.md", "be brief")
    folder.write("unused.md", "nobody reads this")
    return folder


def test_a_prompt_is_captured_with_everything_it_reads(whole: Folder) -> None:
    pinned = whole.pinned()
    assert sorted(pinned.sources) == [
        "a.png",
        "agents/helper.chatmd",
        "agents/tone.md",
        "guide.md",
        "root.chatmd",
        "shared/tools.chatmd",
    ]
    assert pinned.root == "root.chatmd"
    assert pinned.prompt.config == Config(model="demo:plain")
    assert pinned.prompt.tools[0] == BuiltinTool(name="clock")
    assert pinned.prompt.agents == ("agents/helper.chatmd",)
    (item,) = pinned.prompt.items
    assert (item.role, item.kind) == ("system", "message")
    content = json.loads(bytes(item.payload))["content"]
    assert [part.get("text", part.get("image_url", "")[:22]) for part in content] == [
        "See ",
        "the guide",
        "data:image/png;base64,",
    ]


def test_the_same_bytes_have_the_same_revision(whole: Folder, tmp_path: Path) -> None:
    first = whole.pinned()
    assert first.revision.startswith("prv_")
    assert len(first.revision) == len("prv_") + 24
    whole.write("unused.md", "changed")
    assert whole.pinned().revision == first.revision
    elsewhere = Folder(tmp_path / "elsewhere")
    for path, content in first.sources.items():
        elsewhere.write(path, content)
    assert elsewhere.pinned() == first


@pytest.mark.parametrize(
    "path", ["root.chatmd", "shared/tools.chatmd", "guide.md", "a.png", "agents/tone.md"]
)
def test_any_other_byte_gives_another_revision(whole: Folder, path: str) -> None:
    before = whole.pinned()
    whole.write(path, before.sources[path] + b"\n")
    assert whole.pinned().revision != before.revision


def test_a_captured_prompt_outlives_its_files(whole: Folder) -> None:
    pinned = whole.pinned()
    for path in pinned.sources:
        (whole.root / path).unlink()
    assert "does not exist" in whole.reason()
    assert restore(pinned.revision, pinned.root, pinned.sources, has_tool) == pinned


@pytest.mark.parametrize(
    "change",
    [{"guide.md": b"other"}, {"extra.md": b""}, {"guide.md": None}],
    ids=["altered", "extra", "missing"],
)
def test_captured_bytes_are_verified(whole: Folder, change: dict[str, bytes | None]) -> None:
    pinned = whole.pinned()
    sources = {path: content for path, content in {**pinned.sources, **change}.items() if content is not None}
    assert restore(pinned.revision, pinned.root, sources, has_tool) == UnavailablePrompt(
        "the captured sources were altered"
    )


def test_a_restored_prompt_needs_its_tools_and_sources_still(whole: Folder) -> None:
    pinned = whole.pinned()
    gone = restore(pinned.revision, pinned.root, pinned.sources, lambda _: False)
    assert isinstance(gone, UnavailablePrompt)
    assert "the tool clock is not available here" in gone.reason
    sources = {"root.chatmd": pinned.sources["root.chatmd"]}
    revision = revision_id("root.chatmd", manifest(sources))
    missing = restore(revision, "root.chatmd", sources, has_tool)
    assert isinstance(missing, UnavailablePrompt)
    assert "'shared/tools.chatmd' was not captured" in missing.reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("words", "root.chatmd line 1: text outside of every element: 'words'"),
        (b"<user>\xff</user>", "root.chatmd line 1: 'root.chatmd' is not UTF-8 text"),
        ("\n<script>x</script>", "root.chatmd line 2: <script> is not supported"),
        ('<shell_access id="a"/>', "root.chatmd line 1: <shell_access> is not supported"),
        (
            '<tool name="index_ocaml_code"/>',
            "root.chatmd line 1: the tool index_ocaml_code is not available here",
        ),
        (
            '<tool mcp_server="https://x"/>',
            "root.chatmd line 1: the tool of an MCP server is not available here",
        ),
        (
            '<tool name="clock"/>\n<tool name="clock"/>',
            "root.chatmd line 2: the tool 'clock' is declared twice",
        ),
        (
            '<user><doc src="https://x"/></user>',
            "root.chatmd line 1: <doc src='https://x'> needs fetching, converting or running",
        ),
        (
            '<user><doc src="a.html" local markdown/></user>',
            "root.chatmd line 1: <doc src='a.html'> needs fetching, converting or running",
        ),
        (
            '<user><agent src="a" local>b</agent></user>',
            "root.chatmd line 1: <agent src='a'> needs fetching, converting or running",
        ),
        ('<user><doc src="no.md" local/></user>', "root.chatmd line 1: 'no.md' does not exist"),
        ('<user><doc src="/etc/hostname" local/></user>', "root.chatmd line 1: '/etc/hostname' is not below"),
        ('<user><doc src="folder" local/></user>', "root.chatmd line 1: 'folder' is not a file"),
        ('<user><doc src="latin.txt" local/></user>', "root.chatmd line 1: 'latin.txt' is not UTF-8 text"),
        ('<user><img src="latin.txt" local/></user>', "root.chatmd line 1: 'latin.txt' is no PNG, JPEG"),
        (
            '<tool name="helper" agent="../up" local/>',
            "root.chatmd line 1: '../up' is not below the prompt's folder",
        ),
        ('<tool name="helper" agent="bad.chatmd" local/>', "bad.chatmd line 2: <script> is not supported"),
    ],
)
def test_what_makes_a_prompt_unavailable_is_said_in_one_line(
    folder: Folder, source: str | bytes, reason: str
) -> None:
    folder.write("folder/x", "")
    folder.write("latin.txt", b"\xe9")
    folder.write("bad.chatmd", "\n<script/>")
    assert folder.reason(source).startswith(reason)


@pytest.mark.parametrize("name", ["link", "through"])
def test_links_out_of_the_folder_are_refused(folder: Folder, name: str) -> None:
    outside = folder.root.parent / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("secret")
    folder.write("root.chatmd", "")
    (folder.root / "link").symlink_to(outside / "secret.md")
    (folder.root / "through").symlink_to(outside)
    path = {"link": "link", "through": "through/secret.md"}[name]
    assert "is a link out of the prompt's folder" in folder.reason(f'<user><import src="{path}"/></user>')


def test_links_inside_the_folder_and_to_the_root_are_followed(folder: Folder) -> None:
    folder.write("real/root.chatmd", '<user><import src="alias.md"/></user>')
    folder.write("real/text.md", "text")
    (folder.root / "real/alias.md").symlink_to("text.md")
    (folder.root / "root.chatmd").symlink_to("real/root.chatmd")
    assert sorted(folder.pinned().sources) == ["alias.md", "root.chatmd"]


def test_links_in_a_circle_and_pipes_end_at_once(folder: Folder) -> None:
    folder.write("x", "")
    (folder.root / "circle").symlink_to("circle")
    os.mkfifo(folder.root / "pipe")
    assert "'circle' cannot be read" in folder.reason('<import src="circle"/>')
    assert "'pipe' is not a file" in folder.reason('<import src="pipe"/>')
    assert capture(folder.root / "circle", has_tool) == UnavailablePrompt("'circle' cannot be read")


def test_agents_may_run_each_other(folder: Folder) -> None:
    folder.write("root.chatmd", '<tool name="helper" agent="sub/other.chatmd" local/>')
    folder.write("sub/other.chatmd", '<tool name="helper" agent="../root.chatmd" local/>')
    assert sorted(folder.pinned().sources) == ["root.chatmd", "sub/other.chatmd"]


def test_an_absolute_or_remote_agent_is_not_captured(folder: Folder) -> None:
    folder.write(
        "root.chatmd",
        '<tool name="helper" agent="/opt/a.chatmd" local/><tool name="clock" agent="https://x"/>',
    )
    pinned = folder.pinned()
    assert (sorted(pinned.sources), pinned.prompt.agents) == (["root.chatmd"], ())


def test_number_and_size_of_sources_are_bounded(folder: Folder) -> None:
    imports = []
    for number in range(MAX_PROMPT_SOURCES):
        folder.write(f"{number}.md", "")
        imports.append(f'<import src="{number}.md"/>')
    assert f"at most {MAX_PROMPT_SOURCES}" in folder.reason("".join(imports))
    folder.write("root.chatmd", "".join(imports[1:]))
    assert len(folder.pinned().sources) == MAX_PROMPT_SOURCES
    folder.write("large.md", b" " * MAX_PROMPT_BYTES)
    assert f"at most {MAX_PROMPT_BYTES} bytes" in folder.reason('<user><doc src="large.md" local/></user>')


def test_what_a_message_brings_in_is_bounded(folder: Folder) -> None:
    folder.write("half.md", b"x" * (MAX_ENTRY_BYTES // 2))
    doc = '<doc src="half.md" local/>'
    assert "larger than a history entry" in folder.reason(f"<user>{doc}{doc}</user>")
    assert "the helpers bring in more than" in folder.reason(f"<user>{doc}</user>" * 9)
