"""Cost follows the work asked for, not the age of the session (design 1.8): statements are counted, time never is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sessions_app import clock, history, ids, queries, rows
from sessions_app.commands import operations
from sessions_app.commands.operations import Ending
from sessions_app.models import DeferredEntry, HistoryEntry, Session, SessionEvent
from sessions_app.records import HistoryWindowRequestBefore, HistoryWindowRequestTail
from sessions_app.views import FULL
from tests.support.world import Client, World, assistant

YOUNG, OLD = 10, 5000
"""Entries of a history; the log has as many events."""


@contextmanager
def counted() -> Iterator[list[str]]:
    """Fill the yielded list with the statements of the block, savepoints left out."""
    statements: list[str] = []
    with CaptureQueriesContext(connection) as asked:
        yield statements
    statements += [
        query["sql"] for query in asked if not query["sql"].startswith(("SAVEPOINT", "RELEASE", "ROLLBACK"))
    ]


def aged(world: World, entries: int) -> Client:
    """Open an idle session with a history and a log of this length."""
    client = world.idle()
    session = world.session(client.session_id)
    message = history.user_message("hello")
    rows.insert(
        [
            HistoryEntry(
                session=session,
                position=number,
                number=number,
                role="user",
                kind="message",
                payload=message.payload,
                size=message.size,
                initial=True,
            )
            for number in range(1, entries)
        ]
    )
    rows.insert(
        [
            SessionEvent(
                session=session,
                sequence=number,
                revision=session.revision,
                at=clock.now(),
                kind="session.error",
                payload=b"{}",
            )
            for number in range(2, entries + 1)
        ]
    )
    Session.objects.filter(id=session.id).update(
        next_position=entries, next_history=entries, latest_sequence=entries
    )
    return client


def load(client: Client) -> Session:
    session = queries.load(client.session_id)
    assert session is not None
    return session


def send(world: World, client: Client) -> None:
    world.send(client)


def attach(world: World, client: Client) -> None:
    world.attach(client.session_id, by=client)


def tail_window(_world: World, client: Client) -> None:
    request = HistoryWindowRequestTail(tail_count=5, limit=5, effective=False)
    queries.snapshot(load(client), FULL, str, request)


def page_before(_world: World, client: Client) -> None:
    anchor = ids.history_id(client.session_id, 7)
    request = HistoryWindowRequestBefore(history_id=anchor, limit=5, effective=False)
    queries.snapshot(load(client), FULL, str, request)


def replay_of_the_last_events(_world: World, client: Client) -> None:
    session = load(client)
    queries.replay(session, session.latest_sequence - 3, FULL, str)


def turn(world: World, client: Client) -> None:
    claim = world.turn(client)
    world.propose(claim, "run")
    world.advance(claim, (0, "out"))
    world.finish(claim, "done")


def turn_with_a_deferred_message(world: World, client: Client) -> None:
    claim = world.turn(client)
    world.send(client)
    world.propose(claim, "deny")
    world.finish(claim, "done")


def interrupted_turn(world: World, client: Client) -> None:
    claim = world.turn(client)
    world.propose(claim, "run")
    half = operations.StreamedItem(claim.first_number, "m", "half")
    world.finish(claim, outcome="interrupted", streamed=[half])


def stop(world: World, client: Client) -> None:
    world.stop(client)


Act = Callable[[World, Client], None]
ACTS: list[Act] = [
    attach,
    tail_window,
    page_before,
    replay_of_the_last_events,
    turn,
    turn_with_a_deferred_message,
    interrupted_turn,
    send,
    stop,
]
"""In an order in which each finds the session as it needs it."""


def test_an_old_session_costs_what_a_young_one_does(world: World) -> None:
    """1.8: "a tail window, a send or an attach costs the same after 200,000 entries as after 200"."""
    world.break_laws()
    young, old = aged(world, YOUNG), aged(world, OLD)
    costs: dict[str, list[int]] = {}
    for act in ACTS:
        for client in (young, old):
            with counted() as statements:
                act(world, client)
            costs.setdefault(act.__name__, []).append(len(statements))
    assert {name: cost for name, cost in costs.items() if cost[0] != cost[1]} == {}


@pytest.mark.parametrize("act", [send, attach, tail_window, turn])
def test_no_statement_reads_a_whole_history(world: World, act: Act) -> None:
    """Design 10: "Cost per turn must not grow with the session": what is read of a history or a log is bounded or by its key."""
    world.break_laws()
    client = aged(world, YOUNG)
    with counted() as statements:
        act(world, client)
    for statement in statements:
        reads = statement.startswith("SELECT") and any(
            model._meta.db_table in statement for model in (HistoryEntry, SessionEvent)
        )
        assert not reads or "LIMIT" in statement, statement


@pytest.mark.parametrize("many", [1, 12])
def test_parallel_calls_cost_a_bounded_number_of_statements_each(world: World, many: int) -> None:
    """6.4: a step writes the rows that moved: one call that returns costs the same beside eleven that run."""
    client = world.idle()
    claim = world.turn(client)
    world.propose(claim, *["run"] * many)
    with counted() as statements:
        world.advance(claim, (many - 1, "out"))
    assert len([one for one in statements if "toolcall" in one and one.startswith("UPDATE")]) == 1


@pytest.mark.parametrize("many", [1, 20])
def test_entries_are_stored_in_one_statement(world: World, many: int) -> None:
    """6.3: adoption of a queue, and the items of a reply, are one insert, however many there are."""
    client = world.idle()
    claim = world.turn(client)
    for _ in range(many):
        world.send(client)
    with counted() as statements:
        world.finish(claim, entries=[assistant(str(number)) for number in range(many)])
    inserts = [one for one in statements if one.startswith("INSERT") and HistoryEntry._meta.db_table in one]
    assert len(inserts) == 2, "the items of the reply, and the adopted messages"
    deletes = [one for one in statements if one.startswith("DELETE") and DeferredEntry._meta.db_table in one]
    assert len(deletes) == 1


@pytest.mark.parametrize("many", [1, 6])
def test_a_proposal_is_two_statements_beside_its_decisions(world: World, many: int) -> None:
    """The calls of a reply are inserted together and read back together."""
    client = world.idle()
    claim = world.turn(client)
    names = ["unheard_of"] * many
    with counted() as statements:
        world.propose(claim, *names)
    touching = [
        one for one in statements if "toolcall" in one and "COUNT" not in one
    ]  # which is the test's own
    assert len([one for one in touching if one.startswith("INSERT")]) == 1
    assert len([one for one in touching if one.startswith("SELECT")]) == 1


def test_a_send_in_figures(world: World) -> None:
    """What the hot path asks of the store, so that one statement more is a decision and not an accident."""
    client = world.idle()
    with counted() as statements:
        world.send(client)
    kinds = [
        statement.split('"')[0].strip() + " " + statement.split('"')[1]
        for statement in statements
        if '"' in statement
    ]
    assert sorted(kinds) == sorted(
        [
            "INSERT INTO permissions_app_auditrecord",
            "INSERT INTO sessions_app_historyentry",
            "INSERT INTO sessions_app_operation",
            "INSERT INTO sessions_app_receipt",
            "INSERT INTO sessions_app_sessionevent",
            "SELECT id",  # the session
            "SELECT id",  # its attachment
            "SELECT id",  # the receipt
            "UPDATE sessions_app_session",
        ]
    )


def test_ending_needs_no_calls_where_there_were_none(world: World) -> None:
    client = world.idle()
    claim = world.turn(client)
    with counted() as statements:
        operations.finish(claim, Ending("completed", streamed=()))
    assert not [one for one in statements if "toolcall" in one]
