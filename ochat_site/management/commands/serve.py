"""`manage.py serve`: the web process.

Importing this module installs Twisted's reactor; Django imports a command only to run it.
"""

from __future__ import annotations

import socket
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from ochat_site.env import Bind, ConfigError
from ochat_site.server import Server
from ochat_site.web import SOCKET_NAME, Web
from sessions_app import limits, marker, store


class Command(BaseCommand):
    """Serve HTTP, WebSocket and the Unix socket until SIGTERM or SIGINT."""

    help = "Serve the protocols and the console on OCHAT_BIND, and the protocol on run/agent.sock of the data folder."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        """Bind, check the store, then serve. Refuses a busy port with ConfigError, a store of another version with
        MigrationRequired or StoreSchemaTooNew, folders of another store with ConfigurationInvalid.
        """
        listener = _listener(settings.ENV.bind)
        store.check()
        marker.check(settings.ENV.data_dir)
        web = Web()
        server = Server(
            web.application,
            listener,
            web,
            grace_seconds=lambda: limits.server().shutdown_grace_ms / 1000,
            on_ready=self._say_ready,
        )
        server.run()

    def _say_ready(self) -> None:
        bind = settings.ENV.bind
        self.stdout.write(
            f"Serving on http://{bind.host}:{bind.port}/ (WebSocket at /v1/ws)"
            f" and on unix://{settings.ENV.run_dir / SOCKET_NAME}."
        )
        self.stdout.flush()


def _listener(bind: Bind) -> socket.socket:
    """Return a socket bound to the address, not listening yet: a second server on it fails here, at once."""
    family = socket.AF_INET6 if ":" in bind.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((bind.host, bind.port))
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"OCHAT_BIND: cannot listen on {bind.host}:{bind.port}: {error.strerror}."
        ) from None
    return listener
