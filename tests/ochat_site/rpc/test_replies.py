"""No reply is lost without its connection closing, whatever a client takes when (behaviour 1.4, 8.6)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ochat_site.rpc.connection import Connection, ConnectionServices
from ochat_site.rpc.feed import FeedHub
from ochat_site.rpc.outbox import Closing
from permissions_app.principals import Identity
from sessions_app import limits
from sessions_app.records import Principal
from sessions_app.views import FULL
from tests.support.feed_doubles import (
    CountingDialect,
    FakeLog,
    FakeSocket,
    FakeWakes,
    live,
    sequences,
    settle,
)

IDENTITY = Identity(Principal(id="pri_a", authentication_kind="http.static_bearer", scopes=(), attributes={}))
SESSION = "ses_a"

Step = tuple[str, int]

sizes = st.sampled_from([10, 1000, 60_000, 3 * limits.MIB, limits.MAX_FRAME_BYTES - 100])
steps: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("call"), sizes),
    st.tuples(st.just("call"), sizes),
    st.tuples(st.just("commit"), st.sampled_from([1, 3, 40])),
    st.tuples(st.just("stream"), st.sampled_from([1, 20])),
    st.tuples(st.just("take"), st.sampled_from([1, 70_000, 40 * limits.MIB])),
)


class Client:
    """A client that takes what it is sent when the history says so, and keeps count of what it asked."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.hub = FeedHub(self.log, FakeWakes())
        self.socket = FakeSocket(reads=False)
        services = ConnectionServices(
            handle=self._handle, hub=self.hub, dialect=CountingDialect(), on_close=self._on_close
        )
        self.connection = Connection("con_a", IDENTITY, self.socket, services)
        self.socket.receiver = self.connection
        self.asked = 0
        self.answered: list[bytes] = []
        self._number = 0

    async def _handle(self, connection: Connection, body: bytes) -> bytes:
        number, size = body.split()
        if number == b"0":
            connection.open_attachment("att_a", SESSION, "read_only", view=FULL, after=0)
        answer = b"reply %b " % number + bytes(int(size))
        self.answered.append(answer)
        return answer

    async def _on_close(self, _connection: Connection) -> None: ...

    def do(self, what: str, how: int) -> None:
        if what == "call":
            self.connection.received(b"%d %d" % (self.asked, how))
            self.asked += 1
        elif what == "commit":
            for _ in range(how):
                self.hub.wake(SESSION, self.log.commit(SESSION))
        elif what == "stream":
            events = [
                live("opn_a", self._number + each, self.log.head(SESSION)) for each in range(1, how + 1)
            ]
            self._number += how
            self.hub.live(SESSION, events)
        else:
            self.socket.take(how)

    def replies(self) -> list[bytes]:
        return [body for body in self.socket.sent if body.startswith(b"reply ")]


async def play(history: Sequence[Step]) -> Client:
    client = Client()
    client.do("call", 10)
    await settle()
    client.hub.joined(SESSION)
    for what, how in history:
        client.do(what, how)
        await settle()
    while client.socket.closed is None and client.socket.buffered():
        client.socket.take()
        await settle()
    return client


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(steps, min_size=5, max_size=40))
def test_every_reply_comes_in_its_turn_or_the_connection_ends(history: list[Step]) -> None:
    client = asyncio.run(play(history))
    assert client.socket.closed in (None, Closing.SLOW)
    replies = client.replies()
    assert replies == client.answered[: len(replies)]
    if client.socket.closed is None:
        assert len(replies) == client.asked
        assert sequences(client.socket) == list(range(1, client.log.head(SESSION) + 1))
