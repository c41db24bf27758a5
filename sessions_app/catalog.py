"""The catalog in force: taking a file as one change, and following what any process has taken (behaviour 3.1).

Owns: the swap and its version, what each process knows of the catalog, the error of a file that was refused. Does not own: the
file's rules (`catalog_file`), reading what it names (`catalog_load`), listing its rows (`listing`), or the parts of the file
that belong to the layers above, which `Source.on_swap` stores.

The store is the catalog; the file is how most of it gets there. A process that finds the file changed loads it, the others
notice the version, and loading the same content again changes nothing, so it does not matter who is first or how many try.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog
from django.db import transaction
from msgspec import Struct

from sessions_app import clock, ids, limits, pinned, store
from sessions_app.catalog_file import (
    CatalogError,
    CatalogFile,
    ManifestGrantEntry,
    TrustedProxyEntry,
    read_catalog,
)
from sessions_app.catalog_load import (
    Entries,
    PreparedCatalog,
    PreparedPrompt,
    PreparedWorkspace,
    digest,
    prepare,
)
from sessions_app.chatmd.pin import ToolCheck
from sessions_app.encoding import encode
from sessions_app.errors import ConfigurationInvalid, PersistenceError
from sessions_app.limits import ServerSettings
from sessions_app.models import CatalogState, ProfileRevision, PromptDefinition, WorkspaceDefinition
from sessions_app.records import PromptLimit

log = structlog.get_logger(__name__)

Definition = TypeVar("Definition", PromptDefinition, WorkspaceDefinition)


class Defaults(Struct, frozen=True, kw_only=True):
    """What of the catalog every process keeps at hand; everything else is read from its rows."""

    prompt_id: str | None = None
    workspace_id: str | None = None
    models: tuple[str, ...] = ()
    """The models that people may choose from."""
    trusted_proxies: tuple[TrustedProxyEntry, ...] = ()
    manifest_grants: tuple[ManifestGrantEntry, ...] = ()


class Change(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of the entries of one table, by name."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class Diff(Struct, frozen=True, kw_only=True):
    """What a load changed: what its audit record says (behaviour 15). Names only, never values."""

    version: int
    tables: dict[str, Change]


class Loaded(Struct, frozen=True, kw_only=True):
    """How a load ended."""

    diff: Diff
    """Without tables where the file says what is in force already."""
    problems: tuple[str, ...]
    """A line for each prompt and workspace that is listed as unavailable."""


@dataclass(frozen=True, slots=True)
class Source:
    """The catalog file of an installation, and what the layers above have to do with it."""

    file: Path
    has_tool: ToolCheck
    """Whether this server has a tool that a prompt declares."""
    on_swap: Callable[[CatalogFile, Diff], None]
    """Stores what belongs to the layers above and audits, inside the swap's transaction: what it raises undoes the swap."""


def prompt_id(name: str) -> str:
    """Return the id of the prompt of this name, whoever configures it."""
    return ids.derived_id("prd", name)


def workspace_id(name: str) -> str:
    """Return the id of the workspace of this name, whoever configures it."""
    return ids.derived_id("wsd", name)


def load(source: Source, *, at_start: bool = False) -> Loaded:
    """Put the catalog file in force: the whole of it, in one transaction, or nothing of it.

    Entries that left the file are marked as removed, and sessions made from them go on; rows made in the admin stay. `at_start`
    also takes another `[server]` table, which counts for processes that start from now on. Raises ConfigurationInvalid, with
    one line for the operator, for a file that is not a catalog, another `[server]` table (else), an entry whose name is taken
    by a row made here, and what `on_swap` refuses; PersistenceError when the store or the storage fails.
    """
    loaded = None
    while loaded is None:
        loaded = _try_load(source, at_start=at_start)
    return loaded


def _try_load(source: Source, *, at_start: bool) -> Loaded | None:
    """Load once; None when another process loaded meanwhile: it may have read newer files than these."""
    with store.errors():
        before = CatalogState.objects.filter(id=1).first() or CatalogState(loaded_at=clock.now())
    prepared = _read(source)
    swap = _Swap(prepared)
    problems = tuple(prepared.problems())
    if swap.digest == before.digest:
        _clear_error(before)
        return Loaded(diff=Diff(version=before.version, tables={}), problems=problems)
    if before.version and not at_start and swap.settings != before.server_settings:
        raise ConfigurationInvalid(
            f"{source.file.name}: the [server] table was changed, which counts from the next start of the server"
        )
    _keep_sources(prepared)
    with store.errors(), transaction.atomic():
        CatalogState.objects.get_or_create(id=1, defaults={"loaded_at": clock.now()})
        state = CatalogState.objects.select_for_update().get()
        if state.version != before.version:
            return None
        diff = swap.run(state)
        source.on_swap(prepared.file, diff)
    return Loaded(diff=diff, problems=problems)


