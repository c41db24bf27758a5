"""What a set of scopes sees of each kind of event, the same on every path (behaviour 8.7)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ochat_site.dialects.ochat1.events import Notifications
from permissions_app.principals import identity
from permissions_app.scopes import caller_for
from sessions_app import ledger
from sessions_app.callers import Connected, system
from sessions_app.db import in_db
from sessions_app.encoding import encode
from sessions_app.events import PAYLOADS, EventKind
from sessions_app.projection import project_event
from sessions_app.records import Scope
from sessions_app.views import View
from tests.golden.contract import EXAMPLES
from tests.support.serving import Host
from tests.support.serving import identity as somebody
from tests.support.world import World

ALL: tuple[Scope, ...] = get_args(Scope)
COUNTING: tuple[Scope, ...] = ("security.read", "grant.manage", "session.message.send")
AT = datetime(2030, 1, 1, tzinfo=UTC)


def view_of(scopes: Iterable[str]) -> View:
    """The view by which a principal with these scopes reads."""
    who = identity("pri_one", "http.static_bearer", scopes)
    return caller_for(who, Connected("con_one")).view


def expected(kind: str, scopes: frozenset[str]) -> str:
    """The table of behaviour 8.7."""
    asked = {
        "permission.requested": "security.read",
        "permission.resolved": "security.read",
        "moderator.notification": "security.read",
        "grant.created": "grant.manage",
        "grant.revoked": "grant.manage",
        "job.state_changed": "session.message.send",
        "schedule.created": "session.message.send",
        "schedule.state_changed": "session.message.send",
        "schedule.cancelled": "session.message.send",
    }.get(kind)
    if asked is not None and asked not in scopes:
        return "hidden"
    return "full" if "security.read" in scopes else "redacted"


def test_three_scopes_alone_make_a_view() -> None:
    """All 16,384 sets of scopes."""
    for size in range(len(ALL) + 1):
        for scopes in itertools.combinations(ALL, size):
            held = [scope in scopes for scope in COUNTING]
            assert view_of(scopes) == View(*held), scopes


EVENTS: dict[str, Any] = {}
for _example in EXAMPLES:
    if _example.valid and _example.definition == "SessionEventNotification":
        _params = msgspec.json.decode(_example.text)["params"]
        if "visibility" not in _params and "replacement_snapshot" not in (_params["payload"] or ()):
            EVENTS.setdefault(_params["kind"], _params["payload"])


def test_there_is_an_example_of_every_kind() -> None:
    assert EVENTS.keys() == PAYLOADS.keys()


@settings(max_examples=300, deadline=None)
@given(kind=st.sampled_from(sorted(PAYLOADS)), scopes=st.frozensets(st.sampled_from(ALL)))
def test_one_function_decides(kind: EventKind, scopes: frozenset[Scope]) -> None:
    """A push writes what the projection says, and that is what the table says."""
    event = ledger.StoredEvent("ses_one", 4, 3, AT, kind, encode(EVENTS[kind]), b'{"actor":"pri_secret"}')
    view = view_of(scopes)
    seen = project_event(event, view)
    pushed = msgspec.json.decode(Notifications().encode_event(event, view))["params"]
    assert pushed == msgspec.json.decode(encode(seen))
    assert pushed.get("visibility", "full") == expected(kind, scopes)
    if expected(kind, scopes) == "hidden":
        assert pushed["payload"] == {}
    assert "pri_secret" not in str(pushed)


READERS = [frozenset(chosen) for size in range(4) for chosen in itertools.combinations(COUNTING, size)]


@pytest.mark.parametrize("scopes", READERS, ids=lambda scopes: "+".join(sorted(scopes)) or "none")
async def test_push_and_replay_tell_the_same(
    host: Host, served_world: World, scopes: frozenset[Scope]
) -> None:
    """Every kind, through the log of a session, to a subscriber and to whoever comes later."""
    served_world.break_laws()
    held = await (await host.client()).create(served_world)
    mine = somebody("ann", ("session.transcript.read", *scopes))
    watching = await (await host.client(mine)).attach(held.session_id, "read_only")

    def commit() -> None:
        with ledger.session_txn(held.session_id, system("test")) as txn:
            for kind, shape in PAYLOADS.items():
                payload = EVENTS[kind]
                txn.emit(kind, msgspec.json.decode(encode(payload), type=shape))

    await in_db(commit)
    pushed = await watching.peer.told(len(EVENTS))
    assert {event["kind"]: event.get("visibility", "full") for event in pushed} == {
        kind: expected(kind, scopes) for kind in EVENTS
    }
    later = await (await host.client(mine)).attach(
        held.session_id, "read_only", after_sequence=watching.latest
    )
    assert later.answer["replay"]["events"] == pushed
