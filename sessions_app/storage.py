"""A folder for files that must not be lost (behaviour 13: published "only after full body, digest and sync").

Owns: that a file is there whole or not at all, and on the disk before anything refers to it. Does not own: names and contents
(`blobs`), or which storage is configured (`ochat_site.settings`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from django.core.files.storage import FileSystemStorage
from django.utils.deconstruct import deconstructible

if TYPE_CHECKING:
    from django.core.files.base import File

_FOLDER_MODE = 0o700


@deconstructible(path="sessions_app.storage.DurableFileStorage")
class DurableFileStorage(FileSystemStorage):
    """Django's storage in a folder, with whole and synced files, readable by this user alone.

    Two that save under one name at once both succeed, and one of the contents stays: names here are digests or are never
    given twice.
    """

    def _save(self, name: str, content: File[bytes]) -> str:
        path = Path(self.path(name))
        self._make(path.parent)
        descriptor, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".saving-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                for chunk in content.chunks():
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            Path(unfinished).replace(path)
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise
        _sync(path.parent)
        return name

    def _make(self, folder: Path) -> None:
        """Make a folder and those above it; what is new is synced into what holds it."""
        if folder.is_dir():
            return
        self._make(folder.parent)
        folder.mkdir(mode=_FOLDER_MODE, exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
