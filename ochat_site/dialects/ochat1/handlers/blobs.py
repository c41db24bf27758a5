"""`blob.read`: content of a session in parts (behaviour 13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ochat_site.rpc.context import reading
from sessions_app import access, blobs, queries

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import BlobReadParams
    from ochat_site.rpc.context import Context
    from sessions_app.records import BlobChunk


def blob_read(context: Context, params: BlobReadParams) -> BlobChunk:
    """Return a part of a blob, by any attachment to its session; the file is read when the store has been."""
    session_id = params.session_id
    with reading():
        session = access.check(context.caller, queries.load(session_id), session_id)
        blob = blobs.find(session, params.blob_id, context.identity.principal)
    return blobs.read_chunk(blob, params.offset, params.max_bytes)
