"""A catalog made ready to be stored: everything that the file names is read and looked at (behaviour 3.1, 3.2).

Owns: capturing prompts, finding workspaces, a digest of what each entry comes to. Does not own: the file's rules
(`catalog_file`), or storing what was read (`catalog`). Nothing here touches the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from sessions_app import workspaces
from sessions_app.catalog_file import CatalogFile, PromptEntry, WorkspaceEntry
from sessions_app.chatmd.pin import PinnedPrompt, ToolCheck, UnavailablePrompt, capture
from sessions_app.encoding import encode
from sessions_app.errors import WorkspaceUnavailable
from sessions_app.limits import ServerSettings

Entries = dict[str, dict[str, str]]
"""The digest of each entry, by table and name."""


class PreparedPrompt(Struct, frozen=True, kw_only=True):
    """A prompt as its files are now: a revision, or the reason why there is none."""

    entry: PromptEntry
    revision: str | None = None
    reason: str = ""


class PreparedWorkspace(Struct, frozen=True, kw_only=True):
    """A workspace as this machine has it."""

    entry: WorkspaceEntry
    path: str
    """Its physical root or managed root, absolute; empty for temporary folders in the usual place."""
    reason: str = ""
    """Why it is unavailable."""


class PreparedCatalog(Struct, frozen=True, kw_only=True):
    """A whole catalog, ready to be stored."""

    file: CatalogFile
    prompts: tuple[PreparedPrompt, ...]
    workspaces: tuple[PreparedWorkspace, ...]
    captured: tuple[PinnedPrompt, ...]
    """What the prompts' revisions were made of, each once."""

    def problems(self) -> Iterator[str]:
        """Yield a line for each prompt and workspace that will be listed as unavailable."""
        for prompt in self.prompts:
            if prompt.reason:
                yield f"prompt {prompt.entry.id}: {prompt.reason}"
        for workspace in self.workspaces:
            if workspace.reason:
                yield f"workspace {workspace.entry.id}: {workspace.reason}"

    def entries(self) -> Entries:
        """Return a digest of each entry, and of each single setting that was made."""
        file = self.file
        defaults = {"prompt": file.default_prompt, "workspace": file.default_workspace, "models": file.models}
        server, usual = msgspec.structs.asdict(file.server), msgspec.structs.asdict(ServerSettings())
        return {
            "defaults": _digests((name, value) for name, value in defaults.items() if value),
            "server": _digests((name, value) for name, value in server.items() if value != usual[name]),
            "workspaces": _digests((workspace.entry.id, workspace) for workspace in self.workspaces),
            "permission_profiles": _digests((profile.id, profile) for profile in file.permission_profiles),
            "prompts": _digests((prompt.entry.id, prompt) for prompt in self.prompts),
            "tokens": _digests(
                (f"{token.principal_id} {token.token_sha256[:16].lower()}", token) for token in file.tokens
            ),
            "manifest_grants": _digests((grant.id, grant) for grant in file.manifest_grants),
            "trusted_proxies": _digests(
                (" ".join(proxy.trusted_addresses), proxy) for proxy in file.trusted_proxies
            ),
        }


def prepare(file: CatalogFile, folder: Path, has_tool: ToolCheck) -> PreparedCatalog:
    """Return a catalog with its prompts captured and its workspaces looked for; relative paths start at `folder`.

    A prompt that cannot be captured, or asks for a tool that `has_tool` denies, and a workspace whose root is missing become
    unavailable entries; nothing is refused.
    """
    folder = folder.absolute()
    paths = dict.fromkeys(entry.path for entry in file.prompts)
    captures = {path: capture(folder / path, has_tool) for path in paths}
    pinned = [found for found in captures.values() if isinstance(found, PinnedPrompt)]
    return PreparedCatalog(
        file=file,
        prompts=tuple(_prompt(entry, captures[entry.path]) for entry in file.prompts),
        workspaces=tuple(_workspace(entry, folder) for entry in file.workspaces),
        captured=tuple({one.revision: one for one in pinned}.values()),
    )


def digest(value: object) -> str:
    """Return the hex SHA-256 of a record as it is stored."""
    return hashlib.sha256(encode(value)).hexdigest()


def _prompt(entry: PromptEntry, found: PinnedPrompt | UnavailablePrompt) -> PreparedPrompt:
    if isinstance(found, UnavailablePrompt):
        return PreparedPrompt(entry=entry, reason=found.reason)
    return PreparedPrompt(entry=entry, revision=found.revision)


def _workspace(entry: WorkspaceEntry, folder: Path) -> PreparedWorkspace:
    source = entry.source
    if source.physical is None:
        managed = source.temporary and source.temporary.managed_root
        return PreparedWorkspace(entry=entry, path=str(folder / managed) if managed else "")
    path = str(folder / source.physical)
    try:
        workspaces.physical_root(path)
    except WorkspaceUnavailable as refusal:
        return PreparedWorkspace(entry=entry, path=path, reason=refusal.message)
    return PreparedWorkspace(entry=entry, path=path)


def _digests(entries: Iterable[tuple[str, object]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, entry in entries:
        if name not in found:  # of two tokens or proxies of one name the first decides
            found[name] = digest(entry)
    return found
