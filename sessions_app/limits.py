"""Every number of behaviour 16: the fixed ones as constants, the settable ones as `ServerSettings`.

Owns: names, defaults, bounds and the settings in force in this process. Does not own: reading them from a
catalog (`catalog_file`) or from the store (`catalog`), which hand the result to `install`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from msgspec import Meta, Struct

KIB = 1024
MIB = 1024 * KIB

# Envelopes and transports. What one peer may make the other hold in memory at once.

MAX_FRAME_BYTES = 16 * MIB
"""A request, line, body or message; an event or an answer; what the inline helpers of a message bring in."""
MAX_JSON_DEPTH = 64
MAX_BATCH_SIZE = 128
BATCH_CONCURRENCY = 16
MAX_OUTBOX_FRAMES = 1024
MAX_OUTBOX_BYTES = 20 * MIB
"""More than one frame of the largest size, so that a reply always fits an empty queue."""
MAX_ATTACHMENTS_PER_CONNECTION = 64
MAX_PAGE_SIZE = 1000
"""Announced; larger limits are clamped to it (behaviour 12.1)."""
MAX_CODEC_PAGE_SIZE = 1_000_000
"""The largest limit that decodes at all."""
MAX_CURSOR_BYTES = 2048
MAX_IDEMPOTENCY_KEY_BYTES = 256
MAX_RECLAIM_TOKEN_BYTES = 512

# What is stored and sent of a session.

MAX_ENTRY_BYTES = 4 * MIB
"""One encoded history entry; also all deferred entries of a session together."""
MAX_PAYLOAD_BYTES = 256 * KIB
"""Payload or result of a job or schedule."""
MAX_SPEC_BYTES = 256 * KIB
"""What a session is created with, which every summary of it repeats."""
MAX_PAGE_BYTES = 8 * MIB
"""The items of one page of a list; it ends earlier than its limit where more would not fit."""
MAX_REASON_BYTES = 256 * KIB
"""What a person says beside an answer or a revocation."""
MAX_WINDOW_BYTES = 8 * MIB
"""A history window in an event, the histories of a snapshot together, the events of a replay together."""
MAX_INLINE_IMAGE_BYTES = 256 * KIB
"""A larger image is a `blob:` reference on the wire."""
MAX_SNAPSHOT_ITEMS = 256
MAX_SNAPSHOT_LIST_BYTES = 3 * MIB
"""The lists of a snapshot beside its histories and deferred entries, together (behaviour 8.8)."""
MAX_ACTIVE_CALLS = 1024
MAX_ACTIVE_CALL_BYTES = 4 * KIB
MAX_BLOB_BYTES = 16 * MIB
MAX_BLOB_CHUNK_BYTES = MIB
RECEIPT_EXPIRY_MS = 24 * 60 * 60 * 1000
"""Fixed by the protocol, and so the one duration that no catalog sets."""

# Prompts and agents.

MAX_PROMPT_SOURCES = 256
MAX_PROMPT_BYTES = 8 * MIB
MAX_CACHED_AGENT_RESULTS = 1000

Count = Annotated[int, Meta(ge=1, le=2**62 - 1)]
Milliseconds = Annotated[int, Meta(ge=1, le=2**53)]
"""At least 1: a timer of zero would run without pause. 2^53 is exact in every JSON reader."""
Delay = Annotated[int, Meta(ge=0, le=2**53)]


class JobLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many jobs run at once; a job needs a place under every one of these (behaviour 10.1)."""

    daemon: Count = 16
    principal: Count = 8
    prompt: Count = 8
    workspace: Count = 8
    session: Count = 4
    kind: Count = 16
    depth: Annotated[int, Meta(ge=0, le=64)] = 8
    """How deep jobs may start jobs; 0 forbids nesting."""


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The catalog's `[server]` table: what an operator may set, by the names of behaviour 16."""

    max_deferred_entries: Count = 256
    max_attachments_per_session: Count = 1024
    subscriber_queue_capacity: Count = 512
    max_events_per_session: Count = 100_000
    max_connections: Count = 1024
    max_running_sessions: Count = 10_000
    max_running_sessions_per_principal: Count = 1000
    max_concurrent_starts: Count = 8
    job_limits: JobLimits = JobLimits()

    idle_connection_timeout_ms: Milliseconds = 300_000
    heartbeat_interval_ms: Milliseconds = 15_000
    owner_lease_duration_ms: Milliseconds = 60_000
    owner_renew_after_ms: Milliseconds = 30_000
    disconnect_grace_default_ms: Delay = 10_000
    blob_ttl_ms: Milliseconds = 3_600_000
    session_lock_timeout_ms: Milliseconds = 10_000
    store_lock_timeout_ms: Milliseconds = 10_000
    process_heartbeat_ms: Milliseconds = 5000
    process_expiry_ms: Milliseconds = 12_000
    sweep_lease_ms: Milliseconds = 5000
    misfire_gap_ms: Milliseconds = 15_000
    response_artifact_ms: Milliseconds = 3_600_000
    shutdown_grace_ms: Milliseconds = 30_000
    config_poll_ms: Milliseconds = 1000
    maintenance_ms: Milliseconds = 60_000
    agent_cache_ms: Milliseconds = 86_400_000

    require_auth: bool = True
    """False opens HTTP to everybody, as one principal with all scopes: for development (behaviour 2.2)."""
    unsafe_allow_unauthenticated_remote_http: bool = False
    """Lets `require_auth = false` hold on an address that other machines reach."""

    def contradiction(self) -> tuple[str, str] | None:
        """Return the setting that contradicts another and one sentence about it, or None."""
        if self.process_expiry_ms <= self.process_heartbeat_ms:
            return (
                "process_expiry_ms",
                "must be longer than process_heartbeat_ms, or every process looks dead",
            )
        if self.owner_renew_after_ms >= self.owner_lease_duration_ms:
            return (
                "owner_renew_after_ms",
                "must be shorter than owner_lease_duration_ms, or every lease expires first",
            )
        return None


_server = ServerSettings()


def server() -> ServerSettings:
    """Return the settings this process runs with: the defaults until `install` was called."""
    return _server


def install(settings: ServerSettings) -> None:
    """Run this process with `settings`; called once, at its start: no reload changes them (behaviour 3.1)."""
    global _server
    _server = settings


@contextmanager
def using(settings: ServerSettings) -> Iterator[None]:
    """Run with `settings` inside the block; for tests."""
    previous = server()
    install(settings)
    try:
        yield
    finally:
        install(previous)
