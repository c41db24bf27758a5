"""Content in the storage under its digest (behaviour 13); what messages make of it is tested with them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.core.files.storage import default_storage
from msgspec import UNSET

from permissions_app import principals
from sessions_app import blobs, clock, ids, limits
from sessions_app.encoding import encode
from sessions_app.errors import BlobUnavailable, InvalidRequest, PermissionDenied
from sessions_app.models import Blob
from sessions_app.records import BlobMetadata
from tests.support.world import SCOPES, World

pytestmark = pytest.mark.django_db


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


# Read in parts

ANN = principals.identity("pri_ann", "http.static_bearer", SCOPES, attributes={"zone": "1"}).principal


def stored(session_id: str | None, content: bytes = b"0123456789", **options: Any) -> Blob:
    """Put a blob into a session, or let it be an upload that nobody took."""
    fields: dict[str, Any] = {
        "kind": "file",
        "media_type": "text/plain",
        "byte_length": len(content),
        "display_name": "digits.txt",
        "created_at": clock.now(),
        **options,
    }
    digest = blobs.save(content)
    return Blob.objects.create(id=ids.new_id("blb"), session_id=session_id, sha256=digest, **fields)


def test_parts_make_the_whole(world: World) -> None:
    """13: "answer repeats metadata, Base64 chunk, next offset, eof = (next = length)"."""
    client = world.create()
    row = stored(client.session_id)
    parts = [blobs.read_chunk(row, offset, 4) for offset in (0, 4, 8)]
    assert b"".join(base64.b64decode(part.data_base64) for part in parts) == b"0123456789"
    assert [(part.offset, part.next_offset, part.eof) for part in parts] == [
        (0, 4, False),
        (4, 8, False),
        (8, 10, True),
    ]
    assert {part.blob for part in parts} == {
        BlobMetadata(
            id=row.id,
            kind="file",
            media_type="text/plain",
            byte_length=10,
            digest=row.sha256,
            display_name="digits.txt",
        )
    }
    assert blobs.read_chunk(row, 0, limits.MAX_BLOB_CHUNK_BYTES).eof


def test_behind_the_end_is_nothing(world: World) -> None:
    """13: "offset ≤ length (else `invalid_request`)"; "Offset = length gives an empty chunk with eof"."""
    row = stored(world.create().session_id, display_name="")
    end = blobs.read_chunk(row, 10, 1)
    assert (end.offset, end.next_offset, end.data_base64, end.eof) == (10, 10, "", True)
    assert end.blob.display_name is UNSET
    for offset in (11, 2**63 - 1):
        with pytest.raises(InvalidRequest):
            blobs.read_chunk(row, offset, 1)
    empty = blobs.read_chunk(stored(world.create().session_id, b""), 0, 1)
    assert (empty.next_offset, empty.eof) == (0, True)


def test_content_that_is_gone_or_damaged_is_not_read(world: World) -> None:
    """14.4: "Corruption fails closed": also one part of it, wherever the damage is."""
    session_id = world.create().session_id
    row = stored(session_id, b"a part is sound, the rest is not")
    path_of(row.sha256).write_bytes(b"a part is sound, the rest is BAD")
    with pytest.raises(BlobUnavailable):
        blobs.read_chunk(row, 0, 4)
    blobs.save(b"a part is sound, the rest is not")
    path_of(row.sha256).write_bytes(b"a part is sound, the rest is not")
    assert blobs.read_chunk(row, 0, 4).next_offset == 4, "found sound, once"
    path_of(row.sha256).write_bytes(b"a part")
    with pytest.raises(BlobUnavailable):
        blobs.read_chunk(row, 4, 4)
    path_of(row.sha256).unlink()
    with pytest.raises(BlobUnavailable):
        blobs.read_chunk(row, 0, 4)


def test_a_blob_is_found_in_its_session_alone(world: World) -> None:
    """13: "blob stored in **that** session"; "Temporary blobs cannot be read through `blob.read`"."""
    here, there = (world.session(world.create().session_id) for _ in range(2))
    row = stored(here.id)
    upload = stored(None, target_session=here.id, creator="pri_ann")
    assert blobs.find(here, row.id, ANN) == row
    for session, blob_id in ((there, row.id), (here, upload.id), (here, "blb_none")):
        with pytest.raises(BlobUnavailable):
            blobs.find(session, blob_id, ANN)


def test_an_export_is_for_its_exact_principal(world: World) -> None:
    """9.3: "bound to the exact principal (id, kind, scopes, attributes)"; I9."""
    session = world.session(world.create().session_id)
    row = stored(session.id, bound_to=encode(ANN))
    assert blobs.find(session, row.id, ANN) == row
    changes: list[dict[str, Any]] = [
        {"id": "pri_bob"},
        {"authentication_kind": "http.console_session"},
        {"scopes": ANN.scopes[:-1]},
        {"attributes": {}},
    ]
    for changed in changes:
        with pytest.raises(PermissionDenied):
            blobs.find(session, row.id, msgspec.structs.replace(ANN, **changed))
