"""A typed asyncio client for the Ochat agent protocol 1.0; see docs/client.md.

Owns: connections, calls, synchronization with a session's log, and reconnecting. Does not own: the protocol's records,
events and params, which it shares with the server (`sessions_app.records`, `sessions_app.events`,
`ochat_site.dialects.ochat1.types`), and nothing else of the server: it knows no Django.
"""

from ochat_client.calls import new_key
from ochat_client.client import AttachedSession, Client
from ochat_client.errors import (
    ClientError,
    ConnectionLost,
    ConnectionRefused,
    FrameTooLarge,
    Lagged,
    ProtocolError,
    ProtocolViolation,
    SequenceGap,
)
from ochat_client.law import differences, equal_by_law
from ochat_client.notifications import Subscription
from ochat_client.projection import Durable, Live, Projection
from ochat_client.reconnecting import Backoff, Lost, ReconnectingSession, Replaced, Restored, Update

__all__ = [
    "AttachedSession",
    "Backoff",
    "Client",
    "ClientError",
    "ConnectionLost",
    "ConnectionRefused",
    "Durable",
    "FrameTooLarge",
    "Lagged",
    "Live",
    "Lost",
    "Projection",
    "ProtocolError",
    "ProtocolViolation",
    "ReconnectingSession",
    "Replaced",
    "Restored",
    "SequenceGap",
    "Subscription",
    "Update",
    "differences",
    "equal_by_law",
    "new_key",
]
