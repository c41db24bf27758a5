"""Who is at the other end of a Unix socket, as the kernel tells it (behaviour 2.2).

Owns: reading peer credentials, and the rule who may come in: our own user, from our own pid namespace, and no descendant of a
process that runs what a model asked for. Does not own: which processes those are (`sessions_app.processes`), or the principal
that a peer becomes (`permissions_app.authentication`).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")

_CREDENTIALS = struct.Struct("=iII")
_LONGEST_CHAIN = 4096
"""Generations of processes that are followed; the kernel's own limit on nesting is far below."""


class Peer(NamedTuple):
    """The process that connected, as it was then."""

    pid: int
    """0 for one of another pid namespace that is not below ours."""
    uid: int
    gid: int


def peer_of(connected: socket.socket) -> Peer:
    """Return who is at the other end: who connected, or for a client who listens. Raises OSError when the kernel does not say."""
    found = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return Peer(*_CREDENTIALS.unpack(found))


def objection(peer: Peer, guarded: Collection[int], proc: Path = PROC) -> str:
    """Return why a peer may not come in, in a few words; empty when it may.

    `guarded` are the processes, by pid, whose descendants are kept out. What cannot be found out counts against the peer.
    """
    if peer.uid != os.geteuid():
        return "another user"
    try:
        own, other = _Status(proc, os.getpid()), _Status(proc, peer.pid)
        if own.depth != other.depth:
            return "another pid namespace"
        return "a descendant of a worker" if _descends(other, guarded, proc) else ""
    except (OSError, ValueError):
        # Gone already, hidden, of a namespace outside of ours (pid 0), or a /proc that is not of our namespace.
        return "an unknown process"


def _descends(status: _Status, guarded: Collection[int], proc: Path) -> bool:
    parent = status.parent
    for _ in range(_LONGEST_CHAIN):
        if parent in guarded:
            return True
        if parent <= 1:
            return False
        parent = _Status(proc, parent).parent
    raise ValueError("processes go round in a circle")


class _Status:
    """What the kernel says of a process: readable whoever may look into it, unlike `/proc/PID/ns`."""

    def __init__(self, proc: Path, pid: int) -> None:
        text = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        fields = dict(part.split(":", 1) for part in text.splitlines() if ":" in part)
        in_namespaces = fields["NSpid"].split() if "NSpid" in fields else []
        if not in_namespaces or int(in_namespaces[0]) != pid:
            raise ValueError("not the process of this pid")
        self.depth = len(in_namespaces)
        """How many namespaces it is in, from that of /proc down: the same number as ours means ours, since a process of a
        namespace beside or above ours has no pid here.
        """
        self.parent = int(fields["PPid"])
