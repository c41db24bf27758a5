"""What each view sees of each event, entry and snapshot: the tables of behaviour 8.7 and 8.8, walked for every kind and view."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from sessions_app.encoding import encode
from sessions_app.events import (
    PAYLOADS,
    EventKind,
    ModeratorOverlayPayload,
    SessionUpdatedPayload,
    read_payload,
)
from sessions_app.ledger import StoredEvent
from sessions_app.projection import project_entry, project_event, project_snapshot, project_window
from sessions_app.records import (
    DurableEventKind,
    HistoryEntry,
    HistoryEntryKind,
    HistoryProvenanceCanonical,
    HistoryWindow,
    Session,
    Snapshot,
)
from sessions_app.views import FULL, TRANSCRIPT, View

EXAMPLES = Path(__file__).parent.parent / "golden" / "ochat-1.0" / "examples"
KINDS: Sequence[EventKind] = get_args(DurableEventKind)
VIEWS = [View(*rights) for rights in itertools.product([True, False], repeat=3)]

Seen = Literal["full", "redacted", "hidden"]


def seen(kind: EventKind, view: View) -> Seen:
    """8.7, row by row."""
    match kind:
        case "permission.requested" | "permission.resolved" | "moderator.notification":
            allowed = view.security_read
        case "grant.created" | "grant.revoked":
            allowed = view.grant_manage
        case "job.state_changed" | "schedule.created" | "schedule.state_changed" | "schedule.cancelled":
            allowed = view.message_send
        case _:
            allowed = True
    if not allowed:
        return "hidden"
    return "full" if view.security_read else "redacted"


def stored(kind: EventKind, payload: bytes, session_id: str = "ses_one", sequence: int = 4) -> StoredEvent:
    return StoredEvent(
        session_id=session_id,
        sequence=sequence,
        revision=3,
        at=datetime(2030, 1, 1, tzinfo=UTC),
        kind=kind,
        payload=payload,
        extra=b'{"actor":"pri_secret"}',
    )


def examples(kind: EventKind) -> list[StoredEvent]:
    """The protocol's own examples of a kind, as full events."""
    found = []
    for path in sorted(EXAMPLES.glob(f"event.{kind}*.json")):
        params: Mapping[str, Any] = json.loads(path.read_text())["params"]
        if params["kind"] == kind and "visibility" not in params:
            found.append(stored(kind, encode(params["payload"]), params["session_id"], params["sequence"]))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_every_view(kind: EventKind) -> None:
    """8.7: full, redacted or hidden; "sequence, kind, revision and time stay"; what is not redacted is passed on byte for byte."""
    events = examples(kind)
    assert events, "the protocol has an example of every kind"
    for event, view in itertools.product(events, VIEWS):
        shown = project_event(event, view)
        expected = seen(kind, view)
        assert (shown.session_id, shown.sequence, shown.revision, shown.kind) == (
            event.session_id,
            event.sequence,
            3,
            kind,
        )
        assert shown.timestamp == "2030-01-01T00:00:00.000000000Z"
        assert shown.visibility == (UNSET if expected == "full" else expected)
        if expected == "hidden":
            assert bytes(shown.payload) == b"{}"
        elif kind not in TRANSFORMED:
            assert bytes(shown.payload) == event.payload
        if expected != "hidden":
            msgspec.json.decode(shown.payload, type=PAYLOADS[kind])
        assert b"pri_secret" not in encode(shown), "what only other dialects tell stays out"


TRANSFORMED = {
    "history.appended",
    "history.message_deferred",
    "history.replaced",
    "moderator.overlay_changed",
    "session.updated",
}
"""The kinds of which a view may see a part."""


# Entries: a secret in every payload that needs security.read

SECRET = "s3cret"
HIDDEN_KINDS = {"tool_call", "tool_output", "other"}


@st.composite
def entries(draw: st.DrawFn) -> HistoryEntry:
    kind: HistoryEntryKind = draw(st.sampled_from(get_args(HistoryEntryKind)))
    text = draw(st.text(max_size=8))
    payload = {"text": text, "secret": SECRET if kind in HIDDEN_KINDS else "public"}
    return HistoryEntry(
        id=f"7:ses_one:{draw(st.integers(0, 2**40))}",
        role="assistant",
        kind=kind,
        payload=Raw(encode(payload)),
        provenance=HistoryProvenanceCanonical(),
        redacted=False,
    )


def window(held: Sequence[HistoryEntry]) -> HistoryWindow:
    return HistoryWindow(
        entries=tuple(held), reached_start=True, reached_end=True, structurally_complete=True
    )


def example(kind: EventKind, **secrets: Any) -> Any:
    """Return the record in the protocol's first example of a kind, with some members replaced."""
    record = msgspec.json.decode(examples(kind)[0].payload, type=PAYLOADS[kind])
    return msgspec.structs.replace(record, **secrets)


def snapshot(held: Sequence[HistoryEntry]) -> Snapshot:
    """Return a snapshot with something in every part."""
    session: Session = example("session.created")
    secret = Raw(encode(SECRET))
    return Snapshot(
        session=session,
        canonical_history=window(held),
        effective_history=window(held),
        archived_revisions=(1,),
        deferred_entries=tuple(held),
        permissions=(example("permission.requested", tool_name=SECRET),),
        grants=(example("grant.created", tool_name=SECRET),),
        jobs=(example("job.state_changed", payload=secret),),
        schedules=(example("schedule.created", payload=secret),),
        active_tool_calls=(secret,),
        active_agent_calls=(secret,),
        halted=False,
        revision=session.revision,
        latest_event_sequence=session.latest_event_sequence,
    )


