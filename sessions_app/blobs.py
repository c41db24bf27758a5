"""Content kept beside the log (behaviour 6.1, 13): bytes in the configured storage under their digest, rows beside.

Owns: taking in uploads, storing, opening and reading content in parts, who may download it, and what an attachment of a message
becomes. Does not own: requests and their headers (`ochat_site.transports`), or which sessions a reader may see (`Visible`).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from hashlib import sha256
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING

import msgspec
from django.core.files.base import ContentFile, File
from django.core.files.storage import default_storage

from sessions_app import clock, contents, ids, images, limits, rows
from sessions_app.encoding import encode
from sessions_app.errors import (
    BlobUnavailable,
    InvalidRequest,
    PermissionDenied,
    PersistenceError,
    ResourceLimit,
)
from sessions_app.history import ITEM_ROOM
from sessions_app.models import Blob
from sessions_app.records import (
    BlobChunk,
    BlobInput,
    BlobInputInlineBase64,
    BlobInputStored,
    BlobKind,
    InputImage,
    InputText,
    Principal,
)
from sessions_app.summaries import blob_record

if TYPE_CHECKING:
    from sessions_app.callers import Caller
    from sessions_app.ledger import Txn
    from sessions_app.models import Session

Part = InputText | InputImage

MESSAGE_INPUT = "message_input"
"""The use for which an upload may become a part of a message; the only one there is."""


@dataclass(frozen=True, slots=True)
class Staged:
    """The content of one attachment: already in the storage, not yet a row of the session."""

    source: BlobInput
    content: bytes


def stage(inputs: Sequence[BlobInput]) -> list[Staged]:
    """Read the content of a message's attachments and put inline data into the storage; holds no lock.

    Raises InvalidRequest when inline data is not what its digest says, ResourceLimit above 16 MiB for one or for all together,
    BlobUnavailable for a stored blob that is missing or expired.
    """
    if sum(given.byte_length for given in inputs) > limits.MAX_BLOB_BYTES:
        raise ResourceLimit("the attachments of a message are at most 16 MiB together", retryable=False)
    return [
        Staged(given, _inline(given) if isinstance(given, BlobInputInlineBase64) else _stored(given))
        for given in inputs
    ]


def adopt(txn: Txn, staged: Sequence[Staged], room: int) -> list[Part]:
    """Make staged content the session's own, all of it or none, and return the content parts of the message.

    `room` is how many encoded bytes the entry has left: images are inlined as long as they fit, the others are references.

    Raises PermissionDenied for another principal's blob, BlobUnavailable for one that is gone, InvalidRequest for one whose
    metadata, target or use is another.
    """
    taken = [_row(txn, item) for item in staged]
    parts = [_part(item, row) for item, row in zip(staged, taken, strict=True)]
    room -= sum(_size(part) for part in parts)
    for index, (item, row) in enumerate(zip(staged, taken, strict=True)):
        if _is_image(row) and len(item.content) <= limits.MAX_INLINE_IMAGE_BYTES:
            inlined = InputImage(image_url=_data_url(item.content, row), detail="auto")
            more = _size(inlined) - _size(parts[index])
            if more <= room:
                parts[index] = inlined
                room -= more
    return parts


def keep_image(txn: Txn, media_type: str, content: bytes) -> str:
    """Make the content of an image a blob of the session and return the address that stands for it in an entry."""
    row = Blob(
        id=ids.new_id("blb"),
        session=txn.session,
        creator=txn.caller.principal_id or "",
        kind="image",
        media_type=media_type,
        byte_length=len(content),
        sha256=save(content),
        display_name="",
        created_at=txn.now,
    )
    rows.insert([row])
    return f"blob:{row.id}"


def save_images(payload: bytes) -> None:
    """Put the large images of an encoded item into the storage before its transaction, which then finds them there."""
    images.lightened(payload, lambda _type, content: save(content), ITEM_ROOM)


def save(content: bytes) -> str:
    """Put content into the storage, unless it is there whole, and return its hex SHA-256."""
    digest = sha256(content).hexdigest()
    _put(digest, len(content), ContentFile(content))
    return digest


def save_file(file: IO[bytes], digest: str, size: int) -> None:
    """Put the content of a file, whose hex SHA-256 and size these are, into the storage, unless it is there whole.

    Raises PersistenceError when the storage fails.
    """
    try:
        _put(digest, size, File(file, name=digest))
    except OSError as error:
        raise PersistenceError("the storage failed", retryable=True) from error


def read(digest: str) -> bytes:
    """Return stored content. Raises BlobUnavailable when it is gone or is not what its name says."""
    try:
        with default_storage.open(contents.name_of(digest)) as file:
            content = bytes(file.read())
    except OSError:
        raise BlobUnavailable("the content of the blob is gone") from None
    if sha256(content).hexdigest() != digest:
        raise BlobUnavailable("the content of the blob is damaged")
    return content


def find(session: Session, blob_id: str, reader: Principal) -> Blob:
    """Return a blob that is stored in this session; uploads that nobody took are in none (behaviour 13).

    Raises BlobUnavailable for any other, PermissionDenied for an export made for another authority than exactly `reader`
    (behaviour 9.3).
    """
    row = Blob.objects.filter(id=blob_id, session=session).first()
    if row is None:
        raise BlobUnavailable("no such blob in this session")
    _check_binding(row, reader)
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What a client says of content that it sends; none of it is trusted as a name or a path."""

    kind: BlobKind
    media_type: str
    display_name: str = ""
    allowed_use: str = MESSAGE_INPUT
    target_session: str = ""
    digest: str | None = None
    """The hex SHA-256 that the content must have, if the client knows it."""


