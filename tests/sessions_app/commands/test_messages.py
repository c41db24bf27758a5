"""Messages: admission, disposition, attachments (behaviour 4.6, 6.1, 6.2)."""

from __future__ import annotations

import base64
from datetime import timedelta
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from sessions_app import blobs, ids, limits
from sessions_app.commands import messages
from sessions_app.errors import (
    BlobUnavailable,
    InvalidRequest,
    InvalidState,
    PermissionDenied,
    Refusal,
    ResourceLimit,
)
from sessions_app.limits import ServerSettings
from sessions_app.models import Blob, HistoryEntry, Session
from sessions_app.records import (
    BlobInput,
    BlobInputInlineBase64,
    BlobInputStored,
    BlobKind,
    MessageContent,
    MessageContentKind,
)
from tests.support.world import Client, World, together

PNG = b"\x89PNG\r\n\x1a\n"


def send(
    world: World, client: Client, text: str, *attachments: BlobInput, kind: MessageContentKind = "plain_text"
) -> messages.Sent:
    content = MessageContent(kind=kind, text=text, attachments=attachments)
    call = world.call(client.caller, "session.send_message", protected=True)
    return messages.send_message(call, client.session_id, content)


def newest(client: Client) -> HistoryEntry:
    return HistoryEntry.objects.filter(session_id=client.session_id).latest("position")


def parts(client: Client) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = msgspec.json.decode(newest(client).payload)["content"]
    return content


# Disposition


def test_a_message_to_an_idle_session_starts_a_turn(world: World) -> None:
    """6.2: "one transaction appends the entry, creates operation (kind turn, reason `user_submit`, state `starting`), sets
    running_turn. Answer has history ID, operation ID, mutation"."""
    client = world.idle()
    sent = world.send(client, "hello")
    session = world.session(client.session_id)
    operation = session.active_operation
    assert operation is not None
    assert (operation.kind, operation.reason, operation.state, operation.principal_id) == (
        "turn",
        "user_submit",
        "starting",
        "pri_ann",
    )
    assert sent == messages.Sent(
        history_id=ids.history_id(session.id, newest(client).number),
        disposition="started",
        operation_id=operation.id,
        revision=session.revision,
        latest_event_sequence=session.latest_sequence,
    )
    assert world.dispatched.operations == [operation.id]


def test_a_message_behind_a_running_turn_is_deferred(world: World) -> None:
    """6.2: "**deferred**: entry stored in the deferred queue… event `history.message_deferred`, no operation ID"."""
    client = world.idle()
    world.send(client, "one")
    sent = world.send(client, "two")
    assert (sent.disposition, sent.operation_id) == ("deferred", None)
    assert world.deferred(client) == ["user: two"]
    assert len(world.dispatched.operations) == 1


def test_two_clients_race(committed_world: World) -> None:
    """6.2, F2: "two clients racing while idle: one started, one deferred, distinct history IDs and revisions, both orders equal
    for all observers"."""
    world = committed_world
    first = world.idle()
    second = world.attach(first.session_id)
    before = world.counters(first)[1]
    sent = together(lambda: world.send(first, "of one"), lambda: world.send(second, "of two"))

    started, deferred = sorted(sent, key=lambda one: one.revision)
    assert (started.disposition, deferred.disposition) == ("started", "deferred")
    assert started.history_id != deferred.history_id
    assert started.revision < deferred.revision
    texts = ["of one", "of two"] if sent[0] is started else ["of two", "of one"]
    assert world.story(first, before) == [
        [f"appended user: {texts[0]}", "operation.started", "state running/running_turn"],
        [f"deferred user: {texts[1]}"],
    ]
    assert world.history(first)[1:] == [f"user: {texts[0]}"]
    assert world.deferred(first) == [f"user: {texts[1]}"]


# Admission


def test_plain_text_is_kept_exactly(world: World) -> None:
    """6.1: "one user message with one text part, text exactly as sent"."""
    client = world.idle()
    text = "  <user>not ChatMD</user>\n\u00a0\u0000 "
    world.send(client, text)
    assert msgspec.json.decode(newest(client).payload) == {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    }


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("<user>a</user><system>b</system>", "user: a"),
        ("plain words", "user: plain words"),
        ("<system>b</system><user>a</user><user>c</user>", "user: a"),
    ],
)
def test_chatmd_gives_its_first_user_element(world: World, text: str, kept: str) -> None:
    """6.1, F6: "if the trimmed text does not start with `<` it is wrapped in a user element; take the **first** user element;
    ignore everything else"."""
    client = world.idle()
    send(world, client, text, kind="chatmd")
    assert world.history(client)[1:] == [kept]


@pytest.mark.parametrize("text", ["<system>only</system>", "<user>unclosed", "<user> </user>"])
def test_chatmd_without_a_user_element_is_refused(world: World, text: str) -> None:
    """6.1: "no user element or a parse error → error (`invalid_state`)"; F6: "history unchanged after errors"."""
    client = world.idle()
    with pytest.raises(InvalidState) as refused:
        send(world, client, text, kind="chatmd")
    assert not refused.value.retryable
    assert world.history(client) == ["developer: Be brief."]


