"""Content in the storage stays as long as something refers to it, and not much longer (behaviour 13)."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from django.core.files.storage import default_storage

from jobs_app import sweep
from sessions_app import blobs, clock, contents, ids, pinned
from sessions_app.commands import messages
from sessions_app.errors import BlobUnavailable, PermissionDenied
from sessions_app.models import Blob, LooseContent, PromptRevision
from sessions_app.records import BlobInputInlineBase64, BlobInputStored, MessageContent
from tests.support.world import World, together


def file(digest: str) -> Path:
    return Path(default_storage.path(contents.name_of(digest)))


def upload(content: bytes, **options: object) -> str:
    """Keep content as a row names it; its digest."""
    digest = blobs.save(content)
    fields = {"creator": "pri_ann", "expires_at": clock.after(3_600_000), **options}
    Blob.objects.create(
        id=ids.new_id("blb"),
        kind="file",
        media_type="text/plain",
        byte_length=len(content),
        sha256=digest,
        created_at=clock.now(),
        **fields,
    )
    return digest


def maintain(world: World, **later: float) -> None:
    world.clock.advance(**later)
    sweep.expire_blobs()


def test_an_upload_that_nobody_took_leaves_the_storage(timed_world: World) -> None:
    """13: "TTL 1 h for temporary ones; removed by the 60 s maintenance": the content too, a while after the row."""
    world = timed_world
    digest, taken = (
        upload(b"nobody's"),
        upload(b"somebody's", session_id=world.create().session_id, expires_at=None),
    )
    maintain(world, minutes=30)
    assert file(digest).exists()
    maintain(world, minutes=31)
    assert not Blob.objects.filter(sha256=digest).exists()
    maintain(world, minutes=11)
    maintain(world, minutes=11)
    assert not file(digest).exists()
    assert file(taken).exists()
    assert not LooseContent.objects.exists()
    with pytest.raises(BlobUnavailable):
        blobs.read(digest)


def test_content_that_another_row_has_too_stays(timed_world: World) -> None:
    digest = upload(b"twice")
    timed_world.clock.advance(minutes=59)
    assert upload(b"twice") == digest
    maintain(timed_world, minutes=2)
    maintain(timed_world, minutes=15)
    assert Blob.objects.count() == 1
    assert file(digest).exists()


def test_content_of_a_refused_message_leaves_the_storage(timed_world: World) -> None:
    """6.1: "All-or-nothing with the message": what was saved for it before it was refused has no row at all."""
    world = timed_world
    client = world.idle()
    foreign = upload(b"bob's", creator="pri_bob")
    row = Blob.objects.get()
    inline = b"saved first"
    attached = (
        BlobInputInlineBase64(
            kind="file",
            media_type="text/plain",
            byte_length=len(inline),
            digest=sha256(inline).hexdigest(),
            inline_base64="c2F2ZWQgZmlyc3Q=",
        ),
        BlobInputStored(blob_id=row.id, kind="file", media_type="text/plain", byte_length=5, digest=foreign),
    )
    message = MessageContent(kind="plain_text", text="look", attachments=attached)
    call = world.call(client.caller, "session.send_message", protected=True)
    with pytest.raises(PermissionDenied):
        messages.send_message(call, client.session_id, message)
    assert file(attached[0].digest).exists()
    maintain(world, minutes=11)
    assert not file(attached[0].digest).exists()
    assert file(foreign).exists()


def test_captured_sources_of_prompts_stay(timed_world: World) -> None:
    """3.1: pinned sources are content without rows of their own."""
    world = timed_world
    world.prompt()
    manifest = msgspec.json.decode(PromptRevision.objects.get().manifest, type=pinned.Manifest)
    (digest,) = manifest.sources.values()
    maintain(world, minutes=11)
    assert file(digest).exists()
    assert not LooseContent.objects.exists()
    contents.loosen([digest])
    maintain(world, minutes=11)
    assert file(digest).exists()


def test_what_is_saved_again_is_not_removed(timed_world: World) -> None:
    digest = blobs.save(b"again")
    timed_world.clock.advance(minutes=9)
    blobs.save(b"again")
    maintain(timed_world, minutes=9)
    assert file(digest).exists()
    maintain(timed_world, minutes=2)
    assert not file(digest).exists()


def test_saving_and_removing_at_once_leaves_the_content(committed_world: World) -> None:
    """Whoever saves finds it gone, or keeps it from going: on both databases."""
    digest = blobs.save(b"contended")
    committed_world.clock.advance(minutes=11)
    together(contents.remove_loose, lambda: blobs.save(b"contended"), contents.remove_loose)
    assert blobs.read(digest) == b"contended"
