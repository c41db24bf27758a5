"""A session as a file: for one reader, as it is now or as it was archived (behaviour 9.3).

Owns: the two formats, the windows of an archive, and the blob that an export becomes. Does not own: ChatMD (`chatmd.export`), what
a view hides (`projection`), the archive's file (`archives`), or reading the blob in parts (`blobs`).

A whole history is exported, however long; it passes through a file on the disk, never through memory.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import IO, TYPE_CHECKING

import msgspec
from msgspec import UNSET

from sessions_app import access, archives, blobs, history, ids, ledger, limits, queries, store
from sessions_app.archives import PlacedEntry
from sessions_app.chatmd.export import export_entry
from sessions_app.db import read_snapshot
from sessions_app.encoding import encode
from sessions_app.errors import Conflict, InvalidRequest
from sessions_app.models import Blob
from sessions_app.projection import project_entry, project_snapshot
from sessions_app.queries import Place
from sessions_app.records import (
    BlobMetadata,
    ExportFormat,
    HistoryEntry,
    HistoryWindow,
    HistoryWindowRequest,
    HistoryWindowRequestAfter,
    HistoryWindowRequestBefore,
    HistoryWindowRequestCursor,
    HistoryWindowRequestTail,
    Principal,
    Snapshot,
)
from sessions_app.summaries import blob_record, entry_record

if TYPE_CHECKING:
    from sessions_app.callers import Caller
    from sessions_app.models import Archive, Session
    from sessions_app.views import View

USE = "session_export"
"""What the blob of an export may be used for: it is never taken for the attachment of a message."""

_FILES: Mapping[ExportFormat, tuple[str, str]] = MappingProxyType(
    {
        "json": ("application/json", "session.json"),
        "chatmd": ("text/markdown; charset=utf-8", "session.chatmd"),
    }
)
"""Media type and display name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a reader asks for."""

    format: ExportFormat
    revision: int | None = None
    """None: now."""
    window: HistoryWindowRequest | None = None
    """None: the whole history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """An export, and where the session stands."""

    blob: BlobMetadata
    revision: int
    latest_event_sequence: int


def export(
    caller: Caller, reader: Principal, session_id: str, wanted: Wanted, open_cursor: Callable[[str], Place]
) -> Exported:
    """Write what `caller` may see of a session into a blob of that session, which exactly `reader` may read.

    Nothing of the session changes, and no lock is held meanwhile. Raises what `access.check` raises; Conflict for a revision that
    is neither the present one nor archived; InvalidRequest for a cursor (of `open_cursor`) or an anchor that is not of this
    history; PersistenceError for an archive that is gone or damaged, and when the store or the storage fails.
    """
    with tempfile.TemporaryFile() as file:
        out = _Output(file)
        with store.errors(), read_snapshot():
            session = access.check(caller, queries.load(session_id), session_id)
            archive = _archive(session, wanted.revision)
            place = _place(wanted.window, open_cursor)
            if archive is None:
                _write_current(out, session, caller.view, wanted, place)
        if archive is not None:
            _write_archived(out, archive, caller.view, wanted, place)
        blob = _keep(caller, reader, session_id, wanted.format, out)
    return Exported(
        blob=blob_record(blob), revision=session.revision, latest_event_sequence=session.latest_sequence
    )


def _archive(session: Session, revision: int | None) -> Archive | None:
    if revision is None or revision == session.revision:
        return None
    found = archives.find(session, revision)
    if found is None:
        raise Conflict("the session has no archive of this revision")
    return found


def _place(window: HistoryWindowRequest | None, open_cursor: Callable[[str], Place]) -> Place | None:
    if not isinstance(window, HistoryWindowRequestCursor):
        return None
    place = open_cursor(window.window_cursor)
    if place.effective != window.effective:
        raise InvalidRequest("the cursor belongs to another view of the history")
    return place


