"""What the server and the transports say to each other through a scope, beside ASGI.

Owns: the names. Does not own: what stands behind them (`ochat_site.sockets`). The server imports nothing else of the transports
that serve requests, so that it runs without what they need.
"""

SOCKET_EXTENSION = "ochat.socket"
"""Where the server puts a `websocket.RawSocket`."""

STREAM_EXTENSION = "ochat.stream"
"""Where the server puts an `sse.RawStream`."""

BODY_EXTENSION = "ochat.body_too_large"
"""The server puts it into the scope of a request whose body exceeds the limit, and leaves the body out."""