class Incoming:
    """Content that arrives in pieces: counted, digested, and beyond a megabyte kept on the disk. Close it when it is dealt with."""

    def __init__(self) -> None:
        self._digest = sha256()
        self.file = SpooledTemporaryFile(max_size=limits.MIB)  # noqa: SIM115 - closed by `close`
        self.size = 0

    def take(self, piece: bytes) -> None:
        """Add a piece. Raises ResourceLimit when it makes more than 16 MiB."""
        self.size += len(piece)
        if self.size > limits.MAX_BLOB_BYTES:
            raise ResourceLimit("a blob is at most 16 MiB", retryable=False)
        self._digest.update(piece)
        self.file.write(piece)

    @property
    def digest(self) -> str:
        """The hex SHA-256 of what has come."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Forget it."""
        self.file.close()


def keep(upload: Upload, content: Incoming) -> None:
    """Put whole content into the storage, holding no lock; `publish` follows (behaviour 13).

    Raises InvalidRequest when the content is not what its digest says.
    """
    if upload.digest is not None and upload.digest.lower() != content.digest:
        raise InvalidRequest("the content is not what its digest says")
    content.file.seek(0)
    _put(content.digest, content.size, File(content.file, name=content.digest))


def publish(creator: str, upload: Upload, content: Incoming) -> Blob:
    """Enter content that is kept: it belongs to no session yet, and expires after `blob_ttl_ms`."""
    now = clock.now()
    return Blob.objects.create(
        id=ids.new_id("blb"),
        creator=creator,
        kind=upload.kind,
        media_type=upload.media_type,
        byte_length=content.size,
        sha256=content.digest,
        display_name=upload.display_name,
        allowed_use=upload.allowed_use,
        target_session=upload.target_session,
        created_at=now,
        expires_at=now + timedelta(milliseconds=limits.server().blob_ttl_ms),
    )


def get(caller: Caller, blob_id: str, reader: Principal) -> Blob:
    """Return a blob for download: a temporary one of the caller's own, or one of a session that the caller may see.

    Raises BlobUnavailable for an unknown or expired one and one of a session that is gone, PermissionDenied for one that is not
    visible and for an export made for another authority (behaviour 9.3, 13).
    """
    row = Blob.objects.select_related("session").filter(id=blob_id).first()
    if row is None or (row.expires_at is not None and row.expires_at <= clock.now()):
        raise BlobUnavailable("no such blob")
    session = row.session
    if session is None:
        visible = row.creator == caller.principal_id or "configuration.admin" in caller.scopes
    elif session.archived_at is not None:
        raise BlobUnavailable("no such blob")
    else:
        visible = "session.transcript.read" in caller.scopes and caller.visible.sees(session)
    if not visible:
        raise PermissionDenied("this blob is not yours")
    _check_binding(row, reader)
    return row


def _check_binding(row: Blob, reader: Principal) -> None:
    if row.bound_to is not None and msgspec.json.decode(row.bound_to, type=Principal) != reader:
        raise PermissionDenied("this export is for another authority")


def read_part(row: Blob, offset: int, size: int) -> bytes:
    """Return `size` bytes of a blob's content from `offset` on. Raises BlobUnavailable when it is gone or damaged."""
    return _read_part(row.sha256, offset, size)


def read_chunk(row: Blob, offset: int, max_bytes: int) -> BlobChunk:
    """Return the part of a blob from `offset` on, at most `max_bytes` of it; at its end an empty one.

    Raises InvalidRequest for an offset behind its end, BlobUnavailable when its content is gone or damaged.
    """
    if offset > row.byte_length:
        raise InvalidRequest("the offset is behind the end of the blob")
    data = _read_part(row.sha256, offset, min(max_bytes, row.byte_length - offset))
    end = offset + len(data)
    return BlobChunk(
        blob=blob_record(row),
        offset=offset,
        next_offset=end,
        data_base64=base64.b64encode(data).decode(),
        eof=end == row.byte_length,
    )