def check(file: Path, has_tool: ToolCheck) -> tuple[str, ...]:
    """Return a line for each prompt and workspace of a catalog file that would be unavailable; touches no store.

    Raises ConfigurationInvalid for a file that is not a catalog.
    """
    return tuple(_read(Source(file, has_tool, lambda _file, _diff: None)).problems())


def _read(source: Source) -> PreparedCatalog:
    try:
        file = read_catalog(source.file)
    except CatalogError as error:
        raise ConfigurationInvalid(f"{source.file.name}: {error}") from None
    return prepare(file, source.file.parent, source.has_tool)


def _keep_sources(prepared: PreparedCatalog) -> None:
    """Store captured sources ahead of the swap; content-addressed, they mean nothing until an entry names them."""
    try:
        with store.errors():
            for one in prepared.captured:
                pinned.keep(one)
    except OSError as error:
        log.exception("catalog.sources_not_kept")
        raise PersistenceError("the sources of the prompts could not be stored", retryable=True) from error


class _Swap:
    """One catalog becoming the one in force, inside the transaction that holds the row of `CatalogState`."""

    def __init__(self, prepared: PreparedCatalog) -> None:
        file = prepared.file
        self._prepared = prepared
        self._entries = prepared.entries()
        self._profiles = {profile.id: digest(profile) for profile in file.permission_profiles}
        self._defaults = Defaults(
            prompt_id=file.default_prompt and prompt_id(file.default_prompt),
            workspace_id=file.default_workspace and workspace_id(file.default_workspace),
            models=file.models,
            trusted_proxies=file.trusted_proxies,
            manifest_grants=file.manifest_grants,
        )
        self.settings = encode(file.server)
        self.digest = digest((self._entries, self._defaults, file.server))

    def run(self, state: CatalogState) -> Diff:
        """Store everything and return what changed."""
        before = msgspec.json.decode(state.entries, type=Entries)
        state.version += 1
        state.digest = self.digest
        state.server_settings = self.settings
        state.defaults = encode(self._defaults)
        state.entries = encode(self._entries)
        state.loaded_at = clock.now()
        state.error = ""
        state.save()
        self._store_profiles()
        _replace(WorkspaceDefinition, [_workspace_row(one) for one in self._prepared.workspaces])
        _replace(PromptDefinition, [self._prompt_row(one) for one in self._prepared.prompts])
        self._store_allowed_workspaces()
        self._store_revisions()
        tables = {
            table: change
            for table, now in self._entries.items()
            if (change := _change(before.get(table, {}), now)) != Change()
        }
        return Diff(version=state.version, tables=tables)

    def _store_profiles(self) -> None:
        ProfileRevision.objects.bulk_create(
            (
                ProfileRevision(
                    digest=self._profiles[profile.id],
                    name=profile.id,
                    content=encode(profile),
                    created_at=clock.now(),
                )
                for profile in self._prepared.file.permission_profiles
            ),
            ignore_conflicts=True,
        )
        for name, revision in self._profiles.items():
            # Prompts made in the admin name a profile too, and follow it.
            followers = PromptDefinition.objects.filter(from_file=False, permission_profile=name)
            followers.update(profile_revision=revision)

    def _prompt_row(self, prompt: PreparedPrompt) -> PromptDefinition:
        entry = prompt.entry
        return PromptDefinition(
            id=prompt_id(entry.id),
            name=entry.id,
            description=entry.description,
            enabled=entry.enabled,
            permission_profile=entry.permission_profile,
            profile_revision_id=self._profiles[entry.permission_profile],
            runtime_policy=entry.runtime_policy,
            current_revision_id=prompt.revision,
            unavailable_reason=prompt.reason,
            from_file=True,
        )

    def _store_allowed_workspaces(self) -> None:
        links = PromptDefinition.allowed_workspaces.through
        links.objects.filter(promptdefinition__from_file=True).delete()
        links.objects.bulk_create(
            links(promptdefinition_id=prompt_id(entry.id), workspacedefinition_id=workspace_id(name))
            for entry in self._prepared.file.prompts
            for name in dict.fromkeys(entry.allowed_workspaces)
        )

    def _store_revisions(self) -> None:
        links = PromptDefinition.revisions.through
        links.objects.bulk_create(
            (
                links(promptdefinition_id=prompt_id(prompt.entry.id), promptrevision_id=prompt.revision)
                for prompt in self._prepared.prompts
                if prompt.revision is not None
            ),
            ignore_conflicts=True,
        )


