"""Two web processes and two workers on one PostgreSQL and one Valkey: which of them serves is nobody's business.

Behaviour 1.4, 12.2, 14.4. The processes beat and expire as they do where nobody has set anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from pytest_django.plugin import DjangoDbBlocker

from ochat_client import new_key
from sessions_app.db import in_db
from sessions_app.models import Attachment, Connection, Operation
from tests.conformance import fixture
from tests.conformance.peers import Hold, Peer, answered, delta, history, spec
from tests.conformance.sites import Processes, SocketDoor
from tests.conformance.test_a_envelope import INITIALIZE
from tests.e2e.posting import Events, Post, events, told
from tests.support import databases
from tests.support.model_scripts import Reply, Text, Wait
from tests.support.model_servers import ModelServer
from tests.support.postgres import Postgres
from tests.support.processes import Installation, Process

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SWEPT_WITHIN_SECONDS = 30.0
"""What a dead process held is ended so soon, with every setting as it is shipped."""


class Pair:
    """Two web processes and two workers; a test that kills one starts another in its place."""

    def __init__(self, first: Installation, second: Installation) -> None:
        self._processes = Processes(first)
        self._installations = first, second
        self.ports = first.port, second.port
        self.serves = [self._processes.serve, second.start_serve()]
        self.workers = [self._processes.worker]
        self._await_ready(1)
        self.start_worker()

    @property
    def database_url(self) -> str:
        """See `Processes`."""
        return self._processes.database_url

    def restart_serve(self, number: int) -> None:
        """Start a web process in place of one that is gone, at its port."""
        self.serves[number] = self._installations[number].start_serve()

    def start_worker(self) -> None:
        """Start one more worker and wait until it is ready."""
        ready = self._ready()
        self.workers.append(self._installations[1].start("worker"))
        self._await_ready(ready + 1)

    async def holder(self, hold: Hold) -> Process:
        """Return the worker that runs the turn of a session."""
        found = Operation.objects.filter(session=hold.session_id).exclude(process=None)
        pid = await in_db(found.values_list("process__pid", flat=True).get)
        return next(worker for worker in self.workers if worker.pid == pid)

    def _await_ready(self, count: int) -> None:
        self.workers[-1].until(lambda: self._ready() >= count, "the worker is ready")

    def _ready(self) -> int:
        log = self._installations[0].data_dir / "worker.log"
        return log.read_text(encoding="utf-8").count("worker.ready")


@pytest.fixture(scope="module")
def pair(
    postgres: Postgres, model_server: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """The processes, started once."""
    data_dir = tmp_path_factory.mktemp("pair")
    data_dir.chmod(0o700)
    fixture.write(data_dir, {})
    variables = {**model_server.env(), "OCHAT_DATABASE_URL": postgres.new_database()}
    installations = Installation(data_dir, variables), Installation(data_dir, variables)
    try:
        yield Pair(*installations)
    finally:
        for installation in installations:
            installation.close()


@pytest.fixture
def pair_store(pair: Pair, django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Let this process look into their store."""
    with django_db_blocker.unblock(), databases.using(pair.database_url):
        yield


@pytest.fixture
async def peers(pair: Pair, pair_store: None, model_server: ModelServer) -> AsyncIterator[tuple[Peer, Peer]]:
    """A client at either web process, both of the same principal."""
    model_server.reset()
    doors = [SocketDoor(port) for port in pair.ports]
    try:
        first, second = [await door.peer() for door in doors]
        yield first, second
        for door in doors:
            await door.check_laws()
    finally:
        for door in doors:
            await door.close()


async def _follow(client: Post, ports: tuple[int, int], session_id: str, at: int) -> tuple[Events, int]:
    """Attach by the first process and stream at `at`; return the stream and the sequence that is due."""
    named = {"session_id": session_id, "requested_mode": "read_only", "subscribe": True}
    made = await client.ask(ports[0], "session.attach", idempotency_key=new_key(), **named)
    stream = await events(ports[at], client.id)
    assert await stream.opened() == 200
    return stream, made["latest_event_sequence"] + 1


async def _half_said(model: ModelServer, hold: Hold, gate: str) -> None:
    """Begin a turn, and let its model fall silent in the middle of what it says."""
    model.answer(Reply(Text("Half ", "said", Wait(gate), ", then all")))
    await hold.say("go")
    await hold.until_text("Half said")


async def _check_goes_on(model: ModelServer, peer: Peer) -> None:
    """Check that a session which nothing has befallen works from beginning to end."""
    model.answer(Reply(Text("All is well.")))
    hold = await peer.create(start=True)
    await hold.say("again")
    assert (await hold.until_ended()).kind == "operation.completed"
    assert history(await hold.snapshot())[-2:] == ["user: again", "assistant: All is well."]


async def test_an_http_connection_is_used_at_both(pair: Pair, peers: tuple[Peer, Peer]) -> None:
    """Opened at one, called and streamed at the other, and the other way round; nothing is told twice or left out."""
    client = Post()
    await client.ask(pair.ports[0], "protocol.initialize", **INITIALIZE)
    opened = client.id
    made = await client.ask(
        pair.ports[1],
        "session.create",
        spec=msgspec.to_builtins(spec()),
        subscribe=False,
        idempotency_key=new_key(),
    )
    hold = await peers[0].attach(made["session"]["id"])
    stream, due = await _follow(client, pair.ports, hold.session_id, at=1)
    due = await told(hold, stream, due)
    for port in pair.ports:
        await stream.close()
        stream = await events(port, client.id)
        assert await stream.opened() == 200
        due = await told(hold, stream, due)
        assert (await client.ask(port, "protocol.ping", payload=port))["payload"] == port
    await stream.close()
    assert client.id == opened


