"""Files are whole or not there."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.files.base import ContentFile, File
from django.core.files.storage import default_storage

from sessions_app.files import DurableFolder
from tests.support.world import together


class _Breaking(ContentFile[bytes]):
    """Content that ends in the middle, as a full disk or a killed process ends it."""

    def chunks(self, chunk_size: int | None = None) -> Iterator[bytes]:
        yield b"half"
        raise OSError(28, os.strerror(28))


@pytest.fixture
def folder(tmp_path: Path) -> DurableFolder:
    return DurableFolder(location=tmp_path)


def test_a_saved_file_is_there_and_private(folder: DurableFolder, tmp_path: Path) -> None:
    assert folder.save("blobs/ab/abc", ContentFile(b"content")) == "blobs/ab/abc"
    saved = tmp_path / "blobs/ab/abc"
    assert saved.read_bytes() == b"content"
    assert (saved.stat().st_mode & 0o077, saved.parent.stat().st_mode & 0o077) == (0, 0)


def test_what_breaks_in_the_middle_leaves_nothing(folder: DurableFolder, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="space"):
        folder.save("blobs/ab/abc", _Breaking(b""))
    assert list((tmp_path / "blobs/ab").iterdir()) == []


def test_a_damaged_file_is_replaced(folder: DurableFolder, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/abc").write_bytes(b"half")
    content: File[bytes] = ContentFile(b"content")
    assert folder.save("blobs/abc", content) == "blobs/abc"
    assert (tmp_path / "blobs/abc").read_bytes() == b"content"


def test_folders_that_are_not_there_are_made_private(tmp_path: Path) -> None:
    folder = DurableFolder(location=tmp_path / "new" / "storage")
    folder.save("blobs/ab/abc", ContentFile(b"content"))
    made = Path(folder.path("blobs/ab/abc"))
    assert [path.stat().st_mode & 0o777 for path in list(made.parents)[:4]] == [0o700] * 4


def test_two_savers_do_not_disturb_each_other(folder: DurableFolder) -> None:
    content = b"x" * 1_000_000
    names = together(*[lambda: folder.save("blobs/ab/abc", ContentFile(content))] * 4)
    assert set(names) == {"blobs/ab/abc"}
    with folder.open("blobs/ab/abc") as file:
        assert file.read() == content


def test_the_server_keeps_its_files_this_way() -> None:
    assert isinstance(default_storage, DurableFolder)
