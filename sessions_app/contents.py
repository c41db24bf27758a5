"""How long stored content stays (behaviour 13): as long as a row refers to it, and a while before and after.

Owns: noticing content that nobody refers to, and removing it from the storage. Does not own: the content itself and its rows
(`blobs`), or the captured sources of prompts (`pinned`), whose manifests refer to content too.

Content is saved before the row that refers to it is committed, and the same content may be saved by several at once. So whoever
saves says so first (`expect`), and what was expected is removed only `LOOSE_FOR` later, when still nothing refers to it: by then
no commit can come any more. Saying and removing meet at one row, so that either the removal finds the content expected again, or
whoever saves finds it gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec
import structlog
from django.core.files.storage import default_storage
from django.db import transaction

from sessions_app import clock, store
from sessions_app.models import Blob, LooseContent, PromptRevision

log = structlog.get_logger(__name__)

LOOSE_FOR = timedelta(minutes=10)
"""Longer than any command takes between saving content and committing what refers to it."""

_AT_ONCE = 256


class _Sources(msgspec.Struct):
    """What of a prompt's manifest names content (`pinned.Manifest`)."""

    sources: dict[str, str]


def name_of(digest: str) -> str:
    """Return under which name the storage has content."""
    return f"blobs/{digest[:2]}/{digest}"


def expect(digest: str) -> None:
    """Say that a row will refer to this content; before looking whether the storage has it. Raises PersistenceError."""
    with store.errors():
        LooseContent.objects.update_or_create(digest=digest, defaults={"since": clock.now()})


def loosen(digests: Iterable[str]) -> None:
    """Say that a row that referred to this content goes, in its transaction; other rows may still."""
    now = clock.now()
    rows = [LooseContent(digest=digest, since=now) for digest in sorted(set(digests))]
    LooseContent.objects.bulk_create(rows, ignore_conflicts=True)


def remove_loose() -> None:
    """Remove content that nothing has referred to for `LOOSE_FOR`, a bounded number at a time; for the sweep."""
    due = list(LooseContent.objects.filter(since__lt=clock.now() - LOOSE_FOR).order_by("since")[:_AT_ONCE])
    if not due:
        return
    referred = set(
        Blob.objects.filter(sha256__in=[row.digest for row in due]).values_list("sha256", flat=True)
    )
    if len(referred) < len(due):
        referred |= _pinned()
    for row in due:
        try:
            with transaction.atomic():
                same = LooseContent.objects.filter(digest=row.digest, since=row.since)
                if same.delete()[0] and row.digest not in referred:
                    default_storage.delete(name_of(row.digest))
        except OSError:  # the others can be removed nevertheless
            log.exception("content.not_removed", digest=row.digest)


def _pinned() -> set[str]:
    """Return the digests of every captured source."""
    manifests = PromptRevision.objects.values_list("manifest", flat=True)
    return {
        digest
        for manifest in manifests.iterator()
        for digest in msgspec.json.decode(manifest, type=_Sources).sources.values()
    }
