"""Who may come in by the Unix socket (behaviour 2.2)."""

import os
import socket
from pathlib import Path

import pytest

from ochat_site.peers import Peer, objection, peer_of

UID, GID = os.geteuid(), os.getegid()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc in which 1 ← 100 (a worker) ← 110 ← 111, and 1 ← 200; this process is 1's child."""
    for pid, parent in {1: 0, os.getpid(): 1, 100: 1, 110: 100, 111: 110, 200: 1}.items():
        write(tmp_path, pid, parent, f"{pid}")
    return tmp_path


def write(proc: Path, pid: int, parent: int, in_namespaces: str) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    lines = (f"Name:\ta: (b) {pid}", f"PPid:\t{parent}", f"NSpid:\t{in_namespaces}", "")
    (proc / str(pid) / "status").write_text("\n".join(lines), encoding="utf-8")


def test_a_socket_tells_who_is_at_its_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_of(ours) == Peer(os.getpid(), UID, GID)


def test_this_process_may_come_in() -> None:
    assert objection(Peer(os.getpid(), UID, GID), ()) == ""


@pytest.mark.parametrize(
    ("pid", "expected"),
    [
        (200, ""),
        (100, ""),
        (110, "a descendant of a worker"),
        (111, "a descendant of a worker"),
        (4000, "an unknown process"),
        (0, "an unknown process"),
    ],
)
def test_descendants_of_workers_are_kept_out(proc: Path, pid: int, expected: str) -> None:
    assert objection(Peer(pid, UID, GID), {100}, proc) == expected


def test_another_user_is_kept_out(proc: Path) -> None:
    assert objection(Peer(200, UID + 1, GID), (), proc) == "another user"


def test_another_pid_namespace_is_kept_out(proc: Path) -> None:
    write(proc, 300, 1, "300\t7")

    assert objection(Peer(300, UID, GID), (), proc) == "another pid namespace"


def test_a_proc_of_another_namespace_proves_nothing(proc: Path) -> None:
    write(proc, 200, 1, "77")

    assert objection(Peer(200, UID, GID), (), proc) == "an unknown process"


def test_processes_in_a_circle_prove_nothing(proc: Path) -> None:
    write(proc, 200, 200, "200")

    assert objection(Peer(200, UID, GID), {100}, proc) == "an unknown process"