def _workspace_row(workspace: PreparedWorkspace) -> WorkspaceDefinition:
    entry, temporary = workspace.entry, workspace.entry.source.temporary
    return WorkspaceDefinition(
        id=workspace_id(entry.id),
        name=entry.id,
        kind="temporary" if temporary else "physical",
        path=workspace.path,
        temporary_location=temporary.location if temporary else "",
        cleanup=temporary.cleanup if temporary else "",
        access=entry.access,
        conflict_domain=entry.conflict_domain or "",
        prompt_limits=encode(
            [
                PromptLimit(
                    prompt_id=prompt_id(limit.prompt),
                    max_root_agents=limit.max_root_agents,
                    overflow=limit.overflow,
                )
                for limit in entry.prompt_limits
            ]
        ),
        unavailable_reason=workspace.reason,
        from_file=True,
    )


def _replace(model: type[Definition], rows: list[Definition]) -> None:
    """Make `rows` the entries that come from the file; those that came from it and are gone are marked as removed."""
    made_here = model.objects.filter(from_file=False, removed=False).values_list("name", flat=True)
    if taken := sorted({row.name for row in rows}.intersection(made_here)):
        raise ConfigurationInvalid(f"the {model._meta.verbose_name} {taken[0]} was made in the admin already")
    model.objects.filter(from_file=True).update(removed=True)
    model.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["id"],
        update_fields=[field.name for field in model._meta.concrete_fields if not field.primary_key],
    )


def _change(before: Mapping[str, str], now: Mapping[str, str]) -> Change:
    return Change(
        added=tuple(sorted(now.keys() - before.keys())),
        changed=tuple(sorted(name for name in now.keys() & before.keys() if now[name] != before[name])),
        removed=tuple(sorted(before.keys() - now.keys())),
    )


# What went wrong with the file: shown by the component `configuration` of the server's health.


def error() -> str:
    """Return why the file is not in force as it stands now, in one line; empty when it is."""
    with store.errors():
        found = CatalogState.objects.filter(id=1).values_list("error", flat=True).first()
    return found or ""


def _note_error(message: str) -> None:
    with store.errors():
        CatalogState.objects.get_or_create(id=1, defaults={"loaded_at": clock.now()})
        CatalogState.objects.exclude(error=message).update(error=message)


def _clear_error(state: CatalogState) -> None:
    if state.error:
        with store.errors():
            CatalogState.objects.filter(digest=state.digest).update(error="")


# What a process knows of the catalog.


class _Known:
    """Of this process; nothing before the first use."""

    version: int | None = None
    defaults = Defaults()


def current() -> Defaults:
    """Return the defaults in force, at most one poll old where a `Follower` runs; the first call reads them."""
    if _Known.version is None:
        refresh()
    return _Known.defaults


def refresh() -> None:
    """Follow the version in force."""
    with store.errors():
        found = CatalogState.objects.filter(id=1).values_list("version", "defaults").first()
    version, encoded = found or (0, b"{}")
    if version != _Known.version:
        _Known.defaults = msgspec.json.decode(encoded, type=Defaults)
        _Known.version = version


def forget() -> None:
    """Know nothing of the catalog; for a process that turns to another store (tests, the embedded host)."""
    _Known.version = None


def install_settings() -> None:
    """Run this process with the `[server]` table in force; once, at its start."""
    with store.errors():
        stored = CatalogState.objects.filter(id=1).values_list("server_settings", flat=True).first()
    limits.install(msgspec.json.decode(stored or b"{}", type=ServerSettings))


class Follower:
    """What one process does about the catalog: at its start, and then every `config_poll_ms`.

    Its methods but `request_reload` use the store and files: call them in a database thread.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._requests = 0
        self._seen: tuple[int, object] = (0, None)

    def start(self) -> None:
        """Take the file with its `[server]` table, then run this process with what is in force.

        A file that is refused leaves the former catalog in force: a process that restarts does not fail with it.
        """
        self._load_if_changed(at_start=True)
        install_settings()
        refresh()

    def reload_if_changed(self) -> None:
        """Take the file if it changed or a reload was asked for, and follow what other processes took."""
        self._load_if_changed()
        refresh()

    def request_reload(self) -> None:
        """Read everything again at the next poll, for prompts that changed while the file did not; for signal handlers."""
        self._requests += 1

    def _load_if_changed(self, *, at_start: bool = False) -> None:
        found = (self._requests, _signature(self._source.file))
        if found == self._seen:
            return
        try:
            loaded = load(self._source, at_start=at_start)
        except ConfigurationInvalid as refusal:
            log.warning("catalog.refused", reason=refusal.message)
            _note_error(refusal.message)
        else:
            log.info("catalog.loaded", version=loaded.diff.version, changed=list(loaded.diff.tables))
            for problem in loaded.problems:
                log.warning("catalog.unavailable", problem=problem)
        # Only now: what failed for want of the store is tried again.
        self._seen = found


def _signature(file: Path) -> object:
    """Return what differs whenever a file was written or replaced; None without a file, as where all is made in the admin."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