class _Output:
    """The content so far, its digest and its size."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.size = 0
        self._digest = sha256()

    def write(self, part: bytes) -> None:
        """Add a part."""
        self.file.write(part)
        self._digest.update(part)
        self.size += len(part)

    @property
    def digest(self) -> str:
        """The hex SHA-256 so far."""
        return self._digest.hexdigest()


def _write_current(out: _Output, session: Session, view: View, wanted: Wanted, place: Place | None) -> None:
    snapshot = queries.snapshot(session, view, window=wanted.window, place=place)
    if wanted.window is None:
        whole = (project_entry(entry_record(row), view) for row in queries.whole_history(session))
        _write(out, wanted.format, snapshot, whole)
    else:
        _write(out, wanted.format, snapshot, _shown(snapshot).entries)


def _shown(snapshot: Snapshot) -> HistoryWindow:
    """Return the window of the view that was asked for."""
    effective = snapshot.effective_history
    return snapshot.canonical_history if effective is UNSET else effective


def _write_archived(out: _Output, archive: Archive, view: View, wanted: Wanted, place: Place | None) -> None:
    request = wanted.window
    with archives.opened(archive) as entries:
        window = _window(entries, _bounds(entries, request, place))
        if request is not None and request.effective:
            shown: dict[str, HistoryWindow] = {"effective_history": window}
        else:
            shown = {"canonical_history": window}
        snapshot = project_snapshot(msgspec.structs.replace(archives.head(archive), **shown), view)
        if request is None:
            whole = (project_entry(placed.entry, view) for placed in entries)
            _write(out, wanted.format, snapshot, whole)
        else:
            _write(out, wanted.format, snapshot, _shown(snapshot).entries)


def _write(out: _Output, format: ExportFormat, snapshot: Snapshot, entries: Iterable[HistoryEntry]) -> None:
    if format == "chatmd":
        for entry in entries:
            out.write(export_entry(entry).encode())
        return
    out.write(b'{"snapshot":' + encode(snapshot) + b',"history":[')
    separator = b""
    for entry in entries:
        out.write(separator + encode(entry))
        separator = b","
    out.write(b"]}")


def _keep(caller: Caller, reader: Principal, session_id: str, format: ExportFormat, out: _Output) -> Blob:
    blobs.save_file(out.file, out.digest, out.size)
    media_type, name = _FILES[format]
    with ledger.session_txn(session_id, caller) as txn:
        # The session may be gone by now, and with it the right to read it.
        access.check(caller, txn.session, session_id)
        blob = Blob(
            id=ids.new_id("blb"),
            session=txn.session,
            creator=caller.principal_id or "",
            kind="file",
            media_type=media_type,
            byte_length=out.size,
            sha256=out.digest,
            display_name=name,
            allowed_use=USE,
            bound_to=encode(reader),
            created_at=txn.now,
        )
        blob.save(force_insert=True)
    return blob


# Windows of an archive (behaviour 12.3)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Which entries a window is of: up to `limit` behind `after`, or of the last in front of `before`."""

    limit: int
    after: int | None = None
    before: int | None = None


def _bounds(
    entries: Iterable[PlacedEntry], request: HistoryWindowRequest | None, place: Place | None
) -> _Bounds:
    if request is None:
        return _Bounds(limits.MAX_CODEC_PAGE_SIZE)
    limit = min(request.limit, limits.MAX_PAGE_SIZE)
    match request:
        case HistoryWindowRequestTail(tail_count=count):
            return _Bounds(min(count, limit))
        case HistoryWindowRequestAfter(history_id=anchor):
            return _Bounds(limit, after=_position(entries, anchor))
        case HistoryWindowRequestBefore(history_id=anchor):
            return _Bounds(limit, before=_position(entries, anchor))
        case HistoryWindowRequestCursor():
            if place is None:
                raise InvalidRequest("the cursor belongs to another view of the history")
            if place.direction == "after":
                return _Bounds(limit, after=place.position)
            return _Bounds(limit, before=place.position)


def _position(entries: Iterable[PlacedEntry], anchor: str) -> int:
    for placed in entries:
        if placed.entry.id == anchor:
            return placed.position
    raise InvalidRequest("no such history entry")


def _window(entries: Iterable[PlacedEntry], bounds: _Bounds) -> HistoryWindow:
    """Return the window within bounds and within 8 MiB, as `queries` cuts those of the present history."""
    taken: deque[HistoryEntry] = deque()
    size = 0
    more_before = more_after = False
    for placed in _from(entries, bounds):
        if placed is None:
            more_before = True
            continue
        if bounds.before is not None and placed.position >= bounds.before:
            more_after = True
            break
        size += len(placed.entry.payload) + history.ENTRY_OVERHEAD
        over = taken and (len(taken) >= bounds.limit or size > limits.MAX_WINDOW_BYTES)
        if over and bounds.after is not None:
            more_after = True
            break
        taken.append(placed.entry)
        while len(taken) > 1 and (len(taken) > bounds.limit or size > limits.MAX_WINDOW_BYTES):
            size -= len(taken.popleft().payload) + history.ENTRY_OVERHEAD
            more_before = True
    return HistoryWindow(
        entries=tuple(taken),
        reached_start=not more_before,
        reached_end=not more_after,
        structurally_complete=not (more_before or more_after),
    )


def _from(entries: Iterable[PlacedEntry], bounds: _Bounds) -> Iterator[PlacedEntry | None]:
    """Yield the entries behind the lower bound, and None for each that it leaves out."""
    for placed in entries:
        yield None if bounds.after is not None and placed.position <= bounds.after else placed
