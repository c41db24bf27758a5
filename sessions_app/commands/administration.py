"""Making a session anew: reset, rebuild, and another prompt revision (behaviour 9.4).

Owns: what each of the three clears and keeps, and the one order of their events. Does not own: what the layers above clear of
theirs (`Participant.on_reset`, `on_upgrade`), the archive's file (`archives`), or deleting a session (`commands.deletion`).

Every one is prepared aside, with no lock held: the archive is written, the prompt found and verified. Then one transaction takes
it, at exactly the revision that was expected, or nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from sessions_app import archives, ledger, participants, pinned, queries, receipts, store, workspaces
from sessions_app.commands import entries
from sessions_app.commands.edits import STOPPED, check_at_rest
from sessions_app.commands.messages import Changed, changed
from sessions_app.encoding import encode
from sessions_app.errors import PromptNotFound, PromptUnavailable, Refusal, SessionNotFound
from sessions_app.events import ModeratorOverlayPayload, PromptUpgrade, SessionUpdatedPayload
from sessions_app.listing import workspace_record
from sessions_app.models import (
    DeferredEntry,
    HistoryEntry,
    ProfileRevision,
    PromptDefinition,
    PromptRevision,
    SessionLabel,
)
from sessions_app.summaries import session_record, spec_record
from sessions_app.views import FULL

if TYPE_CHECKING:
    from sessions_app.archives import Written
    from sessions_app.ledger import Txn
    from sessions_app.models import Session, WorkspaceInstance
    from sessions_app.receipts import Call
    from sessions_app.records import RebuildPromptChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What a reset leaves as it is; each flag alone. A session has neither tasks nor a cache of its own yet."""

    history: bool
    workspace: bool
    grants: bool
    labels: bool


@dataclass(frozen=True, slots=True)
class _Target:
    """The prompt that a session goes on with."""

    revision: PromptRevision
    profile: ProfileRevision | None
    """None: the one it has."""


def reset(call: Call, session_id: str, expected_revision: int, keep: Keep) -> Changed:
    """Begin a stopped session again, with what is to be kept. Its prompt stays.

    Raises, beside what `ledger.spanning` raises, what `check_at_rest` raises.
    """
    replaced = _Workspaces()

    def change(txn: Txn, _target: None) -> None:
        _begin_again(txn, keep_grants=keep.grants)
        if not keep.history:
            HistoryEntry.objects.filter(session=txn.session, initial=False).delete()
        if not keep.labels:
            spec = msgspec.structs.replace(spec_record(txn.session), labels={})
            txn.session.spec = encode(spec)
            SessionLabel.objects.filter(session=txn.session).delete()
        if not keep.workspace:
            replaced.replace(txn)

    try:
        result = _administer(call, session_id, expected_revision, lambda: None, change)
    except Refusal as refusal:
        if receipts.is_outcome(refusal):
            replaced.take_back()
        raise
    replaced.clean_up()
    return result


def rebuild(call: Call, session_id: str, expected_revision: int, choice: RebuildPromptChoice) -> Changed:
    """Begin a stopped session again from its prompt's own messages: as pinned, or as the catalog has the prompt now.

    Raises, beside what `ledger.spanning` raises, what `check_at_rest` raises; then PromptNotFound for a prompt that left the
    catalog, PromptUnavailable for one that cannot be used.
    """

    def change(txn: Txn, target: _Target) -> None:
        _begin_again(txn, keep_grants=False)
        HistoryEntry.objects.filter(session=txn.session).delete()
        entries.append(txn, pinned.initial_entries(target.revision), initial=True)
        _move_to(txn.session, target)

    def find() -> _Target:
        return _pinned(session_id) if choice == "pinned" else _current(session_id)

    return _administer(call, session_id, expected_revision, find, change)


def upgrade_prompt(call: Call, session_id: str, expected_revision: int, revision: str) -> Changed:
    """Let a stopped session go on with another revision of its prompt; its history and all else stays.

    Raises, beside what `ledger.spanning` raises, what `check_at_rest` raises; then PromptUnavailable for a revision that was never
    one of this prompt, or whose sources are damaged.
    """

    def change(txn: Txn, target: _Target) -> None:
        txn.session.failure = txn.session.load_error = None
        _move_to(txn.session, target)
        for participant in participants.installed():
            participant.on_upgrade(txn, target.revision.id)

    return _administer(call, session_id, expected_revision, lambda: _revision(session_id, revision), change)


def _administer(
    call: Call,
    session_id: str,
    expected_revision: int,
    find: Callable[[], ledger.Prepared],
    change: Callable[[Txn, ledger.Prepared], None],
) -> Changed:
    """Archive a stopped session, change it, and tell all of it anew; `find` prepares what `change` needs, holding no lock."""
    archived: list[Written] = []

    def check(session: Session) -> None:
        check_at_rest(session, expected_revision, STOPPED)

    def prepare() -> ledger.Prepared:
        found = find()
        archived.append(archives.write(session_id))
        return found

    def body(txn: Txn, prepared: ledger.Prepared) -> Changed:
        check(txn.session)
        archives.keep(txn, archived[0])
        before = _Shown(txn.session)
        change(txn, prepared)
        _tell(txn, before)
        return changed(txn)

    try:
        return ledger.spanning(call, session_id, Changed, check=check, prepare=prepare, body=body)
    except Refusal as refusal:
        if receipts.is_outcome(refusal):
            # Any other may have been met after the commit, whose archive this then is.
            for written in archived:
                archives.discard(written.name)
        raise


