"""Claiming the Unix socket's place (behaviour 1.4, "Unix startup")."""

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ochat_site.env import ConfigError
from ochat_site.transports.unix import Occupied, claim


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "agent.sock"


@pytest.fixture
def folder(path: Path) -> Path:
    path.parent.mkdir(mode=0o700)
    return path.parent


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as refusal:
        claim(path)
    message = str(refusal.value)
    assert message.startswith(str(path)) or message.startswith(str(path.parent))
    assert "\n" not in message
    return message


def test_the_folder_is_made_private_and_so_is_the_socket(path: Path) -> None:
    with closing(claim(path)):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert connects(path)
    assert not path.exists()


def test_a_dead_socket_is_replaced(path: Path, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    with closing(claim(path)):
        assert connects(path)


def test_a_live_socket_is_left_alone(path: Path) -> None:
    with closing(claim(path)):
        with pytest.raises(Occupied) as occupied:
            claim(path)
        assert occupied.value.pid == os.getpid()
        assert connects(path)


def test_a_full_socket_is_left_alone(path: Path, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as waiting:
        full.bind(str(path))
        full.listen(0)
        waiting.connect(str(path))
        assert "cannot find out" in refused(path)
        assert path.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "fifo", "link"])
def test_what_is_no_socket_is_left_alone(path: Path, folder: Path, kind: str) -> None:
    match kind:
        case "file":
            path.touch()
        case "folder":
            path.mkdir()
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to("/dev/null")

    assert "no socket" in refused(path)
    assert path.lstat()


def test_a_socket_of_another_kind_is_left_alone(path: Path, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(path))

        assert "cannot find out" in refused(path)
        assert path.exists()


def test_the_node_of_a_successor_is_left_alone(path: Path) -> None:
    first = claim(path)
    path.unlink()
    with closing(claim(path)):
        first.close()
        assert connects(path)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "elsewhere"
    folder.mkdir(mode=0o700)
    yield folder


def test_a_link_to_a_folder_is_refused(path: Path, elsewhere: Path) -> None:
    path.parent.symlink_to(elsewhere)

    assert "not a link" in refused(path)
    assert list(elsewhere.iterdir()) == []


def test_a_file_in_place_of_the_folder_is_refused(path: Path) -> None:
    path.parent.touch()

    assert "must be a folder" in refused(path)


@pytest.mark.parametrize("mode", [0o710, 0o701, 0o777])
def test_a_folder_that_is_open_to_others_is_refused(path: Path, folder: Path, mode: int) -> None:
    folder.chmod(mode)

    assert "open to others" in refused(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_folder_of_another_user_is_refused(path: Path, folder: Path) -> None:
    os.chown(folder, 12345, 12345)

    assert "another user" in refused(path)


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 100) / "agent.sock"

    assert "under 108 bytes" in refused(path)
