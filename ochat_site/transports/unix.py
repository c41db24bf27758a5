"""The Unix socket of a web process: claiming its place in the file system, and letting clients in (behaviour 1.4, 2.2).

Owns: the rules for the folder and for what lies there already, listening, and what becomes of the node at the end. Does not own:
bytes and lines (`lines`), who a peer is and whether it may come in (`peers`, and what `admit` says).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from ochat_site.env import MAX_SOCKET_PATH_BYTES, ConfigError
from ochat_site.peers import Peer, peer_of
from ochat_site.transports.lines import LineSocket
from sessions_app.errors import Refusal

if TYPE_CHECKING:
    from ochat_site.rpc.connection import Connection
    from ochat_site.rpc.outbox import Socket
    from permissions_app.principals import Identity

logger = structlog.get_logger(__name__)

BACKLOG = 128
PROBE_SECONDS = 1.0

Admit = Callable[[Peer], Awaitable["Identity"]]
"""Returns who a peer is; raises a `Refusal` for one that may not come in."""

Connect = Callable[["Identity", "Socket"], "Connection"]
"""Makes the connection of an admitted client and counts it among the open ones; raises a `Refusal` to refuse it."""


class Occupied(ConfigError):
    """Somebody listens at the place already."""

    def __init__(self, path: Path, pid: int) -> None:
        """`pid` is who listens; 0 where the kernel does not say."""
        super().__init__(f"{path}: another server is listening on this socket.")
        self.pid = pid


class Listener:
    """A listening socket, and the node by which clients find it."""

    def __init__(self, path: Path, listening: socket.socket) -> None:
        """Take over a socket that listens at `path`."""
        self.socket = listening
        self._path = path
        self._node = _node(path)

    def close(self) -> None:
        """Listen no more, and remove the node unless somebody has put another one there."""
        with _folder_lock(self._path.parent):
            if self._node is not None and _is_same(_node(self._path), self._node):
                self._path.unlink(missing_ok=True)
        self.socket.close()


def claim(path: Path) -> Listener:
    """Listen at `path`, in a private folder that is made if need be, in place of a socket that nobody listens on any more.

    Refuses with ConfigError, in one line, a path that is too long, a folder that is not ours alone, and anything at the place
    that is not a dead socket; with Occupied a socket that somebody listens on.
    """
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(f"{path}: a socket needs a path under {MAX_SOCKET_PATH_BYTES + 1} bytes.")
    _check_folder(path.parent)
    with _folder_lock(path.parent):
        found = _node(path)
        if found is not None:
            _probe(path, found)
            if _is_same(_node(path), found):
                path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(path))
            path.chmod(0o600)
            # At once: a socket that is bound and does not listen looks dead to the next one that starts.
            listening.listen(BACKLOG)
        except OSError as error:
            listening.close()
            raise ConfigError(f"{path}: cannot listen on this socket ({error.strerror}).") from None
        return Listener(path, listening)


def _check_folder(folder: Path) -> None:
    """Make the folder, or check that it is one, not a link to one, and closed to everybody but us."""
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700, parents=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(f"{folder}: cannot make the folder of the socket ({error.strerror}).") from None
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{folder}: the folder of the socket must be a folder itself, not a link.")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{folder}: the folder of the socket belongs to another user.")
    if found.st_mode & 0o077:
        raise ConfigError(f"{folder}: the folder of the socket is open to others; chmod 700 it.")


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Let one process at a time look at the place and change it; the lock ends with the descriptor."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot open the folder of the socket ({error.strerror}).") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _node(path: Path) -> os.stat_result | None:
    """Return what lies at `path`, links not followed; None for nothing."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def _is_same(now: os.stat_result | None, before: os.stat_result) -> bool:
    return now is not None and (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)


def _probe(path: Path, found: os.stat_result) -> None:
    """Return when what was found at `path` is a socket that nobody listens on; refuse everything else."""
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(f"{path}: this is in the way, and no socket.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_SECONDS)
        try:
            probe.connect(str(path))
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                return
            # A full backlog, another kind of socket, no permission: who knows what lives there.
            raise ConfigError(
                f"{path}: cannot find out whether a server is listening on this socket ({error})."
            ) from None
        raise Occupied(path, _listening_pid(probe))


def _listening_pid(probe: socket.socket) -> int:
    try:
        return peer_of(probe).pid
    except OSError:
        return 0


class UnixEndpoint:
    """Lets clients in at a listener, in the running loop."""

    def __init__(self, admit: Admit, connect: Connect) -> None:
        """Let in whom `admit` knows and `connect` takes; everybody else is hung up on without an answer."""
        self._admit = admit
        self._connect = connect
        self._taking = False
        self._listener: Listener | None = None
        self._server: asyncio.Server | None = None
        self._sockets: set[LineSocket] = set()
        self._admissions: dict[LineSocket, asyncio.Task[None]] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    async def open(self, listener: Listener) -> None:
        """Take clients from a listener; those that connected since it listens are waiting."""
        self._listener = listener
        self._taking = True
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: LineSocket(self._opened, self._gone), sock=listener.socket, backlog=BACKLOG
        )

    def stop_listening(self) -> None:
        """Take no more clients, those included that were not let in yet."""
        self._taking = False
        server, self._server = self._server, None
        if server is not None:
            server.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for socket_, admission in self._admissions.items():
            admission.cancel()
            socket_.abort()

    async def wait_closed(self) -> None:
        """Wait until every socket is closed: what waited for its client is sent, or was not taken."""
        await self._empty.wait()

    def abort(self) -> None:
        """Close what is still open at once."""
        for socket_ in list(self._sockets):
            socket_.abort()

    def _opened(self, socket_: LineSocket) -> None:
        self._sockets.add(socket_)
        self._empty.clear()
        if not self._taking:  # It was accepted before, and comes here only now.
            socket_.abort()
            return
        self._admissions[socket_] = asyncio.get_running_loop().create_task(self._let_in(socket_))

    def _gone(self, socket_: LineSocket) -> None:
        self._sockets.discard(socket_)
        if not self._sockets:
            self._empty.set()

    async def _let_in(self, socket_: LineSocket) -> None:
        try:
            identity = await self._admit(peer_of(socket_.transport.get_extra_info("socket")))
            connection = self._connect(identity, socket_)
        except Refusal as refusal:
            logger.info("unix.refused", code=refusal.code)
            socket_.abort()
        except Exception:  # the boundary of a task of its own: the client is hung up on
            logger.exception("unix.refused")
            socket_.abort()
        else:
            socket_.listen(connection)
        finally:
            del self._admissions[socket_]