def _read_part(digest: str, offset: int, size: int) -> bytes:
    """Return exactly these bytes of stored content; what is asked for is what is read, once the whole was found undamaged."""
    _check_once(digest)
    try:
        with default_storage.open(contents.name_of(digest)) as file:
            file.seek(offset)
            part = bytes(file.read(size))
    except OSError:
        raise BlobUnavailable("the content of the blob is gone") from None
    if len(part) != size:
        raise BlobUnavailable("the content of the blob is damaged")
    return part


@lru_cache(maxsize=4096)
def _check_once(digest: str) -> None:
    """Find out whether content is what its name says, once in each process. Raises BlobUnavailable, and asks again next time."""
    found = sha256()
    try:
        with default_storage.open(contents.name_of(digest)) as file:
            while part := file.read(limits.MIB):
                found.update(part)
    except OSError:
        raise BlobUnavailable("the content of the blob is gone") from None
    if found.hexdigest() != digest:
        raise BlobUnavailable("the content of the blob is damaged")


def _put(digest: str, size: int, content: File[bytes]) -> None:
    """Store content under its digest, unless it is there whole; said to be expected before it is looked for."""
    contents.expect(digest)
    name = contents.name_of(digest)
    if not (default_storage.exists(name) and default_storage.size(name) == size):
        default_storage.save(name, content)


def _inline(given: BlobInputInlineBase64) -> bytes:
    content = given.content()
    if len(content) > limits.MAX_BLOB_BYTES:
        raise ResourceLimit("a blob is at most 16 MiB", retryable=False)
    if sha256(content).hexdigest() != given.digest.lower():
        raise InvalidRequest("the digest of inline data is wrong")
    save(content)
    return content


def _stored(given: BlobInputStored) -> bytes:
    row = Blob.objects.filter(id=given.blob_id).first()
    if row is None or (row.expires_at is not None and row.expires_at <= clock.now()):
        raise BlobUnavailable("no such blob")
    if row.byte_length != given.byte_length:
        # Told once it is known whose it is (`_taken`): its length is nobody else's business.
        return b""
    return read(row.sha256)


def _row(txn: Txn, item: Staged) -> Blob:
    if isinstance(item.source, BlobInputStored):
        return _taken(txn, item.source)
    row = Blob(
        id=ids.new_id("blb"),
        session=txn.session,
        creator=txn.caller.principal_id or "",
        kind=item.source.kind,
        media_type=item.source.media_type,
        byte_length=len(item.content),
        sha256=sha256(item.content).hexdigest(),
        display_name=item.source.display_name or "",
        created_at=txn.now,
    )
    row.save(force_insert=True)
    return row


def _taken(txn: Txn, source: BlobInputStored) -> Blob:
    """Move an upload into the session: it no longer expires and no other session can take it."""
    row = Blob.objects.select_for_update().filter(id=source.blob_id).first()
    if row is None or (row.expires_at is not None and row.expires_at <= txn.now):
        raise BlobUnavailable("no such blob")
    if row.creator != txn.caller.principal_id and "configuration.admin" not in txn.caller.scopes:
        raise PermissionDenied("this blob is not yours")
    elsewhere = row.session_id not in (None, txn.session.id) or row.target_session not in ("", txn.session.id)
    same = (row.byte_length, row.sha256, row.media_type) == (
        source.byte_length,
        source.digest.lower(),
        source.media_type,
    )
    if elsewhere or not same or row.allowed_use != MESSAGE_INPUT:
        raise InvalidRequest("the blob is for another use or is not what the message says")
    row.session, row.expires_at = txn.session, None
    row.save(update_fields=["session", "expires_at"])
    return row


def _part(item: Staged, row: Blob) -> Part:
    """Return the content part that an attachment adds: a reference to an image, its text, or a line that names it."""
    if _is_image(row):
        return InputImage(image_url=f"blob:{row.id}", detail="auto")
    if _is_text(row.media_type):
        with suppress(UnicodeDecodeError):  # one whose bytes are no text is named like any other file
            return InputText(text=item.content.decode())
    name = row.display_name or row.id
    return InputText(text=f"[Attached file: {name}, {row.media_type}, {row.byte_length} bytes]")


def _size(part: Part) -> int:
    """Return what a part adds to an encoded item, its comma included."""
    return len(encode(part)) + 1


def _is_image(row: Blob) -> bool:
    return row.media_type.startswith("image/")


def _data_url(content: bytes, row: Blob) -> str:
    return f"data:{row.media_type};base64,{base64.b64encode(content).decode()}"


def _is_text(media_type: str) -> bool:
    base = media_type.partition(";")[0].strip().lower()
    return base.startswith("text/") or base in (
        "application/json",
        "application/xml",
        "application/yaml",
        "application/toml",
    )