@pytest.mark.parametrize("blank", ["", " \t\r\n\v\f"])
def test_blank_text_is_refused(world: World, blank: str) -> None:
    """4.6: "blank text → `invalid_request`"."""
    client = world.idle()
    with pytest.raises(InvalidRequest):
        world.send(client, blank)


def test_what_is_no_ascii_space_is_text(world: World) -> None:
    """The codec's rule (`NonBlankText`) and the command's are one."""
    client = world.idle()
    assert world.send(client, "\u00a0").disposition == "started"


def test_the_checks_of_a_message_in_their_order(world: World) -> None:
    """4.6: "blank text → `invalid_request`; halted → `invalid_state`; failed → `invalid_state`; not loaded → `invalid_state`,
    retryable; content parse → `invalid_state`; entry above 4 MiB or deferred queue full → `resource_limit`"."""
    client = world.idle()
    world.send(client, "running")
    session = Session.objects.filter(id=client.session_id)
    session.update(halted=True, observed="failed", active_operation=None, desired="stopped")
    broken = "<user>" + "x" * limits.MAX_ENTRY_BYTES

    def refused(text: str) -> tuple[type[Refusal], str, bool]:
        with limits.using(ServerSettings(max_deferred_entries=1)), pytest.raises(Refusal) as refusal:
            send(world, client, text, inline(b"x", digest="wrong"), kind="chatmd")
        return type(refusal.value), refusal.value.message, refusal.value.retryable

    assert refused(" ")[:2] == (InvalidRequest, "the text of a message must not be blank")
    assert refused(broken) == (InvalidState, "the session is halted", False)
    session.update(halted=False)
    assert refused(broken) == (InvalidState, "the session has failed", False)
    session.update(observed="stopped")
    assert refused(broken) == (InvalidState, "the session is not running", True)
    session.update(observed="idle", desired="running")
    assert refused(broken)[0] is InvalidRequest, "the attachment, read outside the lock"
    with pytest.raises(InvalidState, match="ChatMD"):
        send(world, client, broken, kind="chatmd")


def test_an_entry_has_at_most_4_mib(world: World) -> None:
    """6.1: "One encoded history entry is at most 4 MiB: a message above it is `resource_limit`, not retryable"."""
    client = world.idle()
    with pytest.raises(ResourceLimit) as refused:
        world.send(client, "x" * limits.MAX_ENTRY_BYTES)
    assert not refused.value.retryable
    assert world.send(client, "x" * (limits.MAX_ENTRY_BYTES - 1024)).disposition == "started"


# What is attached


def inline(
    content: bytes,
    media_type: str = "text/plain",
    kind: BlobKind = "file",
    digest: str | None = None,
    **other: Any,
) -> BlobInputInlineBase64:
    return BlobInputInlineBase64(
        kind=kind,
        media_type=media_type,
        byte_length=len(content),
        digest=digest or sha256(content).hexdigest().upper(),
        inline_base64=base64.b64encode(content).decode(),
        **other,
    )


def upload(world: World, content: bytes = b"uploaded", /, **options: Any) -> Blob:
    """Keep a temporary upload, ann's unless said otherwise, as the upload page does."""
    fields: dict[str, Any] = {
        "creator": "pri_ann",
        "kind": "file",
        "media_type": "text/plain",
        "byte_length": len(content),
        "sha256": blobs.save(content),
        "created_at": world.clock(),
        "expires_at": world.clock() + timedelta(hours=1),
        **options,
    }
    return Blob.objects.create(id=ids.new_id("blb"), **fields)


def stored(blob: Blob, **other: Any) -> BlobInputStored:
    fields: dict[str, Any] = {
        "kind": "file",
        "media_type": blob.media_type,
        "byte_length": blob.byte_length,
        "digest": blob.sha256,
        "blob_id": blob.id,
        **other,
    }
    return BlobInputStored(**fields)


def test_inline_data_becomes_a_blob_and_a_part(world: World) -> None:
    """6.1: "image → image part; text-like media → text part; anything else → a text part naming file, type, size"; "*Inline* data
    becomes a blob of the session"."""
    client = world.idle()
    send(
        world,
        client,
        "look",
        inline(PNG, "image/png", "image"),
        inline(b'{"a":1}', "application/json; charset=utf-8"),
        inline(b"\x00\xff", "application/x-thing", display_name="thing.bin"),
        inline(b"\xff", "text/plain"),
    )
    rows = list(Blob.objects.order_by("created_at", "id"))
    image = base64.b64encode(PNG).decode()
    assert parts(client) == [
        {"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{image}", "detail": "auto"},
        {"type": "input_text", "text": '{"a":1}'},
        {"type": "input_text", "text": "[Attached file: thing.bin, application/x-thing, 2 bytes]"},
        {"type": "input_text", "text": f"[Attached file: {rows[3].id}, text/plain, 1 bytes]"},
    ]
    assert {(row.session_id, row.creator, row.expires_at) for row in rows} == {
        (client.session_id, "pri_ann", None)
    }
    assert blobs.read(rows[0].sha256) == PNG


