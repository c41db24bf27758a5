"""Waking the sweep when something is due sooner than it would look by itself (behaviour 14.2).

Owns: the signal, and how long the sweep sleeps at most. Does not own: the loop that listens (`background.py`), or what is due.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from sessions_app import broadcast

if TYPE_CHECKING:
    from sessions_app.ledger import Txn

SWEEP_SIGNAL = "sweep"
"""Wakes the sweep of whichever process holds the lease."""

LONGEST_PAUSE = timedelta(seconds=1)
"""What is missed between two passes is found within this time."""


def sweep_by(txn: Txn, due: datetime) -> None:
    """Let the sweep look once this transaction is committed, if `due` comes before it is certain to look by itself."""
    if due < txn.now + LONGEST_PAUSE:
        txn.after_commit(lambda: broadcast.signal(SWEEP_SIGNAL, ""))
