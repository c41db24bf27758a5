"""Files that are there whole or not at all (behaviour 13)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.files.base import ContentFile, File
from django.core.files.storage import default_storage

from sessions_app.storage import DurableFileStorage
from tests.support.world import together

NAME = "blobs/ab/abc"


@pytest.fixture
def storage(tmp_path: Path) -> DurableFileStorage:
    """A storage in a folder that is not there yet."""
    return DurableFileStorage(location=tmp_path / "new" / "storage")


class Breaking(File[bytes]):
    """Content that cannot be read to its end."""

    def chunks(self, chunk_size: int | None = None) -> Iterator[bytes]:
        yield b"half of it"
        raise OSError("gone")


def test_what_is_saved_can_be_read(storage: DurableFileStorage) -> None:
    assert storage.save(NAME, ContentFile(b"content")) == NAME
    with storage.open(NAME) as file:
        assert file.read() == b"content"


def test_files_and_folders_are_this_users_alone(storage: DurableFileStorage) -> None:
    storage.save(NAME, ContentFile(b"content"))
    file = Path(storage.path(NAME))
    modes = [
        path.stat().st_mode & 0o777
        for path in (file, file.parent, file.parent.parent, Path(storage.location))
    ]
    assert modes == [0o600, 0o700, 0o700, 0o700]


def test_a_file_is_whole_or_not_there(storage: DurableFileStorage) -> None:
    """A crash or a full disk in the middle leaves no part of a file under its name: the digest in it would be a lie."""
    with pytest.raises(OSError, match="gone"):
        storage.save(NAME, Breaking(None, NAME))
    assert not storage.exists(NAME)
    assert list(Path(storage.path(NAME)).parent.iterdir()) == []
    storage.save(NAME, ContentFile(b"content"))
    assert storage.size(NAME) == 7


def test_two_savers_do_not_disturb_each_other(storage: DurableFileStorage) -> None:
    content = b"x" * 1_000_000
    names = together(*[lambda: storage.save(NAME, ContentFile(content))] * 4)
    for name in names:
        with storage.open(name) as file:
            assert file.read() == content


def test_the_server_stores_its_files_this_way() -> None:
    assert isinstance(default_storage, DurableFileStorage)
