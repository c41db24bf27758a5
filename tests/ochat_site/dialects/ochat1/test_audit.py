"""The audit log over the protocol (behaviour 15)."""

from __future__ import annotations

from typing import Any

import msgspec

from ochat_site.rpc.methods import METHODS
from permissions_app import audit
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.records import Scope
from tests.golden.contract import EXAMPLES
from tests.support.serving import Host, Peer, identity
from tests.support.world import ALL_SCOPES, SCOPES, World

AUDITOR: tuple[Scope, ...] = ("audit.read",)


def said(record: Any) -> tuple[str, str]:
    return record["payload"]["method"], record["payload"]["outcome"]


async def read(peer: Peer, **wanted: Any) -> list[Any]:
    items: list[Any] = (await peer.call("audit.read", limit=1000, **wanted))["items"]
    return items


async def test_everything_so_far_is_read_in_order(host: Host, served_world: World) -> None:
    """ "`audit.read`… first write their process's batch and chain what is waiting"; "reading appends a record itself"."""
    client = await host.client()
    held = await client.create(served_world)
    await client.refusal("session.get", session_id="ses_none")
    auditor = await host.client(identity("eve", scopes=AUDITOR))
    await auditor.refusal("session.list", limit=1)

    first = await read(auditor)
    assert [record["sequence"] for record in first] == list(range(1, len(first) + 1))
    assert sorted(map(said, first)) == sorted(
        [
            ("protocol.initialize", "success"),
            ("protocol.initialize", "success"),
            ("session.create", "success"),
            ("session.get", "session_not_found"),
            ("session.list", "permission_denied"),
        ]
    )
    assert all(record["redacted"] for record in first)
    second = await read(auditor)
    assert second[: len(first)] == first
    assert list(map(said, second[len(first) :])) == [("audit.read", "success")]
    assert second[-1]["principal_id"] == "pri_eve"
    assert held.session_id not in str(first), "a create has session none"
    assert (await in_db(audit.verify)).broken_at is None


async def test_records_are_filtered(host: Host, served_world: World) -> None:
    """ "filters: session, principal, minimum level, name prefix; … no per-session visibility filter"."""
    held = await (await host.client()).create(served_world)
    await held.call("session.start", queue_if_limited=False)
    await held.refusal("session.cancel_operation", operation_id="op_none")
    auditor = await host.client(identity("eve", scopes=AUDITOR))

    of_session = await read(auditor, session_id=held.session_id)
    assert list(map(said, of_session)) == [
        ("session.start", "success"),
        ("session.cancel_operation", "operation_not_found"),
    ]
    serious = await read(auditor, minimum_level="warning")
    assert list(map(said, serious)) == [("session.cancel_operation", "operation_not_found")]
    assert await read(auditor, minimum_level="error") == []
    by_ann = await read(auditor, principal_id="pri_ann", name_prefix="protocol.command.s")
    assert {said(record)[1] for record in by_ann} == {"success"}
    assert {record["principal_id"] for record in by_ann} == {"pri_ann"}
    assert await read(auditor, name_prefix="operator.") == []


async def test_pages_go_on_by_sequence_while_records_are_added(host: Host, served_world: World) -> None:
    """12.2: "Audit cursors are the same, by sequence"; K8."""
    held = await (await host.client()).create(served_world)
    for _ in range(3):
        await held.call("session.start", queue_if_limited=False)
    auditor = await host.client(identity("eve", scopes=AUDITOR))
    wanted = {"session_id": held.session_id, "limit": 2}

    first = await auditor.call("audit.read", wanted)
    await held.call("session.stop", mode="graceful")
    await in_db(audit.chain_waiting)
    second = await auditor.call("audit.read", wanted, cursor=first["next_cursor"])

    assert [said(record)[0] for record in (*first["items"], *second["items"])] == [
        "session.start",
        "session.start",
        "session.start",
        "session.stop",
    ]
    sequences = [record["sequence"] for record in (*first["items"], *second["items"])]
    assert sequences == sorted(set(sequences))
    assert "next_cursor" not in second
    for changed in ({"limit": 3}, {"minimum_level": "info"}):
        refused = {**wanted, "cursor": first["next_cursor"], **changed}
        assert await auditor.refusal("audit.read", **refused) == "invalid_request"
    everything_else = await host.client(identity("eve", scopes=(*SCOPES,)))
    code = await everything_else.refusal("audit.read", **wanted, cursor=first["next_cursor"])
    assert code == "invalid_request"


REQUESTS: dict[str, dict[str, Any]] = {
    each.definition.removesuffix(".request"): msgspec.json.decode(each.text)
    for each in reversed(EXAMPLES)
    if each.valid and each.definition.endswith(".request")
}
HANDLED = [row for (dialect, _), row in METHODS.items() if dialect == "ochat1"]


async def outcome(peer: Peer, method: str) -> str:
    """Send the protocol's own example of a call; "success", or the code that it is refused with."""
    answer = await peer.ask(encode({**REQUESTS[method], "id": method}))
    return "success" if "result" in answer else str(answer["error"]["code"])


async def test_every_method_leaves_one_record_however_it_ends(host: Host, served_world: World) -> None:
    """Commands, reads and refusals alike: denied before the connection is initialized or without the scope, else what came of it.

    The chain over them has no gap, and no record holds anything that was sent.
    """
    powerful = identity("ann", scopes=ALL_SCOPES)
    stranger, weak, ann = (
        await host.connect(powerful),
        await host.client(identity("eve", ())),
        await host.client(powerful),
    )
    expected = [("protocol.command.succeeded", "protocol.initialize", "success")] * 2
    for row in HANDLED:
        if not row.opens:
            expected.append(("protocol.command.denied", row.name, await outcome(stranger, row.name)))
        if row.scope is not None:
            expected.append(("protocol.command.denied", row.name, await outcome(weak, row.name)))
        code = await outcome(ann, row.name)
        name = "protocol.command.succeeded" if code == "success" else "protocol.command.failed"
        expected.append((name, row.name, code))
    assert {code for name, _, code in expected if name.endswith("denied")} == {
        "incompatible_protocol",
        "permission_denied",
    }
    assert "internal_error" not in {code for _, _, code in expected}

    assert sorted(await host.audited()) == sorted(expected)
    auditor = await host.client(identity("eve", scopes=AUDITOR))
    records = await read(auditor)
    assert [record["sequence"] for record in records] == list(range(1, len(records) + 1))
    assert {frozenset(record["payload"]) for record in records} == {frozenset({"method", "outcome"})}
    verdict = await in_db(audit.verify)
    assert (verdict.broken_at, verdict.count >= len(expected)) == (None, True)