def check_entries(shown: Sequence[HistoryEntry], held: Sequence[HistoryEntry], view: View) -> None:
    """8.7: "entries of kind tool_call, tool_output, other become payload `{}` + `redacted: true`", all others stay as they are."""
    assert len(shown) == len(held)
    for one, whole in zip(shown, held, strict=True):
        if view.security_read or whole.kind not in HIDDEN_KINDS:
            assert one == whole
        else:
            assert one == msgspec.structs.replace(whole, payload=Raw(b"{}"), redacted=True)


def check_snapshot(shown: Snapshot, whole: Snapshot, view: View) -> None:
    """8.8: "Missing rights → empty list, not an error"."""
    check_entries(shown.canonical_history.entries, whole.canonical_history.entries, view)
    check_entries(shown.deferred_entries, whole.deferred_entries, view)
    assert isinstance(shown.effective_history, HistoryWindow)
    check_entries(shown.effective_history.entries, whole.canonical_history.entries, view)
    for name, allowed in (
        ("permissions", view.security_read),
        ("active_tool_calls", view.security_read),
        ("active_agent_calls", view.security_read),
        ("grants", view.grant_manage),
        ("jobs", view.message_send),
        ("schedules", view.message_send),
    ):
        assert len(getattr(shown, name)) == allowed, name
    for name in ("session", "archived_revisions", "halted", "revision", "latest_event_sequence"):
        assert getattr(shown, name) == getattr(whole, name)


@given(held=st.lists(entries(), max_size=5), view=st.sampled_from(VIEWS))
def test_entries_in_events(held: list[HistoryEntry], view: View) -> None:
    """8.7: the rows of history.* and moderator.overlay_changed; nothing of a hidden payload is in what is sent."""
    overlay = ModeratorOverlayPayload(halted=True, effective_history=window(held), halt_reason="enough")
    sent: list[tuple[EventKind, Any]] = [
        ("history.appended", tuple(held)),
        ("history.replaced", window(held)),
        ("moderator.overlay_changed", overlay),
        *(("history.message_deferred", entry) for entry in held[:1]),
    ]
    for kind, payload in sent:
        shown = project_event(stored(kind, encode(payload)), view)
        assert view.security_read or SECRET.encode() not in encode(shown)
        read: Any = read_payload(shown)
        match kind:
            case "history.appended":
                check_entries(read, held, view)
            case "history.replaced":
                check_entries(read.entries, held, view)
                assert (read.reached_start, read.reached_end) == (True, True)
            case "moderator.overlay_changed":
                check_entries(read.effective_history.entries, held, view)
                assert (read.halted, read.halt_reason) == (True, "enough")
            case _:
                check_entries([read], held[:1], view)


@settings(max_examples=40)
@given(held=st.lists(entries(), max_size=3), view=st.sampled_from(VIEWS))
def test_snapshots_and_windows(held: list[HistoryEntry], view: View) -> None:
    """8.8: each part needs its right; 12.3: a window keeps its flags and cursors."""
    whole = snapshot(held)
    shown = project_snapshot(whole, view)
    check_snapshot(shown, whole, view)
    assert view != TRANSCRIPT or SECRET.encode() not in encode(shown)

    cut = msgspec.structs.replace(window(held), previous_cursor="before", reached_start=False)
    seen_window = project_window(cut, view)
    check_entries(seen_window.entries, held, view)
    assert (seen_window.previous_cursor, seen_window.reached_start) == ("before", False)
    check_entries([project_entry(entry, view) for entry in held], held, view)


@settings(max_examples=40)
@given(held=st.lists(entries(), max_size=3), view=st.sampled_from(VIEWS))
def test_replacement_snapshots(held: list[HistoryEntry], view: View) -> None:
    """8.7: "session.updated with replacement snapshot | full, snapshot projected | redacted, snapshot projected"."""
    whole = snapshot(held)
    payload = SessionUpdatedPayload.of(whole.session, whole)
    shown = project_event(stored("session.updated", encode(payload), whole.session.id), view)
    assert shown.visibility == (UNSET if view.security_read else "redacted")
    read = msgspec.json.decode(shown.payload)
    replacement = read.pop("replacement_snapshot")
    assert read == json.loads(encode(whole.session))
    projected = json.loads(encode(project_snapshot(whole, view)))
    assert replacement == projected


def test_an_overlay_without_a_history_is_left_alone() -> None:
    payload = encode(ModeratorOverlayPayload(halted=False))
    assert bytes(project_event(stored("moderator.overlay_changed", payload), TRANSCRIPT).payload) == payload


def test_the_name_of_a_member_in_a_text_is_no_member() -> None:
    """A label that spells the member's name does not make a replacement snapshot of a summary."""
    session: Session = example("session.created")
    spec = msgspec.structs.replace(
        session.spec, labels={'"replacement_snapshot"': "x", "replacement_snapshot": "y"}
    )
    payload = encode(SessionUpdatedPayload.of(msgspec.structs.replace(session, spec=spec)))
    for view in (FULL, TRANSCRIPT):
        assert bytes(project_event(stored("session.updated", payload), view).payload) == payload
