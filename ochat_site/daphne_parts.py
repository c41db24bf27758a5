"""Daphne and what is below it, loaded without what this server does not speak.

Owns: how these libraries are imported. Does not own: anything that is made of them (`sockets`, `server`).

TLS ends at a proxy and WAMP is another protocol; yet Twisted loads OpenSSL where it finds it, and Autobahn its WAMP
client, with `cryptography` behind both: 12 MB of every web process.

Importing this module installs Twisted's reactor on an asyncio loop: only the process that serves does so.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any

from sessions_app.imports import without

_AUTOBAHN = "autobahn.twisted"

if _AUTOBAHN not in sys.modules and (spec := find_spec(_AUTOBAHN)) is not None:
    # The package without its `__init__`, which imports the client; its modules are found all the same.
    sys.modules[_AUTOBAHN] = module_from_spec(spec)

# Untyped: Twisted declares its interfaces for zope and not for a type checker, and Daphne declares none.
with without("OpenSSL"):
    # The server first: it installs the reactor that the others take.
    server: Any = import_module("daphne.server")
    http_protocol: Any = import_module("daphne.http_protocol")
    ws_protocol: Any = import_module("daphne.ws_protocol")
    http: Any = import_module("twisted.web.http")
    reactor: Any = import_module("twisted.internet.reactor")
    defer: Any = import_module("twisted.internet.defer")
    twisted_logger: Any = import_module("twisted.logger")
