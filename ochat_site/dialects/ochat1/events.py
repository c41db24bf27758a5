"""Durable and live events as this dialect writes them: notifications, and frames of a session's SSE stream (behaviour 8.2, 8.3).

Owns: the two notifications and the three frames. Does not own: what a view hides (`sessions_app.projection`), which events a
subscriber is sent and when (`ochat_site.rpc.feed`), or the shapes (`sessions_app.events`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ochat_site.dialects.ochat1.errors import to_error
from ochat_site.rpc import envelope
from sessions_app.encoding import encode
from sessions_app.errors import SnapshotRequired
from sessions_app.projection import project_event

if TYPE_CHECKING:
    from sessions_app.ledger import StoredEvent
    from sessions_app.views import View


class Notifications:
    """A `session_feed.Dialect`. Payloads from which nothing is hidden pass through as they are stored."""

    filtered = None

    def encode_event(self, event: StoredEvent, view: View) -> bytes:
        """Return the `session.event` of a durable event as a view sees it."""
        return envelope.notification("session.event", encode(project_event(event, view)))

    def encode_live(self, event: bytes) -> bytes:
        """Return the `session.live_event` of a live event, given as its worker encoded it."""
        return envelope.notification("session.live_event", event)


class SessionStream:
    """A `session_feed.Dialect` for a stream of one session over HTTP: whole SSE frames, whose data are the params alone."""

    filtered = b": filtered\n\n"

    def encode_event(self, event: StoredEvent, view: View) -> bytes:
        """Return the frame of a durable event as a view sees it; its id is its sequence."""
        data = envelope.one_line(encode(project_event(event, view)))
        return b"id: %d\nevent: session.event\ndata: %b\n\n" % (event.sequence, data)

    def encode_live(self, event: bytes) -> bytes:
        """Return the frame of a live event: it has no id, because nobody can go on behind it."""
        return b"event: session.live_event\ndata: %b\n\n" % envelope.one_line(event)

    def snapshot_required(self) -> bytes:
        """Return the last frame for a reader that cannot be sent what comes next (behaviour 8.6)."""
        error = to_error(SnapshotRequired("the reader fell behind: take a snapshot", retryable=True))
        return b"event: snapshot.required\ndata: %b\n\n" % envelope.one_line(encode(error))
