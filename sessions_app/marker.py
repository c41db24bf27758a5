"""The mark that ties the data folder and the storage to the database (design 5).

Owns: leaving it at the first start, and refusing to start where it names another store, or where the storage lacks what the
database refers to. Does not own: which store this is (`store`), or what lies in either place.

Without it a wrong path, or a volume that is not mounted, would look like an empty installation until somebody misses something.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage

from sessions_app import contents, pinned, store
from sessions_app.errors import ConfigurationInvalid, PersistenceError
from sessions_app.models import PromptRevision

NAME = "store-id"

HOST_CATALOG = "host.toml"
"""Lies in the folder of an embedded host, whose sessions are bound to its process: no server may take them over."""


def check(data_dir: Path) -> None:
    """Compare the marks of the data folder and of the storage with the store, and leave those that are missing.

    Raises ConfigurationInvalid, with one line for the operator, for a mark of another store and for a storage without mark and
    without the sources of the newest prompt; PersistenceError when store or storage fail.
    """
    with store.errors():
        mine = store.server_id()
        newest = PromptRevision.objects.order_by("-created_at").values_list("manifest", flat=True).first()
    try:
        _check_folder(data_dir, mine)
        _check_storage(mine, newest)
    except OSError as error:
        raise PersistenceError(f"the storage failed: {error.strerror or error}", retryable=True) from error


def _check_folder(data_dir: Path, mine: str) -> None:
    if (data_dir / HOST_CATALOG).exists():
        raise ConfigurationInvalid(
            "OCHAT_DATA_DIR: this is the folder of a local host (`manage.py ochat_stdio`)."
        )
    mark = data_dir / NAME
    found = ""
    with suppress(FileNotFoundError):
        found = mark.read_text(encoding="utf-8").strip()
    if found:
        _compare(found, mine, "OCHAT_DATA_DIR")
        return
    fresh = mark.with_name(f"{NAME}.{os.getpid()}")
    fresh.touch(mode=0o600)
    fresh.write_text(f"{mine}\n", encoding="utf-8")
    fresh.replace(mark)


def _check_storage(mine: str, newest: bytes | None) -> None:
    if default_storage.exists(NAME):
        with default_storage.open(NAME) as file:
            _compare(bytes(file.read()).decode(errors="replace").strip(), mine, "OCHAT_STORAGE_URL")
        return
    sources = {} if newest is None else msgspec.json.decode(newest, type=pinned.Manifest).sources
    if not all(default_storage.exists(contents.name_of(digest)) for digest in sources.values()):
        raise ConfigurationInvalid(
            "OCHAT_STORAGE_URL: the prompts of this database are not in this storage. Is its volume mounted?"
        )
    default_storage.save(NAME, ContentFile(f"{mine}\n".encode()))


def _compare(found: str, mine: str, variable: str) -> None:
    if found != mine:
        raise ConfigurationInvalid(
            f"{variable}: it belongs to the database of {found}, and this one is {mine}."
        )
