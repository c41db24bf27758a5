"""A storage in which something happens while a file is saved: a double at Django's own port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from django.conf import settings
from django.core.files.base import File
from django.test import override_settings

from sessions_app.files import DurableFolder


class Interrupted(DurableFolder):
    """The folder of this run; each time before a file is saved, `before_saving` gets its name."""

    before_saving: ClassVar[Callable[[str], object]]

    def _save(self, name: str, content: File[bytes]) -> str:
        type(self).before_saving(name)
        return super()._save(name, content)


@contextmanager
def interrupted(before_saving: Callable[[str], object]) -> Iterator[None]:
    """Use such a storage inside the block."""
    Interrupted.before_saving = staticmethod(before_saving)
    default = {**settings.STORAGES["default"], "BACKEND": f"{__name__}.Interrupted"}
    with override_settings(STORAGES={**settings.STORAGES, "default": default}):
        yield
