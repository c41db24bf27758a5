"""The folder a session works in (behaviour 3.2).

Owns: resolving and making it, checking that it is still there, replacing it after a stop, removing what the server made. Does
not own: leases and quotas on it (`capacity`), or what tools may do below it.

A folder is made inside the transaction of its session, which may not be committed. So a note of it is left in the data folder
first, and taken away behind the commit: `tidy` removes the folder of an old note that no row knows.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from django.conf import settings

from sessions_app import clock, ids, rows
from sessions_app.errors import PersistenceError, WorkspaceUnavailable
from sessions_app.listing import workspace_record
from sessions_app.models import WorkspaceInstance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sessions_app.ledger import Txn
    from sessions_app.models import Session, WorkspaceDefinition

log = structlog.get_logger(__name__)

UNCOMMITTED_FOR = timedelta(minutes=5)
"""Longer than any transaction waits: a folder that no row knows by then belongs to a session that was never made."""

_AT_ONCE = 16
"""Folders that one pass removes: one may hold a large tree."""

_PREFIX = "ochat-"


def prepare(txn: Txn, definition: WorkspaceDefinition, session_id: str) -> WorkspaceInstance:
    """Return a stored instance of a configured workspace for one session, making its folder where it is temporary.

    Raises WorkspaceUnavailable when a physical root is not there, PersistenceError (not retryable) when a folder cannot be made.
    """
    instance_id = ids.new_id("wsi")
    if definition.kind == "physical":
        path = physical_root(definition.path)
        domain = definition.conflict_domain or str(path)
    else:
        path = _make_temporary(definition, session_id, instance_id)
        domain = definition.conflict_domain or instance_id
        txn.after_commit(lambda: _forget(instance_id))
    instance = WorkspaceInstance(
        id=instance_id,
        definition=definition,
        path=str(path),
        conflict_domain=domain,
        host=socket.gethostname(),
        created_by_server=definition.kind == "temporary",
        created_at=clock.now(),
    )
    rows.insert([instance])
    return instance


def discard(instance: WorkspaceInstance) -> None:
    """Remove at once the folder of an instance whose transaction was taken back; never a physical root."""
    if instance.created_by_server:
        _remove(Path(instance.path))
        _forget(instance.id)


def replace_after_stop(txn: Txn) -> None:
    """Give a stopped session a fresh temporary folder where the policy says so, and tell it in a revision of its own.

    When none can be made, the session keeps the folder it has until it stops again.
    """
    session, instance = txn.session, txn.session.workspace_instance
    if session.archived_at is not None or instance is None or not instance.created_by_server:
        return
    definition = instance.definition
    if definition.cleanup != "on_session_stop":
        return
    try:
        fresh = prepare(txn, definition, session.id)
    except PersistenceError:
        log.warning("workspace.not_replaced", session_id=session.id)
        return
    txn.next_revision()
    session.workspace_instance = fresh
    txn.emit("workspace.state_changed", workspace_record(definition))
    give_up(instance, txn.now)


def give_up(instance: WorkspaceInstance, now: datetime) -> None:
    """Let the machine that has it remove the folder, if the policy allows, and then the row; no session names it any more."""
    WorkspaceInstance.objects.filter(id=instance.id).update(removed_at=now)


def clear(instance: WorkspaceInstance) -> None:
    """Remove at once the folder of an instance that was given up, where `tidy` would: on its machine, if the policy allows."""
    if instance.host == socket.gethostname() and _is_removable(instance):
        _remove(Path(instance.path))


def tidy() -> None:
    """Remove, on this machine, the folders that were given up and those whose session was never made; for the sweep."""
    given_up = WorkspaceInstance.objects.filter(host=socket.gethostname(), removed_at__isnull=False)
    for instance in given_up.order_by("removed_at").select_related("definition")[:_AT_ONCE]:
        if not _is_removable(instance) or _remove(Path(instance.path)):
            instance.delete()
    oldest = clock.now() - UNCOMMITTED_FOR
    left = {name: path for name, path, made_at in _notes() if made_at < oldest}
    known = set(WorkspaceInstance.objects.filter(id__in=left).values_list("id", flat=True))
    for name, path in left.items():
        if name in known or _remove(path):
            _forget(name)


def goes_with_session(instance: WorkspaceInstance) -> bool:
    """Tell whether the folder of an instance is removed with its session: one of the server's own that is not to be retained."""
    return instance.created_by_server and instance.definition.cleanup != "retain"


def check(session: Session) -> None:
    """Refuse with WorkspaceUnavailable unless the session's folder is there; one on another host is that host's to check."""
    instance = session.workspace_instance
    if instance is None or instance.removed_at is not None:
        raise WorkspaceUnavailable("the session has no workspace")
    if instance.host == socket.gethostname() and not Path(instance.path).is_dir():
        raise WorkspaceUnavailable("the workspace of this session is not there")


def physical_root(path: str) -> Path:
    """Return the canonical folder of a physical workspace. Raises WorkspaceUnavailable when it is not there."""
    try:
        root = Path(path).resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: links that go round in a circle
        raise WorkspaceUnavailable("the workspace is not there") from None
    if not root.is_dir():
        raise WorkspaceUnavailable("the workspace is not a folder")
    return root


def session_folder(session_id: str) -> Path:
    """Return the private folder of one session below the data folder; ids are safe file names (wire 1)."""
    return _sessions() / session_id


def _sessions() -> Path:
    return Path(settings.ENV.data_dir) / "sessions"


def _temporary_root(definition: WorkspaceDefinition) -> Path:
    return Path(definition.path) if definition.path else Path(tempfile.gettempdir())


def _make_temporary(definition: WorkspaceDefinition, session_id: str, instance_id: str) -> Path:
    in_session = definition.temporary_location == "session_dir"
    root = session_folder(session_id) if in_session else _temporary_root(definition)
    path = root / f"{_PREFIX}{instance_id}"
    try:
        _note(instance_id, path)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except OSError:
        raise PersistenceError("the workspace could not be made", retryable=False) from None
    return path


def _is_removable(instance: WorkspaceInstance) -> bool:
    """Tell whether the policy allows to remove a folder, and it stands where the server makes those of its workspace."""
    path, definition = Path(instance.path), instance.definition
    if not instance.created_by_server or definition.cleanup == "retain":
        return False
    if definition.temporary_location == "session_dir":
        placed = path.parent.parent == _sessions()
    else:
        placed = path.parent == _temporary_root(definition)
    if not placed or path.name != f"{_PREFIX}{instance.id}":
        log.error("workspace.out_of_place", instance=instance.id)
        return False
    return True


def _remove(path: Path) -> bool:
    """Remove a folder that the server made, and that of its session when nothing else is there; whether it is gone."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        log.warning("workspace.not_removed", folder=path.name)
        return False
    if path.parent.parent == _sessions():
        with suppress(OSError):  # the session has other files there
            path.parent.rmdir()
    return True


# Notes: links in a folder of their own, because a link is there whole or not at all, whatever crashes.


def _note_folder() -> Path:
    return Path(settings.ENV.data_dir) / "workspaces"


def _note(instance_id: str, path: Path) -> None:
    folder = _note_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / instance_id).symlink_to(path)


def _notes() -> Iterator[tuple[str, Path, datetime]]:
    """Yield the instance, the folder and the time of each note."""
    folder = _note_folder()
    for note in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):  # its commit has just come
            yield note.name, note.readlink(), datetime.fromtimestamp(note.lstat().st_mtime, UTC)


def _forget(instance_id: str) -> None:
    with suppress(OSError):  # one that stays is found by `tidy`, and known
        (_note_folder() / instance_id).unlink()
