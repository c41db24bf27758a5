"""The measurements: what is done, how often, and what becomes a figure.

Owns: the order of one round and the sizes of everything in it. Does not own: how a client times a call (`client`), the
floors (`floors`), the processes (`processes`), or how figures are shown (`report`).

A round starts the server twice: once for what it holds at rest, once for how soon it works. Floors are taken between the
figures they belong to, so that both see the machine in the same state.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from bench import floors
from bench.client import COMPLETED, Desk, Session, Turn, close_all
from bench.floors import Echo, ModelFloor
from bench.processes import CHUNKS, START_SECONDS, Installation, cpu_seconds, memory
from bench.report import Report, Target
from bench.wire import BenchError, Peer

T = TypeVar("T")

MB = 1_000_000
KB = 1000
MS = 1000

RETRY_SECONDS = 0.005
"""How often a starting server is asked whether it is there."""
REST_SECONDS = 0.5
REST_SHARE = 0.1
"""A started server is at rest when its processes use less than this share of one core for so long."""

SHORT_HISTORY = 200
LONG_HISTORY = 20_000
REPLAYED_EVENTS = 10_000
TAIL = 50
"""Entries that a client shows at first."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything one round does."""

    warm_turns: int = 10
    creates: int = 30
    turns: int = 205
    sessions_at_once: int = 16
    turns_each: int = 8
    attaches: int = 20
    replays: int = 3
    tails: int = 40
    subscribers: int = 50
    subscribed_turns: int = 10
    idle_attachments: int = 500

    @classmethod
    def quick(cls) -> Sizes:
        """Return sizes for a look rather than a result."""
        return cls(
            creates=10,
            turns=60,
            turns_each=4,
            attaches=8,
            replays=1,
            tails=10,
            subscribed_turns=4,
            idle_attachments=100,
        )


