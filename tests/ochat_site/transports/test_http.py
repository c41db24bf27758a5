"""Routes, logical connections, their event streams, and blobs over HTTP, at the door of the application."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from jobs_app import sweep
from permissions_app import audit, tokens
from permissions_app.models import AuditRecord
from permissions_app.principals import of_service
from permissions_app.scopes import command_line
from sessions_app import clock, limits
from sessions_app.commands import logical
from sessions_app.db import in_db
from sessions_app.models import Attachment, Blob, Connection
from tests.conformance.fixture import ALL, PUBLIC, READER, SECOND_ADMIN, STRANGER
from tests.conformance.over_http import HttpSite, Reply
from tests.conformance.peers import WAIT_SECONDS, Hold, answered
from tests.conformance.test_h_http import ID, PING, Caller, call


async def attached(caller: Caller, session_id: str, mode: str = "read_only", **params: Any) -> dict[str, Any]:
    """Attach a connection and return the result."""
    named = {
        "session_id": session_id,
        "requested_mode": mode,
        "subscribe": True,
        "idempotency_key": f"k{id(params)}",
    }
    answer = (await caller.post(call("session.attach", 1, **named, **params))).json
    result: dict[str, Any] = answer["result"]
    return result


async def session(site: HttpSite) -> Hold:
    """Return a hold on a new session."""
    return await (await site.peer()).create()


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", "/v1/", 404, None),
        ("GET", "/v1/nothing", 404, None),
        ("GET", "/v1/rpc/", 404, None),
        ("GET", "/v1/sessions//snapshot", 404, None),
        ("GET", "/v1/sessions/a/b/snapshot", 404, None),
        ("GET", "/v1/rpc", 405, b"POST"),
        ("HEAD", "/v1/health", 405, b"GET"),
        ("OPTIONS", "/v1/rpc", 405, b"POST"),
        ("GET", "/v1/connection", 405, b"DELETE"),
        ("POST", "/v1/sessions/ses_a/events", 405, b"GET"),
        ("PUT", "/v1/blobs", 405, b"POST"),
        ("DELETE", "/v1/blobs/blb_a", 405, b"GET"),
        ("POST", "/healthz", 405, b"GET, HEAD"),
        ("DELETE", "/readyz", 405, b"GET, HEAD"),
    ],
)
async def test_other_paths_and_methods(
    http_site: HttpSite, method: str, path: str, status: int, allowed: bytes | None
) -> None:
    answer = await Caller(http_site).requests.ask(method, path)
    assert (answer.status, answer.code, answer.header(b"allow")) == (status, "method_not_found", allowed)


async def test_probes_need_no_credentials(http_site: HttpSite) -> None:
    nobody = Caller(http_site, headers=[])
    assert [(await nobody.get(path)).status for path in ("/healthz", "/readyz", "/v1/health")] == [
        200,
        200,
        401,
    ]
    http_site._web._server.draining = True
    assert [(await nobody.get(path)).status for path in ("/healthz", "/readyz")] == [200, 503]


async def test_health_shows_components_to_who_may_diagnose(http_site: HttpSite) -> None:
    shown, hidden = (
        await Caller(http_site).get("/v1/health"),
        await Caller(http_site, READER).get("/v1/health"),
    )
    assert (shown.status, hidden.status) == (200, 200)
    assert {component["name"] for component in shown.json["components"]} >= {"storage", "workers"}
    assert hidden.json["components"] == []


async def test_one_connection_has_one_stream(http_site: HttpSite) -> None:
    """A new one ends the old and goes on where it ended; nothing is lost or told twice."""
    hold = await session(http_site)
    caller = Caller(http_site)
    await caller.open()
    result = await attached(caller, hold.session_id)
    await hold.start()  # told to the first stream, which has yet to be opened
    first = caller.stream("/v1/events", (ID, caller.id))
    assert await first.next(comments=True) == {"comment": "connected"}
    told = [await first.next() for _ in range(2)]
    await hold.stop()
    told.append(await first.next())
    second = caller.stream("/v1/events", (ID, caller.id))
    assert await second.status() == 200
    with pytest.raises(StopAsyncIteration):
        await first.next()
    await hold.start()
    told += [await second.next() for _ in range(2)]

    sequences = [frame["data"]["params"]["sequence"] for frame in told]
    begin = result["latest_event_sequence"] + 1
    assert sequences == [*range(begin, begin + 5)]
    assert {tuple(frame) for frame in told} == {("data",)}
    second.close()

    def handed() -> int | None:
        row = Connection.objects.get(id=caller.id.decode())
        place: int | None = row.attachments.get().handed_sequence
        return None if row.process_id else place

    assert await answered(lambda: in_db(handed), "the end of the stream is noted") == begin + 4


async def test_attachments_come_and_go_on_an_open_stream(http_site: HttpSite) -> None:
    hold = await session(http_site)
    caller = Caller(http_site)
    await caller.open()
    stream = caller.stream("/v1/events", (ID, caller.id))
    assert await stream.status() == 200
    result = await attached(caller, hold.session_id)
    await attached(caller, hold.session_id, after_sequence=0)
    detach = {"session_id": hold.session_id, "idempotency_key": "d"}
    await caller.post(call("session.detach", 2, attachment_id=result["attachment"]["id"], **detach))
    await hold.start()
    frames = [await stream.next() for _ in range(2)]

    begin = result["latest_event_sequence"] + 1
    assert [frame["data"]["params"]["sequence"] for frame in frames] == [begin, begin + 1]
    assert not await in_db(Attachment.objects.filter(id=result["attachment"]["id"]).exists)
    stream.close()


async def test_who_does_not_subscribe_is_told_nothing(http_site: HttpSite) -> None:
    hold = await session(http_site)
    caller = Caller(http_site)
    await caller.open()
    named = {"session_id": hold.session_id, "requested_mode": "read_only"}
    await caller.post(call("session.attach", 1, subscribe=False, idempotency_key="a", **named))
    stream = caller.stream("/v1/events", (ID, caller.id))
    assert await stream.status() == 200
    await hold.start()
    result = await attached(caller, hold.session_id)
    await hold.stop()
    assert (await stream.next())["data"]["params"]["sequence"] == result["latest_event_sequence"] + 1
    stream.close()


async def test_a_connection_is_closed_once(http_site: HttpSite) -> None:
    hold = await session(http_site)
    caller = Caller(http_site)
    await caller.open()
    await attached(caller, hold.session_id)
    stream = caller.stream("/v1/events", (ID, caller.id))
    assert await stream.status() == 200
    closed = await caller.requests.ask("DELETE", "/v1/connection", [(ID, caller.id)])

    assert (closed.status, closed.json) == (200, {"closed": True})
    with pytest.raises(StopAsyncIteration):
        await stream.next()
    for answer in (
        await caller.post(PING),
        await caller.get("/v1/events", (ID, caller.id)),
        await caller.requests.ask("DELETE", "/v1/connection", [(ID, caller.id)]),
        await caller.requests.ask("DELETE", "/v1/connection"),
        await caller.get("/v1/events"),
    ):
        assert (answer.status, answer.code) == (400, "invalid_request")
    assert await in_db(Attachment.objects.filter(session_id=hold.session_id).count) == 1  # the peer's own


async def test_idle_connections_end(http_site: HttpSite) -> None:
    """One that is used or streamed stays; an idle one goes with its attachments."""
    hold = await session(http_site)
    used, idle, streamed = Caller(http_site), Caller(http_site), Caller(http_site)
    for caller in (used, idle, streamed):
        await caller.open()
        await attached(caller, hold.session_id)
    stream = streamed.stream("/v1/events", (ID, streamed.id))
    assert await stream.status() == 200

    def age() -> None:
        old = clock.now() - timedelta(milliseconds=limits.server().idle_connection_timeout_ms + 1)
        names = [caller.id.decode() for caller in (used, idle, streamed)]
        Connection.objects.filter(id__in=names).update(last_active_at=old)

    await in_db(age)
    await used.post(PING)
    await in_db(sweep.end_idle_connections)

    assert [(await caller.post(PING)).status for caller in (used, idle, streamed)] == [200, 400, 200]
    held = Attachment.objects.filter(session_id=hold.session_id)
    assert await in_db(held.exclude(id=hold.attachment_id).count) == 2
    stream.close()


async def test_what_began_to_end_is_ended(http_site: HttpSite) -> None:
    """A process that dies between marking a connection closed and removing it leaves it to the sweep."""
    caller = Caller(http_site)
    await caller.open()
    rows = Connection.objects.filter(id=caller.id.decode())
    await in_db(rows.update, closed_at=clock.now())
    assert (await caller.post(PING)).code == "invalid_request"
    await in_db(sweep.end_idle_connections)
    assert not await in_db(rows.exists)


async def test_there_are_only_so_many_connections(http_site: HttpSite) -> None:
    with limits.using(limits.ServerSettings(max_connections=await in_db(_logical) + 1)):
        first, second = Caller(http_site), Caller(http_site)
        await first.open()
        refused = await second.post(call("protocol.initialize", 1))
        assert (refused.status, refused.code, refused.json["retryable"]) == (400, "resource_limit", False)
        await first.requests.ask("DELETE", "/v1/connection", [(ID, first.id)])
        await second.open()


def _logical() -> int:
    return Connection.objects.filter(transport=logical.TRANSPORT).count()


async def test_a_revoked_token_ends_its_streams(http_site: HttpSite) -> None:
    """Within two seconds; from then on it is answered 401."""

    def issue() -> tokens.Issued:
        return tokens.create_token(command_line(), of_service("leaver"), scopes=ALL, source="command")

    hold = await session(http_site)
    issued = await in_db(issue)
    caller = Caller(http_site, headers=[(b"authorization", b"Bearer " + issued.plaintext.encode())])
    await caller.open()
    streams = [
        caller.stream(f"/v1/sessions/{hold.session_id}/events"),
        caller.stream("/v1/events", (ID, caller.id)),
    ]
    assert [await stream.status() for stream in streams] == [200, 200]
    held = Attachment.objects.filter(session_id=hold.session_id, hidden=True)
    assert await in_db(held.count) == 1
    await in_db(tokens.revoke_token, command_line(), issued.token.id)
    async with asyncio.timeout(WAIT_SECONDS):
        for stream in streams:
            with pytest.raises(StopAsyncIteration):
                await stream.next()
    assert await answered(lambda: in_db(lambda: not held.exists()), "the hidden attachment goes")
    assert (await caller.post(PING)).status == 401


async def test_the_stream_of_a_session_that_is_gone_ends(http_site: HttpSite) -> None:
    """9.5: "Subscriptions end": a stream is not left open with nothing but keep-alives."""
    hold = await session(http_site)
    stream = Caller(http_site, SECOND_ADMIN).stream(f"/v1/sessions/{hold.session_id}/events")
    assert await stream.status() == 200
    hold.leave()
    revision = (await Caller(http_site).get(f"/v1/sessions/{hold.session_id}/snapshot")).json["revision"]
    await hold.raw(
        "session.delete", expected_revision=revision, policy="archive", confirmation=hold.session_id
    )
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(StopAsyncIteration):
            await stream.next()


async def test_a_stream_says_that_something_was_filtered(http_site: HttpSite) -> None:
    hold = await session(http_site)
    await hold.start()
    stream = Caller(http_site, READER).stream(f"/v1/sessions/{hold.session_id}/events")
    assert await stream.status() == 200
    await hold.say("hello")
    seen: list[dict[str, Any]] = []
    async with asyncio.timeout(WAIT_SECONDS):
        while "operation.completed" not in str(seen[-1:]):
            seen.append(await stream.next(comments=True))
    assert {"comment": "filtered"} in seen
    assert not [frame for frame in seen if frame.get("event") == "session.live_event"]
    stream.close()


# Blobs

TEXT = "a name with ü".encode()


async def upload(caller: Caller, content: bytes, *headers: tuple[bytes, bytes], **options: Any) -> Reply:
    """Upload something."""
    given = {name for name, _ in headers}
    kind = [] if b"content-type" in given else [(b"content-type", b"text/plain")]
    return await caller.requests.ask("POST", "/v1/blobs", [*kind, *headers], content, **options)


async def test_a_blob_goes_up_and_comes_down(http_site: HttpSite) -> None:
    content = bytes(range(256)) * 1000
    digest = sha256(content).hexdigest()
    caller = Caller(http_site)
    up = await upload(
        caller,
        content,
        (b"ochat-blob-kind", b"file"),
        (b"ochat-display-name", TEXT),
        (b"ochat-sha256", digest.upper().encode()),
    )
    blob = up.json["blob"]

    assert up.status == 201
    assert (up.json["allowed_use"], blob["kind"], blob["media_type"]) == (
        "message_input",
        "file",
        "text/plain",
    )
    assert (blob["byte_length"], blob["digest"], blob["display_name"]) == (256_000, digest, TEXT.decode())
    down = await caller.get(f"/v1/blobs/{blob['id']}")
    assert (down.status, down.body) == (200, content)
    assert down.header(b"content-length") == b"256000"
    assert down.header(b"etag") == f'"sha256:{digest}"'.encode()
    assert down.header(b"content-type") == b"text/plain"
    known = await caller.get(f"/v1/blobs/{blob['id']}", (b"if-none-match", down.header(b"etag") or b""))
    assert (known.status, known.body) == (304, b"")
    whole = await caller.get(f"/v1/blobs/{blob['id']}", (b"range", b"bytes=0-1"))
    assert (whole.status, whole.body) == (200, content)

    nobody = await Caller(http_site, SECOND_ADMIN).get(f"/v1/blobs/{blob['id']}")
    assert nobody.status == 200  # an admin's token shows it
    other = await Caller(http_site, STRANGER).get(f"/v1/blobs/{blob['id']}")
    assert (other.status, other.code) == (403, "permission_denied")
    same = await Caller(http_site, READER).get(f"/v1/blobs/{blob['id']}")
    assert same.status == 200  # another token of the same principal
    await in_db(Blob.objects.filter(id=blob["id"]).update, expires_at=clock.now())
    for gone in (f"/v1/blobs/{blob['id']}", "/v1/blobs/blb_none", "/v1/blobs/..%2f"):
        answer = await caller.get(gone)
        assert (answer.status, answer.code) == (400, "blob_unavailable")


async def test_an_upload_becomes_a_part_of_a_message(http_site: HttpSite) -> None:
    hold = await session(http_site)
    await hold.start()
    caller = Caller(http_site)
    blob = (await upload(caller, b"the content", (b"ochat-target-session", hold.session_id.encode()))).json[
        "blob"
    ]
    stored = {"source": "stored", "blob_id": blob["id"], **{k: v for k, v in blob.items() if k != "id"}}
    await hold.raw(
        "session.send_message", content={"kind": "plain_text", "text": "look", "attachments": [stored]}
    )
    path = f"/v1/blobs/{blob['id']}"

    assert (await caller.get(path)).body == b"the content"
    assert (await Caller(http_site, READER).get(path)).body == b"the content"
    assert (await Caller(http_site, STRANGER).get(path)).status == 403
    assert (await Caller(http_site, PUBLIC).get(path)).status == 403


async def test_a_media_type_that_no_header_can_hold(http_site: HttpSite) -> None:
    """What a message brings along names its media type as it likes; the blob comes down all the same."""
    caller = Caller(http_site)
    id = (await upload(caller, b"x")).json["blob"]["id"]
    for said in ("text/☃", "text/plain\r\nset-cookie: a=b", "", " "):
        await in_db(Blob.objects.filter(id=id).update, media_type=said)
        down = await caller.get(f"/v1/blobs/{id}")
        assert (down.status, down.body) == (200, b"x")
        assert down.header(b"content-type") == b"application/octet-stream"


async def test_what_an_upload_is_refused_for(http_site: HttpSite) -> None:
    """Nothing of it is kept, and each refusal is on record."""
    hold = await session(http_site)
    admin, stranger = Caller(http_site), Caller(http_site, STRANGER)
    before = await in_db(Blob.objects.count)
    target = (b"ochat-target-session", hold.session_id.encode())
    refused: list[tuple[Reply, int, str]] = [
        (await upload(Caller(http_site, READER), b"x"), 403, "permission_denied"),
        (await upload(stranger, b"x", target), 403, "permission_denied"),
        (await upload(admin, b"x", (b"ochat-target-session", b"ses_none")), 403, "session_not_found"),
        (await upload(admin, b"x", (b"content-type", b"")), 400, "invalid_request"),
        (await upload(admin, b"x", (b"ochat-blob-kind", b"video")), 400, "invalid_request"),
        (await upload(admin, b"x", (b"ochat-blob-kind", b"")), 400, "invalid_request"),
        (await upload(admin, b"x", (b"ochat-allowed-use", b"")), 400, "invalid_request"),
        (await upload(admin, b"x", (b"ochat-allowed-use", b"other")), 400, "invalid_request"),
        (await upload(admin, b"x", (b"ochat-sha256", b"0" * 64)), 400, "invalid_request"),
        (await upload(admin, b"x", (b"ochat-sha256", b"0")), 400, "invalid_request"),
        (await upload(admin, b"x", (b"ochat-display-name", b"\xff")), 400, "invalid_request"),
        (await upload(admin, b"x", target, target), 400, "invalid_request"),
        (await upload(admin, bytes(limits.MAX_BLOB_BYTES + 1)), 400, "resource_limit"),
        (await upload(admin, b"", too_large=True), 400, "resource_limit"),
    ]
    for answer, status, code in refused:
        assert (answer.status, answer.code) == (status, code)
    assert await in_db(Blob.objects.count) == before

    def recorded() -> list[str]:
        http_site._web._audit.flush()
        audit.chain()
        rows = AuditRecord.objects.values_list("name", "payload")
        return [name for name, payload in rows if b"blob.upload" in bytes(payload)]

    names = await in_db(recorded)
    assert names.count("protocol.command.denied") >= 1
    assert names.count("protocol.command.failed") >= 6
