"""Pinned prompts: what a session was made from, kept for as long as sessions use it (behaviour 3.1, 14.4).

Owns: storing a captured prompt, its verification against the stored bytes, and reading what a session needs of it. Does not
own: capturing and parsing (`chatmd.pin`), or which revision is current (`catalog`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from sessions_app import blobs, clock, history
from sessions_app.chatmd.elements import Config, Tool
from sessions_app.chatmd.items import Item
from sessions_app.chatmd.pin import PinnedPrompt, manifest, revision_id
from sessions_app.encoding import encode
from sessions_app.errors import BlobUnavailable, PromptUnavailable
from sessions_app.models import PromptRevision

_verified: set[str] = set()
"""The revisions whose bytes this process has compared; once per process and revision is what is promised."""


class Manifest(msgspec.Struct, frozen=True):
    """The sources of a revision: which one is the root, and the hex SHA-256 of each by its relative path."""

    root: str
    sources: dict[str, str]


def keep(pinned: PinnedPrompt) -> PromptRevision:
    """Store a captured prompt and return its revision; the same bytes are stored once."""
    known = PromptRevision.objects.filter(id=pinned.revision).first()
    if known is not None:
        return known
    for content in pinned.sources.values():
        blobs.save(content)
    row, _ = PromptRevision.objects.get_or_create(
        id=pinned.revision,
        defaults={
            "manifest": encode(Manifest(pinned.root, manifest(pinned.sources))),
            "config": encode(pinned.prompt.config),
            "tools": encode(pinned.prompt.tools),
            "entries": encode(pinned.prompt.items),
            "created_at": clock.now(),
        },
    )
    return row


def check(revision: str) -> None:
    """Refuse with PromptUnavailable unless every captured byte of a revision is there and unaltered.

    The first time in this process for each revision; a session is attached, started or claimed many times.
    """
    if revision in _verified:
        return
    row = PromptRevision.objects.filter(id=revision).first()
    if row is None:
        raise PromptUnavailable("the prompt revision of this session is gone")
    stored = msgspec.json.decode(row.manifest, type=Manifest)
    if revision_id(stored.root, stored.sources) != revision:
        raise PromptUnavailable("the prompt revision of this session was altered")
    try:
        for digest in stored.sources.values():
            blobs.read(digest)
    except BlobUnavailable:
        raise PromptUnavailable("the captured sources of this session's prompt are damaged") from None
    _verified.add(revision)


def initial_entries(row: PromptRevision) -> Sequence[history.NewEntry]:
    """Return the prompt's own messages as the first entries of a new session."""
    return [
        history.NewEntry(
            role=item.role,
            kind=item.kind,
            payload=bytes(item.payload),
            call_key=history.call_key_of(bytes(item.payload)) if item.kind in history.PAIRED_KINDS else "",
        )
        for item in _items(row.id, row.entries)
    ]


@lru_cache(maxsize=64)
def _items(_revision: str, encoded: bytes) -> tuple[Item, ...]:
    return msgspec.json.decode(encoded, type=tuple[Item, ...])


@lru_cache(maxsize=256)
def setup(revision: str) -> tuple[Config, tuple[Tool, ...]]:
    """Return model configuration and tool declarations of a revision; it never changes, so it is read once.

    Raises PromptUnavailable when there is no such revision.
    """
    row = PromptRevision.objects.filter(id=revision).only("config", "tools").first()
    if row is None:
        raise PromptUnavailable("the prompt revision of this session is gone")
    return msgspec.json.decode(row.config, type=Config), msgspec.json.decode(row.tools, type=tuple[Tool, ...])


def forget() -> None:
    """Forget what this process has verified and read; for one that turns to another store."""
    _verified.clear()
    _items.cache_clear()
    setup.cache_clear()
