"""Data folder and storage belong to one database (design 5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.files.storage import default_storage
from pytest_django import Settings

from sessions_app import marker, pinned, store
from sessions_app.errors import ConfigurationInvalid
from tests.support.world import World


@pytest.fixture
def place(tmp_path: Path, settings: Settings, db: None) -> Iterator[Path]:
    """A data folder, with a storage of its own."""
    settings.STORAGES = {
        **settings.STORAGES,
        "default": {
            **settings.STORAGES["default"],
            "OPTIONS": {"location": tmp_path / "files", "base_url": None},
        },
    }
    (tmp_path / "data").mkdir()
    yield tmp_path / "data"


def _storage() -> Path:
    return Path(default_storage.path(""))


def test_the_first_start_leaves_marks_and_the_next_ones_find_them(place: Path) -> None:
    for _ in range(2):
        marker.check(place)
        assert (place / marker.NAME).read_text().strip() == store.server_id()
        assert (_storage() / marker.NAME).read_text().strip() == store.server_id()
    assert [path.name for path in place.iterdir()] == [marker.NAME]


@pytest.mark.parametrize("variable", ["OCHAT_DATA_DIR", "OCHAT_STORAGE_URL"])
def test_what_belongs_to_another_store_is_refused(place: Path, variable: str) -> None:
    marker.check(place)
    folder = place if variable == "OCHAT_DATA_DIR" else _storage()
    (folder / marker.NAME).write_text("srv_other\n")
    with pytest.raises(
        ConfigurationInvalid, match=f"{variable}: .* srv_other, and this one is {store.server_id()}"
    ):
        marker.check(place)


def test_the_folder_of_a_local_host_is_refused(place: Path) -> None:
    (place / marker.HOST_CATALOG).touch()
    with pytest.raises(ConfigurationInvalid, match="this is the folder of a local host"):
        marker.check(place)
    assert [path.name for path in place.iterdir()] == [marker.HOST_CATALOG]


def test_an_empty_storage_behind_a_used_database_is_refused(world: World, place: Path) -> None:
    """A volume that is not mounted: its folder is there and empty."""
    marker.check(place)
    world.prompt()
    (_storage() / marker.NAME).unlink()
    marker.check(place)
    (_storage() / marker.NAME).unlink()
    for file in (_storage() / "blobs").rglob("*"):
        if file.is_file():
            file.unlink()
    pinned.forget()
    with pytest.raises(ConfigurationInvalid, match="mounted"):
        marker.check(place)
    assert not default_storage.exists(marker.NAME)
