"""Sessions as they stood before their history was replaced (behaviour 9.2, 9.4).

Owns: writing the entries of a history into the storage, checksummed and apart from everything else, and reading them back.
Does not own: when a history is replaced (`commands.compaction`, `commands.administration`), or what a reader sees of an archive
(`exports`).

A file is written before the change, with no lock held, and means nothing until the change has committed its row. It holds a line
for each entry, so that neither writing nor reading it takes more memory for a long history than for a short one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import IO, TYPE_CHECKING

import msgspec
import structlog
from django.core.files.base import File
from django.core.files.storage import default_storage
from msgspec import UNSET

from sessions_app import ids, queries, rows, store
from sessions_app.db import read_snapshot
from sessions_app.encoding import encode
from sessions_app.errors import InternalError, PersistenceError, SessionNotFound
from sessions_app.models import Archive
from sessions_app.records import HistoryEntry, HistoryWindowRequestTail, Snapshot
from sessions_app.summaries import entry_record
from sessions_app.views import FULL

if TYPE_CHECKING:
    from sessions_app.ledger import Txn
    from sessions_app.models import Session

log = structlog.get_logger(__name__)

_READ_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Written:
    """A history that rests in the storage, and which one it is."""

    name: str
    sha256: str
    size: int
    history_version: int
    next_position: int


@dataclass(frozen=True, slots=True)
class PlacedEntry:
    """An entry and its place in the history, which it keeps for ever."""

    position: int
    entry: HistoryEntry


def write(session_id: str) -> Written:
    """Put the canonical history of a session, as it is now, into the storage. Not inside a transaction.

    Raises SessionNotFound, and PersistenceError when the store or the storage fails.
    """
    with tempfile.TemporaryFile() as file:
        with store.errors(), read_snapshot():
            session = queries.load(session_id)
            if session is None:
                raise SessionNotFound("no such session")
            digest, size = _copy(session, file)
        name = f"{_folder(session_id)}/{ids.new_id('arc')}"
        try:
            kept = default_storage.save(name, File(file, name=name))
        except OSError as error:
            log.exception("archive.not_written", session_id=session_id)
            raise PersistenceError("the archive could not be written", retryable=True) from error
    return Written(kept, digest, size, session.history_version, session.next_position)


def _copy(session: Session, file: IO[bytes]) -> tuple[str, int]:
    digest, size = sha256(), 0
    for row in queries.whole_history(session):
        line = encode((row.position, entry_record(row))) + b"\n"
        file.write(line)
        digest.update(line)
        size += len(line)
    return digest.hexdigest(), size


def keep(txn: Txn, written: Written) -> None:
    """Make what was written the archive of the revision at which the session stands: before anything else is changed.

    Raises InternalError when the history is another one by now.
    """
    session = txn.session
    if (session.history_version, session.next_position) != (written.history_version, written.next_position):
        raise InternalError("the history changed while it was archived", retryable=True)
    archive = Archive(
        session=session,
        revision=session.revision,
        name=written.name,
        sha256=written.sha256,
        size=written.size,
        head=encode(_head(session)),
        created_at=txn.now,
    )
    rows.insert([archive])


def discard(name: str) -> None:
    """Remove a file that no row names, or whose row is gone. One that cannot be removed stays, and is logged."""
    try:
        default_storage.delete(name)
    except OSError as error:
        log.warning("archive.not_removed", name=name, error=type(error).__name__)


def clear(session_id: str) -> None:
    """Remove every file of a session that is erased, those included whose row a killed process did not come to commit."""
    folder = _folder(session_id)
    try:
        _, names = default_storage.listdir(folder)
    except FileNotFoundError:  # nothing was ever archived
        return
    for name in names:
        discard(f"{folder}/{name}")
    discard(folder)


def _folder(session_id: str) -> str:
    return f"archives/{session_id}"


def find(session: Session, revision: int) -> Archive | None:
    """Return the archive of a revision, if there is one."""
    return Archive.objects.filter(session=session, revision=revision).first()


def head(archive: Archive) -> Snapshot:
    """Return the snapshot of then, without its histories."""
    return msgspec.json.decode(archive.head, type=Snapshot)


class Entries:
    """The entries of an archive in their order, as often as they are asked for."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __iter__(self) -> Iterator[PlacedEntry]:
        """Read on from the first."""
        self._file.seek(0)
        for line in self._file:
            position, entry = _read_line(line)
            yield PlacedEntry(position, entry)


@contextmanager
def opened(archive: Archive) -> Iterator[Entries]:
    """Yield the archived entries, once the whole file was found undamaged.

    Raises PersistenceError when it is gone or is not what was written: nothing else stands in for it.
    """
    with tempfile.TemporaryFile() as file:
        try:
            digest, size = _fetch(archive.name, file)
        except OSError as error:
            log.exception("archive.not_read", archive=archive.pk)
            raise PersistenceError("the archive cannot be read", retryable=True) from error
        if (digest, size) != (archive.sha256, archive.size):
            log.error("archive.damaged", archive=archive.pk)
            raise PersistenceError("the archive is damaged", retryable=True)
        yield Entries(file)


def _fetch(name: str, file: IO[bytes]) -> tuple[str, int]:
    digest, size = sha256(), 0
    with default_storage.open(name) as stored:
        while part := stored.read(_READ_BYTES):
            file.write(part)
            digest.update(part)
            size += len(part)
    return digest.hexdigest(), size


_read_line = msgspec.json.Decoder(tuple[int, HistoryEntry]).decode
_SHORTEST = HistoryWindowRequestTail(tail_count=1, limit=1, effective=True)


def _head(session: Session) -> Snapshot:
    whole = queries.snapshot(session, FULL, window=_SHORTEST)
    return msgspec.structs.replace(whole, effective_history=UNSET)
