"""`manage.py ochat_stdio`: what may be said, and which of the two it starts.

Owns: the arguments, the environment of an embedded host, the life of a gateway. Does not own: the host, which needs Django and so
comes behind `run_local`. This module knows no Django: a gateway needs none.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging.config
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from ochat_client import ClientError
from ochat_client.transports import open_transport
from ochat_site import logs
from ochat_site.env import ConfigError, read
from ochat_site.secrets import make_private_dir
from ochat_site.stdio.gateway import Gateway
from ochat_site.stdio.streams import Streams, take_streams
from ochat_site.terminal import target

HOST_CATALOG = "host.toml"
_OF_A_SERVER = ("OCHAT_DATABASE_URL", "OCHAT_REDIS_URL", "OCHAT_STORAGE_URL", "OCHAT_CATALOG", "OCHAT_BIND")
"""What speaks of the server of this machine and must not mean the host of a process."""
_MARKS_OF_A_SERVER = ("ochat.toml", "store-id")
"""What lies in the data folder of a server (`preparation`, `sessions_app.marker`), and never in that of a host."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define what a person, or an editor, may say."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--local", action="store_true", help="be a host of your own, in this process")
    which.add_argument(
        "--connect", metavar="URI", help="pass on to a server: unix://PATH, ws://HOST:PORT, http://HOST:PORT"
    )
    parser.add_argument("--prompt", metavar="FILE", type=Path, help="the prompt of a local host")
    parser.add_argument(
        "--workspace", metavar="DIR", type=Path, help="its workspace; the current folder by default"
    )
    store = parser.add_mutually_exclusive_group()
    store.add_argument(
        "--data-root",
        metavar="DIR",
        type=Path,
        help="where it keeps its sessions; by default a folder of this prompt in the data folder",
    )
    store.add_argument("--transient", action="store_true", help="forget everything at the end")
    parser.add_argument(
        "--bearer-token-file",
        metavar="FILE",
        type=Path,
        help="the token for a server; client.token of the data folder by default, for this machine's server only",
    )


def main(arguments: Sequence[str], run_local: Callable[[], None]) -> int:
    """Run until the input ends; the exit code is 0 then, and 1 when the server ends first.

    `run_local` runs the management command of the same name, on the environment prepared here. Refuses with ConfigError, in one
    line, what cannot be started.
    """
    parser = argparse.ArgumentParser(
        prog="manage.py ochat_stdio",
        description="Speak the Ochat agent protocol on standard input and output, a line for each message.",
    )
    add_arguments(parser)
    given = parser.parse_args(arguments)
    if given.connect is not None:
        if given.prompt or given.workspace or given.data_root or given.transient:
            parser.error("--prompt, --workspace, --data-root and --transient belong to --local")
        return run_gateway(given.connect, given.bearer_token_file)
    if given.prompt is None:
        parser.error("--local needs --prompt FILE")
    if given.bearer_token_file:
        parser.error("--bearer-token-file belongs to --connect")
    with _data_root(given.data_root, given.prompt, transient=given.transient):
        run_local()
    return 0


def run_gateway(uri: str, token_file: Path | None) -> int:
    """Be a gateway until one side ends; return the exit code."""
    env = read(os.environ, Path.cwd())
    logging.config.dictConfig(logs.configuration(env.log_format))
    found = target.find(env, uri, token_file)
    return asyncio.run(_gateway(found, *take_streams()))


async def _gateway(found: target.Target, source: int, sink: int) -> int:
    streams = Streams(source, sink)
    try:
        upstream = await open_transport(found.uri, token=found.token)
    except (ClientError, ValueError) as error:
        raise ConfigError(f"{found.uri}: {error}") from None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, streams.end)
    return await Gateway(streams, upstream, found.uri).run()


@contextmanager
def _data_root(named: Path | None, prompt: Path, *, transient: bool) -> Iterator[None]:
    """Make the environment that of a host with a data folder of its own: named, of this prompt, or gone at the end."""
    if transient:
        root = Path(tempfile.mkdtemp(prefix="ochat-"))
    else:
        root = (named or _root_of(prompt)).absolute()
        make_private_dir(root)
    for name in _OF_A_SERVER:
        os.environ.pop(name, None)
    os.environ["OCHAT_DATA_DIR"] = str(root)
    os.environ["OCHAT_CATALOG"] = str(root / HOST_CATALOG)
    try:
        with _alone_in(root):
            yield
    finally:
        if transient:
            shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _alone_in(root: Path) -> Iterator[None]:
    """Hold a data folder for this process; the kernel lets it go however the process ends.

    A server's is refused, running or not: a host ends every session that it finds, and puts its own catalog in force.
    """
    if any((root / name).exists() for name in _MARKS_OF_A_SERVER):
        raise ConfigError(f"{root}: this is the data folder of a server; name another by --data-root.")
    with (root / "host.lock").open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"{root}: another host is running on this folder; name another by --data-root, or use --transient."
            ) from None
        yield


def _root_of(prompt: Path) -> Path:
    file = prompt.resolve()
    name = f"{file.stem[:32]}-{sha256(os.fsencode(file)).hexdigest()[:12]}"
    hosts = read(os.environ, Path.cwd()).data_dir
    make_private_dir(hosts)
    return hosts / "hosts" / name
