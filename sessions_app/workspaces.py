"""The folder a session works in (behaviour 3.2).

Owns: resolving and making it, checking that it is still there, removing what the server made. Does not own: leases and
quotas on it, or what tools may do below it.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings

from sessions_app import clock, ids, rows
from sessions_app.errors import PersistenceError, WorkspaceUnavailable
from sessions_app.models import WorkspaceInstance

if TYPE_CHECKING:
    from sessions_app.models import Session, WorkspaceDefinition


def prepare(definition: WorkspaceDefinition, session_id: str) -> WorkspaceInstance:
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
    """Remove the folder of an instance that the server made on this machine; never a physical root."""
    if not instance.created_by_server or instance.host != socket.gethostname():
        return
    shutil.rmtree(instance.path, ignore_errors=True)
    if instance.definition.temporary_location == "session_dir":
        with suppress(OSError):  # the session has other files there
            Path(instance.path).parent.rmdir()


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
    return Path(settings.ENV.data_dir) / "sessions" / session_id


def _make_temporary(definition: WorkspaceDefinition, session_id: str, instance_id: str) -> Path:
    if definition.temporary_location == "session_dir":
        root = session_folder(session_id)
    else:
        root = Path(definition.path) if definition.path else Path(tempfile.gettempdir())
    path = root / f"ochat-{instance_id}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except OSError:
        raise PersistenceError("the workspace could not be made", retryable=False) from None
    return path
