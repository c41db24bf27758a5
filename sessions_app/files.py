"""The folder that keeps blobs and pinned sources, durable against a crash at any point.

Owns: how a file comes to be in a folder storage. Does not own: names, digests or who refers to a file (`blobs`), or object
stores, which are durable by themselves.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from django.core.files.base import File
from django.core.files.storage import FileSystemStorage


class DurableFolder(FileSystemStorage):
    """A folder in which a file is either whole and on the disk, or not there: nothing half written is ever seen."""

    def _save(self, name: str, content: File[bytes]) -> str:
        """Write beside the final name, sync, then rename, then sync the folder. An existing file is replaced by the same rename."""
        target = Path(self.path(name))
        _make(target.parent)
        descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=".saving-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                for chunk in content.chunks():
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(target)
        except BaseException:
            with suppress(FileNotFoundError):
                Path(temporary).unlink()
            raise
        _sync(target.parent)
        return name

    def get_available_name(self, name: str, max_length: int | None = None) -> str:
        """Return the name itself: names here are content addresses, and saving one again writes the same bytes."""
        return name


def _make(folder: Path) -> None:
    """Make a private folder and those above it; what is new is synced into what holds it."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    _sync(folder.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
