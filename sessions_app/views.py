"""What one reader may see of a session.

Owns: `View`, the key of every projection and of every shared encoding. Does not own: how scopes are found
(`permissions_app.scopes`) or what a view hides (`sessions_app.projection`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """The three rights that decide what is shown (behaviour 8.7, 8.8); whoever has a view may read transcripts."""

    security_read: bool
    """Permission events and lists, tool payloads, live events, active calls, moderator notices."""
    grant_manage: bool
    """Grants and grant events."""
    message_send: bool
    """Jobs, schedules and their events."""


FULL = View(security_read=True, grant_manage=True, message_send=True)
TRANSCRIPT = View(security_read=False, grant_manage=False, message_send=False)
