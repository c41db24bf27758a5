"""Content read in parts over the protocol (behaviour 13)."""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any

from sessions_app import limits, models
from sessions_app.db import in_db
from sessions_app.encoding import encode
from tests.support.serving import Held, Host, identity
from tests.support.world import SCOPES, World

CONTENT = bytes(range(256)) * 10 * 1024


async def with_blob(host: Host, world: World, content: bytes = CONTENT) -> tuple[Held, str]:
    """Make a session into which a message has brought a file; its writer, and the blob's id."""
    held = await (await host.client()).create(world, start=True)
    given = {
        "kind": "file",
        "media_type": "application/octet-stream",
        "byte_length": len(content),
        "digest": sha256(content).hexdigest(),
        "source": "inline_base64",
        "inline_base64": base64.b64encode(content).decode(),
    }
    said = {"kind": "plain_text", "text": "look", "attachments": [given]}
    await held.call("session.send_message", content=said)
    return held, await in_db(lambda: models.Blob.objects.get().id)


async def test_a_file_is_read_in_parts_by_any_attachment(host: Host, served_world: World) -> None:
    """ "attachment of this connection…; 1 ≤ max_bytes ≤ 1 MiB"."""
    held, blob = await with_blob(host, served_world)
    reader = await (await host.client()).attach(held.session_id, "read_only")
    content, offset, sizes = b"", 0, []
    while True:
        chunk = await reader.call(
            "blob.read", blob_id=blob, offset=offset, max_bytes=limits.MAX_BLOB_CHUNK_BYTES
        )
        reader.peer.socket.take()
        content += base64.b64decode(chunk["data_base64"])
        sizes.append(chunk["next_offset"] - chunk["offset"])
        offset = chunk["next_offset"]
        if chunk["eof"]:
            break

    assert sizes == [2**20, 2**20, 2**19]
    assert content == CONTENT
    assert chunk["blob"]["digest"] == sha256(CONTENT).hexdigest()
    named = {"blob_id": blob, "max_bytes": 1}
    assert (await reader.call("blob.read", **named, offset=offset))["data_base64"] == ""
    assert await reader.refusal("blob.read", **named, offset=offset + 1) == "invalid_request"
    for max_bytes in (0, 2**20 + 1):
        code = await reader.refusal("blob.read", blob_id=blob, offset=0, max_bytes=max_bytes)
        assert code == "invalid_request"


async def test_the_checks_of_a_read_come_in_their_order(host: Host, served_world: World) -> None:
    """ "attachment of this connection + visible session + blob stored in **that** session + export binding; offset"."""
    held, blob = await with_blob(host, served_world, b"content")
    wanted: dict[str, Any] = {"blob_id": blob, "offset": 99, "max_bytes": 1}
    stranger = await host.client(identity("bob"))
    assert await stranger.refusal("blob.read", **held.params(**wanted)) == "permission_denied"
    elsewhere = await held.peer.create(served_world)
    crossed = {**held.params(**wanted), "attachment_id": elsewhere.attachment_id}
    assert await held.peer.refusal("blob.read", **crossed) == "permission_denied"
    assert await elsewhere.refusal("blob.read", **wanted) == "blob_unavailable"
    assert await held.refusal("blob.read", **{**wanted, "blob_id": "blb_none"}) == "blob_unavailable"
    assert await held.refusal("blob.read", **wanted) == "invalid_request"

    other = identity("ann", scopes=SCOPES - {"session.own"}).principal
    await in_db(models.Blob.objects.update, bound_to=encode(other))
    assert await held.refusal("blob.read", **wanted) == "permission_denied"
    own = held.peer.connection.identity.principal
    await in_db(models.Blob.objects.update, bound_to=encode(own))
    assert (await held.call("blob.read", **{**wanted, "offset": 0}))["next_offset"] == 1
    held.peer.connection.identity = identity("bob")
    assert await held.refusal("blob.read", **wanted) == "permission_denied", "no longer visible"


async def test_reading_is_audited_like_any_read(host: Host, served_world: World) -> None:
    held, blob = await with_blob(host, served_world, b"content")
    await held.call("blob.read", blob_id=blob, offset=0, max_bytes=1)
    await held.refusal("blob.read", blob_id="blb_none", offset=0, max_bytes=1)
    assert (await host.audited())[-2:] == [
        ("protocol.command.succeeded", "blob.read", "success"),
        ("protocol.command.failed", "blob.read", "blob_unavailable"),
    ]
