"""Daphne and what is below it, loaded without what this server does not speak.

Owns: how these libraries are imported. Does not own: anything that is made of them (`sockets`, `server`).

TLS ends at a proxy and WAMP is another protocol; yet Twisted loads OpenSSL where it finds it, and Autobahn its WAMP
client, with `cryptography` behind both: 12 MB of every web process. They are kept out while Daphne is imported.

Importing this module installs Twisted's reactor on an asyncio loop: only the process that serves does so.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any

_OPENSSL = "OpenSSL"
_AUTOBAHN = "autobahn.twisted"


@contextmanager
def _without_tls_and_wamp() -> Iterator[None]:
    if _AUTOBAHN not in sys.modules and (spec := find_spec(_AUTOBAHN)) is not None:
        # The package without its `__init__`, which imports the client; its modules are found all the same.
        sys.modules[_AUTOBAHN] = module_from_spec(spec)
    if _OPENSSL in sys.modules:
        yield
        return
    sys.modules[_OPENSSL] = None  # type: ignore[assignment]  # the way to have an import fail
    try:
        yield
    finally:
        del sys.modules[_OPENSSL]


# Untyped: Twisted declares its interfaces for zope and not for a type checker, and Daphne declares none.
with _without_tls_and_wamp():
    # The server first: it installs the reactor that the others take.
    server: Any = import_module("daphne.server")
    http_protocol: Any = import_module("daphne.http_protocol")
    ws_protocol: Any = import_module("daphne.ws_protocol")
    http: Any = import_module("twisted.web.http")
    reactor: Any = import_module("twisted.internet.reactor")
    defer: Any = import_module("twisted.internet.defer")
    twisted_logger: Any = import_module("twisted.logger")
