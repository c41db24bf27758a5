"""What HTTP serves beside calls and streams: snapshots, blobs, health (behaviour 1.4, 8.8, 13, 14.1).

Owns: their headers, statuses, entity tags and audit records. Does not own: what they contain (`sessions_app.queries`, `blobs`,
`health`), who may see it (`access_session`, `blobs.get`), requests (`http`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING, get_args
from urllib.parse import quote

import msgspec
from django.db import transaction

from ochat_site.dialects.ochat1.types import BlobUploadResult
from ochat_site.rpc.context import reading
from ochat_site.rpc.paging import WindowCursors
from ochat_site.transports.http import JSON, PIECE_BYTES, Request
from permissions_app import audit
from permissions_app.scopes import access_session, caller_for
from sessions_app import blobs, clock, queries, store
from sessions_app.callers import Connected
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.errors import InvalidRequest, PermissionDenied, Refusal
from sessions_app.participants import CommandOutcome
from sessions_app.records import BlobKind
from sessions_app.summaries import blob_record

if TYPE_CHECKING:
    from ochat_site.rpc.context import Server
    from permissions_app.audit_batch import AuditBatch
    from permissions_app.principals import Identity
    from sessions_app.callers import Caller
    from sessions_app.models import Blob
    from sessions_app.records import Scope

KINDS: tuple[BlobKind, ...] = get_args(BlobKind)

MAX_NAME_CHARS = 255
"""As much of what a client called its content as an answer's header repeats: a message may call it anything."""


def caller_of(identity: Identity) -> Caller:
    """Return the holder of an identity as a caller without a connection."""
    return caller_for(identity, Connected(""))


class Audited:
    """The audit records of requests that are no calls (behaviour 15)."""

    def __init__(self, batch: AuditBatch) -> None:
        """Gather them in the batch of this process."""
        self._batch = batch

    def require(self, identity: Identity, command: str, scope: Scope) -> None:
        """Refuse with PermissionDenied who lacks a scope, and record it."""
        if scope not in identity.principal.scopes:
            self._batch.denied(identity.principal.id, command, "permission_denied")
            raise PermissionDenied(f"missing scope {scope}")

    @contextmanager
    def refusals(self, caller: Caller, command: str, session_id: str | None = None) -> Iterator[None]:
        """Record it when the block ends with a refusal."""
        try:
            yield
        except Refusal as refusal:
            self._batch.command(caller, CommandOutcome(command, session_id, refusal.code))
            raise

    @contextmanager
    def command(self, caller: Caller, command: str, session_id: str | None = None) -> Iterator[None]:
        """Record how the block ends."""
        with self.refusals(caller, command, session_id):
            yield
        self._batch.command(caller, CommandOutcome(command, session_id, "success"))


class Snapshots:
    """`GET /v1/sessions/{id}/snapshot`."""

    def __init__(self, server: Server, audited: Audited) -> None:
        """Read for `server`, whose id is part of every cursor."""
        self._server = server
        self._audited = audited

    async def get(self, request: Request, identity: Identity, named: Mapping[str, str]) -> None:
        """Answer the snapshot that this client may see, or 304 when it has just that one."""
        command, session_id = "session.snapshot", named["id"]
        self._audited.require(identity, command, "session.transcript.read")
        with self._audited.command(caller_of(identity), command, session_id):
            body, tag = await in_db(self._read, identity, session_id)
        headers = [
            (b"etag", tag),
            (b"cache-control", b"private, no-cache"),
            (b"vary", b"authorization"),
        ]
        if is_known(request, tag):
            await request.answer_nothing(HTTPStatus.NOT_MODIFIED, headers)
        else:
            await request.answer(HTTPStatus.OK, body, [*headers, JSON])

    def _read(self, identity: Identity, session_id: str) -> tuple[bytes, bytes]:
        caller = caller_of(identity)
        cursors = WindowCursors(self._server.id, identity.principal, session_id)
        with reading():
            session = access_session(caller, session_id)
            snapshot = queries.snapshot(session, caller.view, cursors.sign)
        body = encode(snapshot)
        reader = sha256(encode(identity.principal)).hexdigest()[:32]
        tag = f'"{reader}-{snapshot.revision}-{snapshot.latest_event_sequence}-{sha256(body).hexdigest()}"'
        return body, tag.encode()


def is_known(request: Request, tag: bytes) -> bool:
    """Tell whether the client says that it has what an entity tag stands for."""
    for name, value in request.scope["headers"]:
        if name.lower() == b"if-none-match":
            known = [one.strip().removeprefix(b"W/") for one in value.split(b",")]
            if tag in known or b"*" in known:
                return True
    return False