class _Shown:
    """What of a session an event is to tell, when it has changed."""

    def __init__(self, session: Session) -> None:
        self.prompt_revision: str = session.prompt_revision_id
        self.workspace_instance: str | None = session.workspace_instance_id
        self.halt = session.halted, session.halt_reason


def _tell(txn: Txn, before: _Shown) -> None:
    """Emit the events of every administrative change, in their order."""
    session = txn.session
    session.desired = session.observed = "stopped"
    txn.emit(
        "session.updated",
        lambda: SessionUpdatedPayload.of(session_record(session), queries.snapshot(session, FULL)),
    )
    entries.tell_replaced(txn)
    txn.set_state(desired="stopped", observed="stopped")
    if session.prompt_revision_id != before.prompt_revision:
        upgraded = PromptUpgrade(
            prompt_id=session.prompt_id,
            previous_revision=before.prompt_revision,
            current_revision=session.prompt_revision_id,
        )
        txn.emit("prompt.upgraded", upgraded)
    if session.workspace_instance_id != before.workspace_instance:
        txn.emit("workspace.state_changed", workspace_record(session.workspace))
    if (session.halted, session.halt_reason) != before.halt:
        reason = session.halt_reason or UNSET
        txn.emit(
            "moderator.overlay_changed", ModeratorOverlayPayload(halted=session.halted, halt_reason=reason)
        )


def _begin_again(txn: Txn, *, keep_grants: bool) -> None:
    """Clear what both reset and rebuild clear; the history is theirs to change."""
    session = txn.session
    session.generation += 1
    session.failure = session.load_error = None
    session.halted, session.halt_reason = False, ""
    DeferredEntry.objects.filter(session=session).delete()
    session.deferred_count = session.deferred_bytes = 0
    for participant in participants.installed():
        participant.on_reset(txn, keep_grants=keep_grants)


def _move_to(session: Session, target: _Target) -> None:
    session.prompt_revision = target.revision
    if target.profile is not None:
        session.profile = target.profile


# The prompt to go on with; found with no lock held.


def _prompt_of(session_id: str) -> PromptDefinition:
    """Return the definition that a session was made from, removed or not."""
    prompt = PromptDefinition.objects.filter(sessions=session_id).select_related("profile_revision").first()
    if prompt is None:
        raise SessionNotFound("no such session")
    return prompt


def _pinned(session_id: str) -> _Target:
    with store.errors():
        revision = PromptRevision.objects.filter(sessions=session_id).first()
    if revision is None:
        raise SessionNotFound("no such session")
    pinned.check(revision.id)
    return _Target(revision, None)


def _current(session_id: str) -> _Target:
    with store.errors():
        prompt = _prompt_of(session_id)
        if prompt.removed:
            raise PromptNotFound("the prompt of this session left the catalog")
        revision = prompt.current_revision
    usable = prompt.enabled and not prompt.unavailable_reason and prompt.profile_revision is not None
    if not usable or revision is None:
        raise PromptUnavailable("the prompt is not available")
    pinned.check(revision.id)
    return _Target(revision, prompt.profile_revision)


def _revision(session_id: str, wanted: str) -> _Target:
    """Return a revision that the session's prompt has or had, with the permission profile that the prompt has now."""
    with store.errors():
        prompt = _prompt_of(session_id)
        of_prompt = PromptRevision.objects.filter(pk=wanted)
        known = wanted == prompt.current_revision_id or of_prompt.filter(prompts=prompt).exists()
        pinned_here = of_prompt.filter(sessions=session_id).exists()
        revision = of_prompt.first() if known or pinned_here else None
    if revision is None:
        raise PromptUnavailable("the session's prompt has no such revision")
    pinned.check(revision.id)
    return _Target(revision, None if prompt.removed else prompt.profile_revision)


class _Workspaces:
    """The instance that a reset replaces, and the one it is replaced by: at most one of each."""

    def __init__(self) -> None:
        self._made: WorkspaceInstance | None = None
        self._dropped: WorkspaceInstance | None = None

    def replace(self, txn: Txn) -> None:
        """Give the session a fresh folder, if its workspace is temporary."""
        session = txn.session
        if session.workspace.kind != "temporary":
            return
        self._dropped = session.workspace_instance
        self._made = session.workspace_instance = workspaces.prepare(txn, session.workspace, session.id)
        if self._dropped is not None:
            self._dropped.definition = session.workspace
            workspaces.give_up(self._dropped, txn.now)

    def take_back(self) -> None:
        """Remove the fresh folder of a reset that was refused."""
        if self._made is not None:
            workspaces.discard(self._made)

    def clean_up(self) -> None:
        """Remove the folder that was replaced, unless it is to be retained."""
        if self._dropped is not None:
            workspaces.clear(self._dropped)