def test_large_images_are_references(world: World) -> None:
    """6.1: "On the wire an image up to 256 KiB is a data URI as long as its entry stays within 4 MiB, any other
    `image_url: "blob:blb_…"`": neither a large one nor many small ones are refused."""
    client = world.idle()
    large = PNG + b"0" * limits.MAX_INLINE_IMAGE_BYTES
    small = PNG + b"1" * (limits.MAX_INLINE_IMAGE_BYTES - len(PNG))
    many = [inline(small + b"", "image/png", "image", display_name=f"{number}.png") for number in range(16)]
    send(world, client, "look", inline(large, "image/png", "image"), *many)
    urls = [part["image_url"][:5] for part in parts(client)[1:]]
    assert urls == ["blob:", *["data:"] * 11, *["blob:"] * 5]
    assert newest(client).size <= limits.MAX_ENTRY_BYTES


def test_text_that_does_not_fit_is_refused(world: World) -> None:
    """6.1: "a message above it is `resource_limit`, not retryable" — all-or-nothing with what is attached."""
    client = world.idle()
    with pytest.raises(ResourceLimit) as refused:
        send(world, client, "look", inline(b"x" * limits.MAX_ENTRY_BYTES))
    assert not refused.value.retryable
    assert not Blob.objects.exists()


def test_a_stored_blob_moves_into_the_session(world: World) -> None:
    """6.1: "it moves into the session"; 13: "adopting into a session removes the expiry"."""
    client = world.idle()
    blob = upload(world)
    send(world, client, "look", stored(blob, digest=blob.sha256.upper()))
    blob.refresh_from_db()
    assert (blob.session_id, blob.expires_at) == (client.session_id, None)
    assert parts(client)[1] == {"type": "input_text", "text": "uploaded"}
    assert send(world, client, "again", stored(blob)).disposition == "deferred", (
        "its own blob it may name again"
    )


def test_an_administrator_may_take_what_others_uploaded(world: World) -> None:
    """6.1: "caller = blob's creating principal (or admin)"."""
    admin = world.client("root", scopes=frozenset({"configuration.admin"}))
    client = world.idle(by=admin)
    send(world, client, "look", stored(upload(world)))
    assert Blob.objects.get().session_id == client.session_id


@pytest.mark.parametrize(
    ("given", "options", "refused"),
    [
        ({"blob_id": "blb_unknown"}, {}, BlobUnavailable),
        ({}, {"expires_at": "past"}, BlobUnavailable),
        ({}, {"sha256": "0" * 64}, BlobUnavailable),
        ({}, {"creator": "pri_bob"}, PermissionDenied),
        ({"byte_length": 1}, {"creator": "pri_bob"}, PermissionDenied),
        ({}, {"session": "other"}, InvalidRequest),
        ({}, {"target_session": "ses_other"}, InvalidRequest),
        ({}, {"allowed_use": "export"}, InvalidRequest),
        ({"byte_length": 3}, {}, InvalidRequest),
        ({"digest": "0" * 64}, {}, InvalidRequest),
        ({"media_type": "text/html"}, {}, InvalidRequest),
    ],
)
def test_stored_blobs_are_checked(
    world: World, given: dict[str, Any], options: dict[str, Any], refused: type[Refusal]
) -> None:
    """6.1: "missing/expired → `blob_unavailable`; foreign → `permission_denied`; mismatch → `invalid_request`. All-or-nothing with
    the message"."""
    client = world.idle()
    replaced = {"past": world.clock(), "other": world.session(world.create().session_id)}
    blob = upload(
        world, b"uploaded", **{name: replaced.get(str(value), value) for name, value in options.items()}
    )
    fine = upload(world, b"fine")
    before = world.counters(client)
    with pytest.raises(refused):
        send(world, client, "look", stored(fine), stored(blob, **given))
    assert world.counters(client) == before
    fine.refresh_from_db()
    assert fine.session_id is None


def test_inline_data_is_checked(world: World) -> None:
    """6.1: "its digest must match"."""
    client = world.idle()
    with pytest.raises(InvalidRequest):
        send(world, client, "look", inline(b"content", digest="0" * 64))
    assert not Blob.objects.exists()


def test_a_blob_has_at_most_16_mib(world: World) -> None:
    """16: "blob upload 16 MiB"; `resource_limit` of a size is not retryable (16.1)."""
    client = world.idle()
    with pytest.raises(ResourceLimit) as refused:
        send(world, client, "look", inline(b"x" * (limits.MAX_BLOB_BYTES + 1), "application/x-thing"))
    assert not refused.value.retryable