class Blobs:
    """`POST /v1/blobs` and `GET /v1/blobs/{id}`."""

    def __init__(self, audited: Audited) -> None:
        self._audited = audited

    async def post(self, request: Request, identity: Identity, _named: Mapping[str, str]) -> None:
        """Take an upload in, piece by piece; nothing of it is kept unless all of it came."""
        command, caller = "blob.upload", caller_of(identity)
        self._audited.require(identity, command, "session.message.send")
        with self._audited.refusals(caller, command):
            upload = _upload_of(request)
        content = blobs.Incoming()
        try:
            # Its success is recorded in the transaction that keeps it.
            with self._audited.refusals(caller, command, upload.target_session or None):
                if upload.target_session:
                    await in_db(_see, caller, upload.target_session)
                async for piece in request.pieces():
                    content.take(piece)
                row = await in_db(_publish, caller, upload, content)
        finally:
            content.close()
        result = BlobUploadResult(
            blob=blob_record(row),
            allowed_use=row.allowed_use,
            expires_at=clock.wire_time(row.expires_at or row.created_at),
        )
        await request.answer_json(HTTPStatus.CREATED, result, [(b"location", f"/v1/blobs/{row.id}".encode())])

    async def get(self, request: Request, identity: Identity, named: Mapping[str, str]) -> None:
        """Answer the content of a blob, read as the client takes it."""
        caller = caller_of(identity)
        with self._audited.command(caller, "blob.download"):
            row = await in_db(_open, caller, named["id"], identity)
            first = await in_db(blobs.read_part, row, 0, min(PIECE_BYTES, row.byte_length))
        tag = f'"sha256:{row.sha256}"'.encode()
        headers = [(b"etag", tag), (b"cache-control", b"private, no-cache"), (b"vary", b"authorization")]
        if is_known(request, tag):
            await request.answer_nothing(HTTPStatus.NOT_MODIFIED, headers)
            return
        await request.start(
            HTTPStatus.OK,
            [
                *headers,
                (b"content-type", _content_type(row)),
                (b"content-length", str(row.byte_length).encode()),
                (b"content-disposition", _disposition(row)),
            ],
        )
        sent, piece = 0, first
        while True:
            sent += len(piece)
            more = sent < row.byte_length
            await request.send({"type": "http.response.body", "body": piece, "more_body": more})
            if not more:
                return
            piece = await in_db(blobs.read_part, row, sent, min(PIECE_BYTES, row.byte_length - sent))


def _upload_of(request: Request) -> blobs.Upload:
    """Return what the headers say of an upload. Raises InvalidRequest for what they must not say."""
    media_type = request.text(b"content-type")
    kind = request.text(b"ochat-blob-kind")
    digest = request.text(b"ochat-sha256")
    allowed_use = request.text(b"ochat-allowed-use")
    if not media_type or not media_type.isascii():
        raise InvalidRequest("the header content-type is missing or is no media type")
    # What is left out has a default; what is there and empty is wrong.
    kind = "binary" if kind is None else kind
    allowed_use = blobs.MESSAGE_INPUT if allowed_use is None else allowed_use
    if kind not in KINDS:
        raise InvalidRequest("the header ochat-blob-kind is file, image, audio or binary")
    if allowed_use != blobs.MESSAGE_INPUT:
        raise InvalidRequest("the header ochat-allowed-use is message_input")
    if digest is not None and (len(digest) != 64 or not set(digest) <= set("0123456789abcdefABCDEF")):
        raise InvalidRequest("the header ochat-sha256 is a hex SHA-256")
    return blobs.Upload(
        kind=kind,
        media_type=media_type,
        display_name=request.text(b"ochat-display-name") or "",
        allowed_use=allowed_use,
        target_session=request.text(b"ochat-target-session") or "",
        digest=digest,
    )


def _see(caller: Caller, session_id: str) -> None:
    with reading():
        access_session(caller, session_id)


def _publish(caller: Caller, upload: blobs.Upload, content: blobs.Incoming) -> Blob:
    blobs.keep(upload, content)
    outcome = CommandOutcome("blob.upload", upload.target_session or None, "success")
    with store.errors(), transaction.atomic(durable=True):
        row = blobs.publish(caller.principal_id or "", upload, content)
        audit.command_record(caller, outcome, clock.now()).save(force_insert=True)
    return row


def _open(caller: Caller, blob_id: str, identity: Identity) -> Blob:
    with reading():
        return blobs.get(caller, blob_id, identity.principal)


def _content_type(row: Blob) -> bytes:
    """Return the media type as it was given; where that was inline data's and is no header, that it is some bytes."""
    media_type = row.media_type.strip(" ")
    if not (media_type.isascii() and media_type.isprintable() and 0 < len(media_type) <= MAX_NAME_CHARS):
        return b"application/octet-stream"
    return media_type.encode()


def _disposition(row: Blob) -> bytes:
    """Return that no browser shows it, and the name under which one would keep it."""
    name = (row.display_name or row.id)[:MAX_NAME_CHARS]
    return f"attachment; filename*=UTF-8''{quote(name, safe='')}".encode()


class HealthRoute:
    """`GET /v1/health`."""

    def __init__(self, server: Server) -> None:
        """Ask the health of `server`."""
        self._server = server

    async def get(self, request: Request, identity: Identity, _named: Mapping[str, str]) -> None:
        """Answer how this server is doing, with the components to who holds `diagnostics.read`."""
        health = await in_db(partial(self._server.health, self._server))
        if "diagnostics.read" not in identity.principal.scopes:
            health = msgspec.structs.replace(health, components=())
        await request.answer_json(HTTPStatus.OK, health)