async def test_cursors_go_on_at_the_other(model_server: ModelServer, peers: tuple[Peer, Peer]) -> None:
    """Each page of a list, and each window of a history, is asked of the process that did not give the one before."""
    labels = {"of": new_key()}
    made = {(await peers[0].client.create_session(spec(labels=labels))).session.id for _ in range(5)}
    found: list[str] = []
    params: dict[str, Any] = {"labels": labels, "limit": 1}
    for number in range(len(made)):
        page = await peers[number % 2].call("session.list", **params)
        found += [item["id"] for item in page["items"]]
        params["cursor"] = page.get("next_cursor")
    assert sorted(found) == sorted(made)
    assert params["cursor"] is None

    model_server.answer(*(Reply(Text(f"answer {number}")) for number in range(3)))
    hold = await peers[0].create(start=True)
    for number in range(3):
        await hold.say(f"question {number}")
        await hold.until_ended()
    whole = await peers[0].call("session.get", session_id=hold.session_id)
    entries: list[Any] = []
    request: dict[str, Any] = {"position": "tail", "tail_count": 2}
    for number in range(len(whole["canonical_history"]["entries"])):
        wanted = {"limit": 2, "effective": False, **request}
        peer = peers[number % 2]
        window = (await peer.call("session.get", session_id=hold.session_id, history=wanted))[
            "canonical_history"
        ]
        entries[:0] = window["entries"]
        if window["reached_start"]:
            break
        request = {"position": "cursor", "window_cursor": window["previous_cursor"]}
    assert entries == whole["canonical_history"]["entries"]


async def test_what_one_commits_is_seen_at_the_other(
    model_server: ModelServer, peers: tuple[Peer, Peer]
) -> None:
    """What is said at one begins, streams and ends at the other, and both end up with the same session."""
    holds = [await peers[0].create(start=True)]
    holds.append(await peers[1].attach(holds[0].session_id))
    for number, writer in enumerate(holds):
        reader = holds[1 - number]
        seen = len(reader.lives)
        gate = f"seen {number}"
        model_server.answer(Reply(Text("Half ", "said", Wait(gate), ", then all")))
        await writer.say("go")
        await _until_said(reader, seen, "Half said")
        model_server.open(gate)
        assert (await reader.until_ended()).kind == "operation.completed"
        assert _said(reader, seen) == "Half said, then all"
        await writer.until_ended()
    assert history(await holds[0].snapshot()) == history(await holds[1].snapshot())


def _said(hold: Hold, after: int) -> str:
    return "".join(map(delta, hold.lives[after:]))


async def _until_said(hold: Hold, after: int, text: str) -> None:
    await hold.until(lambda: _said(hold, after) == text)


async def test_a_web_process_that_dies(
    pair: Pair, model_server: ModelServer, peers: tuple[Peer, Peer]
) -> None:
    """What it held is detached, the other goes on, turns go on; an HTTP connection that it streamed goes on as well."""
    hold = await peers[1].create(start=True)
    lost = await peers[0].attach(hold.session_id)
    client = Post()
    await client.ask(pair.ports[0], "protocol.initialize", **INITIALIZE)
    stream, _ = await _follow(client, pair.ports, hold.session_id, at=0)
    held = Attachment.objects.filter(session_id=hold.session_id)
    assert await in_db(held.count) == 3
    await _half_said(model_server, hold, "after the sweep")
    worker = await pair.holder(hold)

    pair.serves[0].kill()
    lost.leave()
    await _check_goes_on(model_server, peers[1])
    await answered(
        lambda: in_db(lambda: list(held.values_list("id", flat=True)) == [hold.attachment_id]),
        "what the dead process held is detached",
        SWEPT_WITHIN_SECONDS,
    )
    await stream.close()
    assert await pair.holder(hold) is worker
    model_server.open("after the sweep")
    assert (await hold.until_ended()).kind == "operation.completed"
    assert hold.streamed() == "Half said, then all"
    assert not model_server.requests[0].hung_up
    await hold.check_law()

    assert (await client.ask(pair.ports[1], "protocol.ping", payload=1))["payload"] == 1
    assert await in_db(Connection.objects.filter(id=client.id, process=None).exists)
    pair.restart_serve(0)
    stream, due = await _follow(client, pair.ports, hold.session_id, at=0)
    await told(hold, stream, due)
    await stream.close()


async def test_a_worker_that_dies(pair: Pair, model_server: ModelServer, peers: tuple[Peer, Peer]) -> None:
    """Its turn ends as interrupted; meanwhile and afterwards the other one runs what there is."""
    hold = await peers[0].create(start=True)
    await _half_said(model_server, hold, "never")
    dead = await pair.holder(hold)

    dead.kill()
    pair.workers.remove(dead)
    await _check_goes_on(model_server, peers[1])
    assert (await hold.until_ended()).kind == "operation.interrupted"
    operation = await in_db(Operation.objects.filter(session=hold.session_id).get)
    assert (operation.state, operation.interruption) == ("interrupted", "worker_lost")
    heard = len(hold.lives)
    model_server.answer(Reply(Text("Again", Wait("held"))))
    await hold.say("again")
    await _until_said(hold, heard, "Again")
    assert [await pair.holder(hold)] == pair.workers
    model_server.open("held")
    assert (await hold.until_ended()).kind == "operation.completed"
    pair.start_worker()
