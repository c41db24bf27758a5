"""Durable and live events as the notifications of this dialect (behaviour 8.2, wire 9, 10).

Owns: the two notifications. Does not own: what a view hides (`sessions_app.projection`), which events a subscriber is
sent and when (`ochat_site.rpc.feed`), or the shapes (`sessions_app.events`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ochat_site.rpc import envelope
from sessions_app.encoding import encode
from sessions_app.projection import project_event

if TYPE_CHECKING:
    from sessions_app.ledger import StoredEvent
    from sessions_app.views import View


class Notifications:
    """A `session_feed.Dialect`. Payloads from which nothing is hidden pass through as they are stored."""

    def encode_event(self, event: StoredEvent, view: View) -> bytes:
        """Return the `session.event` of a durable event as a view sees it."""
        return envelope.notification("session.event", encode(project_event(event, view)))

    def encode_live(self, event: bytes) -> bytes:
        """Return the `session.live_event` of a live event, given as its worker encoded it."""
        return envelope.notification("session.live_event", event)
