"""Whatever happens in whatever order: no durable event is missed, doubled or out of order, no live one misplaced."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ochat_site.rpc.feed import FeedHub
from ochat_site.rpc.live import TERMINAL_KINDS
from ochat_site.rpc.outbox import Outbox
from ochat_site.rpc.session_feed import Subscription
from sessions_app import limits
from sessions_app.limits import ServerSettings
from sessions_app.views import FULL, TRANSCRIPT
from tests.support.feed_doubles import (
    CountingDialect,
    FakeLog,
    FakeSocket,
    FakeWakes,
    live,
    sequences,
    settle,
    told,
)

SESSION = "ses_a"


@dataclass
class Client:
    socket: FakeSocket
    subscription: Subscription
    start: int
    slow: bool = False


@dataclass
class Run:
    """One history: a session, its clients, and hints and live events that are under way."""

    log: FakeLog = field(default_factory=FakeLog)
    clients: list[Client] = field(default_factory=list)
    hints: list[int] = field(default_factory=list)
    streamed: list[bytes] = field(default_factory=list)
    operation: int = 0
    number: int = 0
    anchor: int = 0

    def __post_init__(self) -> None:
        self.hub = FeedHub(self.log, FakeWakes())
        self.dialect = CountingDialect()

    def attach(self, full_at: int, *, behind: int, powerful: bool) -> None:
        socket = FakeSocket(full_at, reads=full_at > 2000)
        outbox = Outbox(socket, lambda: None)
        socket.receiver = outbox
        start = max(0, self.log.head(SESSION) - behind)
        subscription = self.hub.subscribe(
            SESSION,
            start,
            outbox=outbox,
            view=FULL if powerful else TRANSCRIPT,
            dialect=self.dialect,
            max_event_bytes=None,
            on_slow=lambda: setattr(client, "slow", True),
        )
        client = Client(socket, subscription, start)
        self.clients.append(client)

    def commit(self, count: int) -> None:
        for _ in range(count):
            self.anchor = self.log.commit(SESSION)
        self.hints.append(self.anchor)

    def commit_unseen_by_the_worker(self) -> None:
        self.hints.append(self.log.commit(SESSION))

    def end_operation(self) -> None:
        self.log.commit(SESSION, "operation.completed", b'{"id":"opn_%d"}' % self.operation)
        self.hints.append(self.log.head(SESSION))
        self.operation += 1
        self.number = 0
        self.commit(1)

    def stream(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.streamed.append(live(f"opn_{self.operation}", self.number, self.anchor))

    def bring_hint(self, which: int) -> None:
        if self.hints:
            self.hub.wake(SESSION, self.hints[which % len(self.hints)])

    def bring_live(self, which: int) -> None:
        if self.streamed:
            self.hub.live(SESSION, [self.streamed[which % len(self.streamed)]])

    def bring_all_live(self) -> None:
        self.hub.live(SESSION, self.streamed)

    def some_client(self, which: int) -> Client | None:
        return self.clients[which % len(self.clients)] if self.clients else None

    def release(self, which: int) -> None:
        if client := self.some_client(which):
            client.subscription.release()

    def take(self, which: int, size: int) -> None:
        if client := self.some_client(which):
            client.socket.take(size)

    def detach(self, which: int) -> None:
        if client := self.some_client(which):
            client.subscription.close()

    async def finish(self) -> None:
        """Let everything that is open arrive: the look once a second, and sockets that take what they are handed."""
        for client in self.clients:
            client.subscription.release()
        self.hub.joined(SESSION)
        before: list[int] | None = None
        while before != (before := [len(client.socket.sent) for client in self.clients]):
            for client in self.clients:
                client.socket.take()
            await settle()

    def check(self) -> None:
        head = self.log.head(SESSION)
        ends = {
            f"opn_{event.payload[11:-2].decode()}": event.sequence
            for event in self.log.events.get(SESSION, [])
            if event.kind in TERMINAL_KINDS
        }
        for client in self.clients:
            seen = sequences(client.socket)
            assert seen == list(range(client.start + 1, client.start + 1 + len(seen)))
            if not client.subscription.closed:
                assert len(seen) == head - client.start
            place = client.start
            newest: dict[str, int] = {}
            for event in told(client.socket):
                if event.kind != "live":
                    place = event.sequence
                    continue
                assert client.subscription.view.security_read
                assert event.anchor <= place
                assert place < ends.get(event.operation, head + 1)
                assert newest.get(event.operation, 0) < event.number
                newest[event.operation] = event.number


Step = Callable[[Run], None]
which = st.integers(0, 9)
attach: st.SearchStrategy[Step] = st.builds(
    lambda full_at, behind, powerful: lambda run: run.attach(full_at, behind=behind, powerful=powerful),
    st.sampled_from([10_000, 10_000, 300, 50]),
    st.sampled_from([0, 0, 0, 3, 200]),
    st.sampled_from([True, True, False]),
)
commit: st.SearchStrategy[Step] = st.builds(
    lambda count: lambda run: run.commit(count), st.sampled_from([1, 1, 2, 5, 150])
)
stream: st.SearchStrategy[Step] = st.builds(lambda count: lambda run: run.stream(count), st.integers(1, 4))
bring_hint: st.SearchStrategy[Step] = st.builds(lambda nth: lambda run: run.bring_hint(-1 - nth), which)
bring_live: st.SearchStrategy[Step] = st.builds(lambda nth: lambda run: run.bring_live(-1 - nth), which)
release: st.SearchStrategy[Step] = st.builds(lambda nth: lambda run: run.release(nth), which)
take: st.SearchStrategy[Step] = st.builds(
    lambda nth, size: lambda run: run.take(nth, size), which, st.sampled_from([1, 100, 5000])
)
detach: st.SearchStrategy[Step] = st.builds(lambda nth: lambda run: run.detach(nth), which)
steps: st.SearchStrategy[Step] = st.one_of(
    attach,
    commit,
    commit,
    stream,
    stream,
    bring_hint,
    bring_live,
    bring_live,
    st.just(Run.bring_all_live),
    st.just(Run.commit_unseen_by_the_worker),
    st.just(Run.end_operation),
    release,
    take,
    detach,
)
pauses = st.sampled_from([0, 0, 1, 2, 3, 30])


histories = given(
    st.lists(attach, min_size=2, max_size=4),
    st.lists(st.tuples(steps, pauses), min_size=25, max_size=60),
    st.sampled_from([3, 100_000]),
)
slowly = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def play(attaches: list[Step], history: list[tuple[Step, int]], capacity: int) -> None:
    async def play() -> None:
        run = Run()
        run.commit(5)
        for step in attaches:
            step(run)
        for client in run.clients[1:]:
            client.subscription.release()
        for step, pause in history:
            step(run)
            for _ in range(pause):
                await asyncio.sleep(0)
        await run.finish()
        run.check()

    with limits.using(ServerSettings(subscriber_queue_capacity=capacity)):
        asyncio.run(play())


@settings(slowly, max_examples=40)
@histories
def test_any_history(attaches: list[Step], history: list[tuple[Step, int]], capacity: int) -> None:
    play(attaches, history, capacity)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(slowly, max_examples=1500)
@histories
def test_many_histories(attaches: list[Step], history: list[tuple[Step, int]], capacity: int) -> None:
    play(attaches, history, capacity)
