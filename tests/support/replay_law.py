"""The replay law for one session in the store: a snapshot before, and the events behind it, make the snapshot after.

    with replay_law(session_id, "session", "canonical_history"):
        ...                                     # one mutation, or many

Owns: looking before and after, for every view there is, and what must have changed. Does not own: what events make of a
snapshot (`ochat_client.projection`), or which differences are none (`ochat_client.law`).

A law that nothing is measured against proves nothing. So the members that the block changes are named, as a reader who sees
everything sees them: one that is named and stays as it was fails as well as one that changes without being named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from ochat_client import Projection, differences
from sessions_app import ledger, queries
from sessions_app.encoding import encode
from sessions_app.projection import project_event, project_snapshot
from sessions_app.records import Snapshot
from sessions_app.views import FULL, View

VIEWS = tuple(View(*flags) for flags in itertools.product((False, True), repeat=3))


def snapshot(session_id: str, view: View = FULL) -> Snapshot:
    """Return a session as a view may see it now."""
    session = queries.load(session_id)
    assert session is not None, "the session is gone"
    return queries.snapshot(session, view)


@contextmanager
def replay_law(session_id: str, *changed: str) -> Iterator[None]:
    """Check that the block keeps the law for every view, and changes exactly the members `changed`."""
    before = snapshot(session_id)
    yield
    after = snapshot(session_id)
    assert changes(before, after) == {*changed}
    events = ledger.read_events(session_id, before.latest_event_sequence, limit=10_000)
    assert bool(events) or not changed, "a change that no event tells"
    for view in VIEWS:
        shown = snapshot(session_id, view)
        projection = Projection(project_snapshot(before, view))
        for event in events:
            assert projection.apply(project_event(event, view)) is not None
        told = projection.snapshot()
        assert not differences(told, shown), f"{view}: told and shown differ in {leaves(told, shown)}"


def changes(before: Snapshot, after: Snapshot) -> set[str]:
    """Return the members in which two snapshots differ, but for what moves with every event."""
    found = differences(_still(before), _still(after))
    return {difference.partition(":")[0] for difference in found}


def _still(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with its counters at rest."""
    session = replace(snapshot.session, latest_event_sequence=0)
    return replace(snapshot, session=session, latest_event_sequence=0)


def leaves(one: Snapshot, other: Snapshot) -> list[str]:
    """Return the paths at which two snapshots differ, with both values; for people."""
    return list(_leaves("", msgspec.json.decode(encode(one)), msgspec.json.decode(encode(other))))


def _leaves(path: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys()):
            yield from _leaves(f"{path}.{name}", one.get(name), other.get(name))
    elif one != other:
        yield f"{path}: {one!r} and {other!r}"
