"""Scenarios B: authentication and scopes. A WebSocket can only refuse a handshake with 403 (behaviour 1.4)."""

from __future__ import annotations

import pytest

from sessions_app.db import in_db
from sessions_app.models import Session, WorkspaceInstance
from tests.conformance.fixture import ADMIN, EXPIRED, PUBLIC, READER, STRANGER, WRITER
from tests.conformance.peers import Peer, code, spec
from tests.conformance.sites import Headers, Site, bearer

NAME = b"authorization"
TOKEN = ADMIN.token.encode()

MALFORMED: dict[str, Headers] = {
    "no header": [],
    "unknown token": [(NAME, b"Bearer nobody")],
    "another scheme": [(NAME, b"Basic x")],
    "no token": [(NAME, b"Bearer")],
    "an empty token": [(NAME, b"Bearer ")],
    "an extra word": [(NAME, b"Bearer " + TOKEN + b" more")],
    "a tab": [(NAME, b"Bearer\t" + TOKEN)],
    "two headers": [bearer(ADMIN), bearer(ADMIN)],
    "Bearer and Basic": [bearer(ADMIN), (NAME, b"Basic x")],
    "two in one": [(NAME, b"Bearer " + TOKEN + b", Bearer " + TOKEN)],
}


@pytest.mark.parametrize("headers", MALFORMED.values(), ids=MALFORMED.keys())
async def test_b1(site: Site, headers: Headers) -> None:
    """No, unknown and malformed credentials are refused, each alike."""
    assert await site.handshake(headers) == 403


async def test_b1_a_token_in_the_url(framed_site: Site) -> None:
    """No, unknown and malformed credentials are refused, each alike.

    A URL with `access_token` is refused whatever else is good (behaviour 1.4).
    """
    token = ADMIN.token
    assert await framed_site.handshake([], f"access_token={token}") == 403
    assert await framed_site.handshake([bearer(ADMIN)], f"access_token={token}") == 403
    assert await framed_site.handshake([bearer(ADMIN)], "Access_Token=") == 403
    assert await framed_site.handshake([bearer(ADMIN)], "other=1") == 101


async def test_b2(site: Site) -> None:
    """The scheme is read in any case; its kind is http.static_bearer."""
    peer = await site.connect(headers=[(NAME, b"bEaReR " + TOKEN)])
    initialized = await peer.client.initialize()

    assert initialized.principal.authentication_kind == "http.static_bearer"
    assert initialized.principal.id == ADMIN.principal


async def test_b3(site: Site) -> None:
    """An expired token is refused, another one is not."""
    assert await site.handshake([bearer(EXPIRED)]) == 403
    assert await site.handshake([bearer(ADMIN)]) == 101


async def test_b9(site: Site) -> None:
    """Who may not create is refused and leaves nothing behind; who may then makes exactly one session."""

    def things() -> tuple[int, int]:
        return Session.objects.count(), WorkspaceInstance.objects.count()

    before = await in_db(things)
    public = await site.peer(PUBLIC)
    assert await code(public.client.create_session(spec())) == "permission_denied"
    assert await in_db(things) == before

    admin = await site.peer(ADMIN)
    made = await admin.client.create_session(spec(labels={"row": "b9"}))
    assert await in_db(things) == (before[0] + 1, before[1] + 1)
    assert made.revision == 1
    assert made.latest_event_sequence == 1


async def test_b11(site: Site) -> None:
    """A reader attaches read_only alone; a writer read_write, and not as owner."""
    session_id = (await (await site.peer()).create()).session_id
    reader, writer = await site.peer(READER), await site.peer(WRITER)

    await reader.attach(session_id, "read_only")
    assert await code(reader.attach(session_id, "read_write")) == "permission_denied"
    assert await code(reader.attach(session_id, "owner_read_write")) == "permission_denied"
    await writer.attach(session_id, "read_write")
    assert await code(writer.attach(session_id, "owner_read_write")) == "permission_denied"


async def test_b12(site: Site) -> None:
    """Another's session: get and attach are denied, list omits it; an unknown one is not found."""
    session_id = (await (await site.peer()).create()).session_id
    stranger = await site.peer(STRANGER)
    own = (await stranger.create()).session_id

    assert await code(stranger.get(session_id)) == "permission_denied"
    assert await code(stranger.attach(session_id, "read_only")) == "permission_denied"
    listed = await _listed(stranger)
    assert own in listed
    assert session_id not in listed
    assert session_id in await _listed(await site.peer(ADMIN))
    for method in ("session.get", "session.attach"):
        params = (
            stranger.attach_params("ses_none") if method == "session.attach" else {"session_id": "ses_none"}
        )
        assert await code(stranger.client.request(method, params)) == "session_not_found"


async def _listed(peer: Peer) -> set[str]:
    found: set[str] = set()
    cursor: dict[str, str] = {}
    while True:
        page = await peer.call("session.list", limit=200, labels={}, **cursor)
        found |= {session["id"] for session in page["items"]}
        if "next_cursor" not in page:
            return found
        cursor = {"cursor": page["next_cursor"]}
