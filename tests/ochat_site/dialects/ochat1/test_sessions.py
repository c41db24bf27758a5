"""Sessions over the protocol: made, attached to, spoken to, stopped (behaviour 4 to 6)."""

from __future__ import annotations

import msgspec

from sessions_app.db import in_db
from sessions_app.encoding import encode
from tests.support.serving import Host
from tests.support.world import World


async def test_a_client_makes_a_session_attaches_and_sends(host: Host, served_world: World) -> None:
    client = await host.client()
    spec = msgspec.json.decode(encode(await in_db(served_world.spec, start=True)))

    made = await client.call("session.create", spec=spec, subscribe=False, idempotency_key="a")
    session_id = made["session"]["id"]
    attached = await client.call(
        "session.attach",
        session_id=session_id,
        requested_mode="read_write",
        subscribe=True,
        idempotency_key="b",
    )
    sent = await client.call(
        "session.send_message",
        session_id=session_id,
        attachment_id=attached["attachment"]["id"],
        text="hello",
        idempotency_key="c",
    )

    assert sent["disposition"] == "started"
    first = attached["latest_event_sequence"] + 1
    told = await client.told(3)
    assert [event["sequence"] for event in told] == list(range(first, first + 3))
