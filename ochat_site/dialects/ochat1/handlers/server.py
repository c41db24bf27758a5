"""`protocol.*` and `server.*`: what this server is and how it is doing (behaviour 1.2, 14.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ochat_site.dialects.ochat1.types import (
    PROTOCOL_VERSION,
    EventRetention,
    HealthResult,
    Implementation,
    InitializeResult,
    Limits,
    PingResult,
    ServerInfoResult,
    Timing,
)
from sessions_app import clock, limits
from sessions_app.clock import wire_time
from sessions_app.commands import connections, logical
from sessions_app.errors import ServerShuttingDown

if TYPE_CHECKING:
    from ochat_site.dialects.ochat1.types import HealthParams, InitializeParams, PingParams, ServerInfoParams
    from ochat_site.rpc.context import Context, Server

PROTOCOL_NAME = "ochat.agent"
SERVER_NAME = "ochat-server"
FEATURES = (
    "attachments.multi_client",
    "events.durable",
    "events.recoverable",
    "permissions.configurable",
    "sessions.durable",
    "workspaces.configured",
)


def protocol_initialize(context: Context, params: InitializeParams) -> InitializeResult:
    """Open the connection for calls; again, it changes nothing but the size of events. The version was negotiated
    when the params were read.

    Raises ServerShuttingDown while this process drains.
    """
    server, settings, client = context.server, limits.server(), context.client
    if server.draining:
        raise ServerShuttingDown("the server is shutting down")

    if client.logical:
        logical.initialize(client.connection_id, params.max_inbound_event_bytes)
    else:
        connections.enter(
            client.connection_id,
            client.transport,
            context.identity.principal,
            params.max_inbound_event_bytes,
        )

    def open_connection() -> None:
        client.initialized = True
        client.max_event_bytes = params.max_inbound_event_bytes

    context.afterwards(open_connection)
    return InitializeResult(
        protocol_name=PROTOCOL_NAME,
        selected_version=PROTOCOL_VERSION,
        implementation=_implementation(server),
        server_id=server.id,
        enabled_features=tuple(feature for feature in FEATURES if feature in params.features),
        principal=context.identity.principal,
        limits=_limits(),
        event_retention=EventRetention(minimum_age_ms=0, maximum_events=settings.max_events_per_session),
        timing=Timing(
            heartbeat_interval_ms=settings.heartbeat_interval_ms,
            owner_lease_duration_ms=settings.owner_lease_duration_ms,
            owner_renew_after_ms=settings.owner_renew_after_ms,
            disconnect_grace_default_ms=settings.disconnect_grace_default_ms,
        ),
        server_time=wire_time(clock.now()),
    )


def protocol_ping(context: Context, params: PingParams) -> PingResult:
    """Echo the payload and tell whether this process takes work."""
    return PingResult(
        payload=params.payload,
        server_time=wire_time(clock.now()),
        ready=context.server.ready and not context.server.draining,
        draining=context.server.draining,
    )


def server_info(context: Context, _params: ServerInfoParams) -> ServerInfoResult:
    """Return what this server is."""
    return ServerInfoResult(
        server_id=context.server.id,
        implementation=_implementation(context.server),
        protocol_version=PROTOCOL_VERSION,
        features=FEATURES,
        transports=tuple(context.server.transports),
        limits=_limits(),
        unsafe_development_auth=not limits.server().require_auth,
    )


def server_health(context: Context, params: HealthParams) -> HealthResult:
    """Return how this server is doing; the components only to who asks for them and holds `diagnostics.read`."""
    health = context.server.health(context.server)
    if params.include_details and "diagnostics.read" in context.caller.scopes:
        return health
    return msgspec.structs.replace(health, components=())


def _implementation(server: Server) -> Implementation:
    return Implementation(name=SERVER_NAME, version=server.version)


def _limits() -> Limits:
    return Limits(
        max_request_bytes=limits.MAX_FRAME_BYTES,
        max_event_bytes=limits.MAX_FRAME_BYTES,
        max_page_size=limits.MAX_PAGE_SIZE,
        max_attachments_per_connection=limits.MAX_ATTACHMENTS_PER_CONNECTION,
    )