class Benchmark:
    """Rounds of measurements on one installation."""

    def __init__(
        self, installation: Installation, sizes: Sizes, report: Report, say: Callable[[str], None]
    ) -> None:
        """Measure with `sizes` into `report`; `say` tells somebody who waits what goes on."""
        self._installation = installation
        self._sizes = sizes
        self._report = report
        self._say = say
        self._short = self._long = ""
        """The two sessions of known lengths."""
        self._long_head = 0

    async def run(self, rounds: int) -> None:
        """Prepare once, then measure `rounds` times."""
        self._say("preparing two long sessions")
        await self._prepare()
        for number in range(1, rounds + 1):
            self._say(f"round {number} of {rounds}: at rest")
            await self._at_rest()
            self._say(f"round {number} of {rounds}: from a start to a turn")
            desk = await self._from_start_to_turn()
            echo = Echo(self._installation)
            model = ModelFloor(self._installation.model_url)
            try:
                await self._under_load(desk, echo, model)
            finally:
                await model.close()
                echo.stop()
            self._installation.stop()

    # Starts

    async def _prepare(self) -> None:
        desk = await self._started()
        async with await desk.connect() as peer:
            short, long = await desk.create(peer), await desk.create(peer)
            await short.turn()
            self._grow(short.id, SHORT_HISTORY - 3)
            self._grow(long.id, LONG_HISTORY - 1)
            self._short, self._long = short.id, long.id
        async with await desk.connect() as peer:
            self._long_head = (await desk.attach(peer, long.id)).latest
        self._installation.stop()

    def _grow(self, session_id: str, entries: int) -> None:
        self._installation.run("-m", "bench.store", "grow", session_id, str(entries)).finish()

    async def _started(self) -> Desk:
        self._installation.start()
        desk, peer = await self._answering()
        await peer.close()
        return desk

    async def _answering(self) -> tuple[Desk, Peer]:
        """Ask the starting server until it answers."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                desk = Desk(self._installation.port, self._installation.token)
                return desk, await desk.connect()
            except (OSError, BenchError) as error:
                if time.monotonic() > deadline:
                    raise BenchError(f"the server did not start: {self._installation.errors()}") from error
                await asyncio.sleep(RETRY_SECONDS)

    async def _at_rest(self) -> None:
        begun = self._installation.start()
        desk, peer = await self._answering()
        self._report.add(
            "start → first answered request", time.perf_counter() - begun, "s", target=Target("under", 3)
        )
        await peer.close()
        await self._until_rest()
        held = memory(self._installation.family)
        echo = Echo(self._installation)
        bare, bare_each = await echo.memory_per_client(self._sizes.idle_attachments)
        echo.stop()
        self._report.add(
            "memory at start, all processes",
            held.best / MB,
            "MB",
            target=Target("under", 250),
            floor=("echo server alone", bare.best / MB),
        )
        self._report.add("the same, shared pages counted in each", held.rss / MB, "MB")
        each = await self._idle_attachments(desk)
        self._report.add(
            "memory per idle attachment",
            each / KB,
            "kB",
            target=Target("under", 100),
            floor=("echo connection", bare_each / KB),
        )
        self._installation.stop()

    async def _until_rest(self) -> None:
        """Wait until every process has done what it does at a start: the worker is the last to be ready."""
        family = self._installation.family
        used, busy = cpu_seconds(family), True
        while busy or len(family) != len(self._installation.family):
            await asyncio.sleep(REST_SECONDS)
            family, before = self._installation.family, used
            used = cpu_seconds(family)
            busy = used - before > REST_SHARE * REST_SECONDS

    async def _idle_attachments(self, desk: Desk) -> float:
        """Return the bytes that a connected client with one attachment adds to all processes."""
        peers = [await desk.connect() for _ in range(10)]
        sessions = [await desk.create(peer) for peer in peers]
        family = self._installation.family
        before = memory(family)
        for number in range(self._sizes.idle_attachments):
            peers.append(await desk.connect())
            await desk.attach(peers[-1], sessions[number % len(sessions)].id)
        after = memory(family)
        await close_all(peers)
        return (after.best - before.best) / self._sizes.idle_attachments

    async def _from_start_to_turn(self) -> Desk:
        begun = self._installation.start()
        desk, peer = await self._answering()
        async with peer:
            session = await desk.attach(peer, self._short)
            await session.turn()
            self._report.add(
                "restart → first completed turn", time.perf_counter() - begun, "s", target=Target("under", 4)
            )
        return desk

    # Load

    async def _under_load(self, desk: Desk, echo: Echo, model: ModelFloor) -> None:
        async with await desk.connect() as peer:
            warm = await desk.create(peer)
            for _ in range(self._sizes.warm_turns):
                await warm.turn()
            await self._creates(desk, peer)
        await self._turns(desk, model)
        await self._at_once(desk, model)
        await self._subscribers(desk, echo)
        await self._reads(desk, echo)

    async def _creates(self, desk: Desk, peer: Peer) -> None:
        bare = floors.transaction(self._installation)
        times = [await desk.timed_create(peer) for _ in range(self._sizes.creates)]
        self._report.add(
            "create",
            median(times) * MS,
            "ms",
            target=Target("under", 5),
            floor=("3-statement transaction", bare * MS),
        )

    async def _turns(self, desk: Desk, model: ModelFloor) -> None:
        async with await desk.connect() as peer:
            session = await desk.create(peer)
            direct = await model.asked()
            family = self._installation.family
            used = cpu_seconds(family)
            turns = [await session.turn() for _ in range(self._sizes.turns)]
            used = cpu_seconds(family) - used
        self._report_turns(turns, direct)
        self._report.add(
            "server CPU per turn",
            used / len(turns) * MS,
            "ms",
            target=Target("under", 22),
            floor=("CPU of asking the model", await model.cpu() * MS),
        )
        # The model's own cost grows with the history that it is sent, so the floor grows too.
        early, late = await model.asked(turns=10), await model.asked(turns=self._sizes.turns - 5)
        self._report.add(
            f"turn {self._sizes.turns - 5} ÷ turn 10",
            _around(turns, self._sizes.turns - 5) / _around(turns, 10),
            "",
            target=Target("at most", 1.25),
            floor=("model alone", late.completed / early.completed),
        )

    def _report_turns(self, turns: list[Turn], direct: floors.Asked) -> None:
        add = self._report.add
        first_deltas = [turn.first_delta for turn in turns if turn.first_delta is not None]
        add("deltas that arrived", sum(turn.deltas for turn in turns) / (len(turns) * CHUNKS), "")
        add("send → answer", median(turn.answered for turn in turns) * MS, "ms")
        add(
            "send → first delta",
            median(first_deltas) * MS,
            "ms",
            target=Target("under", 15),
            floor=("model's first delta", direct.first_delta * MS),
        )
        add(
            "send → completed",
            median(turn.completed for turn in turns) * MS,
            "ms",
            target=Target("under", 25),
            floor=("model's reply", direct.completed * MS),
        )

    async def _at_once(self, desk: Desk, model: ModelFloor) -> None:
        count, each = self._sizes.sessions_at_once, self._sizes.turns_each
        peers = [await desk.connect() for _ in range(count)]
        sessions = [await desk.create(peer) for peer in peers]
        direct = await model.rate(count, each)
        family = self._installation.family
        used, begun = cpu_seconds(family), time.perf_counter()

        async def talk(session: Session) -> None:
            for _ in range(each):
                await session.turn()

        await asyncio.gather(*map(talk, sessions))
        took, used = time.perf_counter() - begun, cpu_seconds(family) - used
        await close_all(peers)
        self._report.add(
            f"{count} sessions at once",
            count * each / took,
            "turns/s",
            target=Target("over", 60),
            floor=("model alone", direct),
        )
        self._report.add("server CPU per turn, at once", used / (count * each) * MS, "ms")

    async def _subscribers(self, desk: Desk, echo: Echo) -> None:
        count = self._sizes.subscribers
        async with await desk.connect() as peer:
            session = await desk.create(peer)
            peers = [await desk.connect() for _ in range(count)]
            for subscriber in peers:
                await desk.attach(subscriber, session.id)
            await session.turn()
            spreads = []
            for _ in range(self._sizes.subscribed_turns):
                watches = [subscriber.watch(COMPLETED) for subscriber in peers]
                await session.turn()
                arrived = [told.at for told in await asyncio.gather(*watches)]
                spreads.append(max(arrived) - min(arrived))
                for subscriber in peers:
                    subscriber.told.clear()
            await close_all(peers)
        self._report.add(
            f"completed at the last of {count} after the first",
            median(spreads) * MS,
            "ms",
            target=Target("under", 15),
            floor=("echo to as many", await echo.spread(count) * MS),
        )

    async def _reads(self, desk: Desk, echo: Echo) -> None:
        async with await desk.connect() as peer:
            attaches = await _repeat(lambda: desk.timed_attach(peer, self._short), self._sizes.attaches)
            self._report.add(
                f"attach, snapshot of {SHORT_HISTORY} entries ({attaches[-1][1] // KB} kB)",
                median(one for one, _ in attaches) * MS,
                "ms",
                floor=("echo", await echo.round_trip() * MS),
            )
        async with await desk.connect() as peer:
            after = self._long_head - REPLAYED_EVENTS
            replays = await _repeat(lambda: desk.timed_attach(peer, self._long, after), self._sizes.replays)
            size = replays[-1][1]
            self._report.add(
                f"replay of {REPLAYED_EVENTS} events ({size / MB:.1f} MB)",
                median(one for one, _ in replays) * MS,
                "ms",
                floor=("echo of as many bytes", await echo.round_trip(size, 5) * MS),
            )
        async with await desk.connect() as peer:
            short, long = [], []
            for _ in range(self._sizes.tails):
                short.append(await desk.timed_tail(peer, self._short, TAIL))
                long.append(await desk.timed_tail(peer, self._long, TAIL))
        trip = await echo.round_trip() * MS
        self._report.add(
            f"newest {TAIL} of {SHORT_HISTORY} entries", median(short) * MS, "ms", floor=("echo", trip)
        )
        self._report.add(
            f"newest {TAIL} of {LONG_HISTORY} entries", median(long) * MS, "ms", floor=("echo", trip)
        )
        self._report.add(
            "the second ÷ the first", median(long) / median(short), "", target=Target("at most", 1.25)
        )


def _around(turns: list[Turn], number: int) -> float:
    """Return the median length of the ten turns around turn `number`."""
    return median(turn.completed for turn in turns[number - 5 : number + 5])


async def _repeat(action: Callable[[], Awaitable[T]], count: int) -> list[T]:
    return [await action() for _ in range(count)]
