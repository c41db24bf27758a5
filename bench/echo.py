"""The floor of the sockets: a raw ASGI echo under the server's own Daphne. Run as `python -m bench.echo`; it prints its port."""

from __future__ import annotations

import socket
from typing import Any

from ochat_site.server import Server


class Idle:
    """Nothing runs beside the sockets."""

    async def start(self) -> None:
        """See `server.Life`."""

    async def drain(self) -> None:
        """See `server.Life`."""

    async def stop(self) -> None:
        """See `server.Life`."""

    async def reload(self) -> None:
        """See `server.Life`."""


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Send back every text message."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


def main() -> None:
    """Serve until SIGTERM."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    Server(echo, listener, Idle(), grace_seconds=lambda: 1.0, on_ready=lambda: print(port, flush=True)).run()


if __name__ == "__main__":
    main()
