"""Content in the storage under its digest (behaviour 13); what messages make of it is tested with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.files.storage import default_storage

from sessions_app import blobs
from sessions_app.errors import BlobUnavailable


def path_of(digest: str) -> Path:
    return Path(default_storage.path(f"blobs/{digest[:2]}/{digest}"))


def test_content_is_stored_once_under_its_digest() -> None:
    digest = blobs.save(b"some content")
    assert blobs.save(b"some content") == digest
    assert blobs.read(digest) == b"some content"
    assert [path.name for path in path_of(digest).parent.glob(f"{digest}*")] == [digest]


def test_empty_content_is_content() -> None:
    assert blobs.read(blobs.save(b"")) == b""


def test_missing_content_is_unavailable() -> None:
    """13: "**R**: `blob_unavailable` everywhere"."""
    with pytest.raises(BlobUnavailable):
        blobs.read("0" * 64)


def test_damaged_content_is_unavailable() -> None:
    """14.4: "Corruption fails closed"."""
    digest = blobs.save(b"content that will be damaged")
    path_of(digest).write_bytes(b"content that was damaged")
    with pytest.raises(BlobUnavailable):
        blobs.read(digest)
    path_of(digest).unlink()
