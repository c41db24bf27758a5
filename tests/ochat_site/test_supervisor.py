"""The supervisor with real processes and a real Valkey; what `serve` and `worker` do is played by a stand-in."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ochat_site import valkey
from tests.support.ports import free_port
from tests.support.up import Up
from tests.support.waiting import until


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path / "data")
    yield running
    running.close()


def _plays(up: Up, command: str) -> None:
    """Wait until the stand-in of a command is ready for signals."""
    until(lambda: list((up.data_dir / "pids").glob(f"{command}.*")), f"{command} plays")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_in_order(up: Up, number: signal.Signals) -> None:
    process = up.start_stand_in()
    up.ready()
    _plays(up, "worker")
    children = up.children()
    assert len(children) == 3
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert not any(child.is_running() for child in children)
    assert sorted((up.data_dir / "ends").read_text().split()) == ["serve", "worker"]


def test_a_second_signal_ends_everything_at_once(up: Up) -> None:
    process = up.start_stand_in(STAND_IN_STUBBORN="worker")
    up.ready()
    _plays(up, "worker")
    children = up.children()
    process.send_signal(signal.SIGINT)
    until(lambda: (up.data_dir / "ends").exists(), "serve has ended")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("command", ["serve", "worker", "valkey-server"])
def test_a_killed_child_is_started_again(up: Up, command: str) -> None:
    process = up.start_stand_in()
    up.ready()
    pid = 0
    for _ in range(3):
        child = up.child(command, but=pid)
        pid = child.pid
        child.kill()
    up.child(command, but=pid)
    assert process.poll() is None


def test_nothing_outlives_a_killed_supervisor(up: Up) -> None:
    process = up.start_stand_in()
    up.ready()
    children = up.children()
    process.kill()
    process.wait(30)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


def test_it_starts_again_right_after_it_was_killed(up: Up) -> None:
    up.start_stand_in().kill()
    killed = up.start_stand_in()
    up.ready()
    killed.kill()
    killed.wait(30)
    up.start_stand_in(OCHAT_BIND=f"127.0.0.1:{free_port()}")
    up.ready()
    until(lambda: valkey.answers(up.data_dir / "run"), "the new Valkey answers")


def test_a_named_broker_is_used_and_none_is_started(up: Up) -> None:
    up.start_stand_in(OCHAT_REDIS_URL="redis://127.0.0.1:1")
    up.ready()
    assert len(up.children()) == 2


@pytest.mark.parametrize("command", ["first_run", "worker"])
def test_a_child_that_refuses_to_start_ends_the_start_with_its_line(up: Up, command: str) -> None:
    process = up.start_stand_in(STAND_IN=f"{command}:1")
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (1, f"ochat: {command} refuses to start\n")


def test_a_child_that_crashes_while_starting_is_named(up: Up) -> None:
    process = up.start_stand_in(STAND_IN="first_run:3")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "ochat: serve ended with code 3 while starting."


def test_a_busy_port_is_one_line(up: Up) -> None:
    with socket.create_server(("127.0.0.1", up.port)):
        process = up.start()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors == f"ochat: OCHAT_BIND: cannot listen on 127.0.0.1:{up.port} (Address already in use).\n"


def test_an_unusable_folder_is_one_line(up: Up) -> None:
    up.data_dir.touch()
    process = up.start()
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (
        1,
        f"ochat: {up.data_dir}: cannot make this folder (File exists).\n",
    )


def test_a_linked_socket_folder_is_one_line(up: Up, tmp_path: Path) -> None:
    up.data_dir.mkdir(mode=0o700)
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (up.data_dir / "run").symlink_to(tmp_path / "elsewhere")
    process = up.start()
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (
        1,
        f"ochat: {up.data_dir}/run: the folder of the socket must be a folder itself, not a link.\n",
    )
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755


def test_a_bad_variable_is_one_line(up: Up) -> None:
    process = up.start(OCHAT_LOG_FORMAT="xml")
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (1, "ochat: OCHAT_LOG_FORMAT: expected text or json, not 'xml'.\n")


def test_a_second_up_on_the_same_folder_is_one_line(up: Up) -> None:
    up.start_stand_in()
    up.ready()
    second = up.start(OCHAT_BIND=f"127.0.0.1:{free_port()}")
    _, errors = second.communicate(timeout=30)
    assert (second.returncode, errors) == (
        1,
        f"ochat: {up.data_dir}: another `up` is running on this folder.\n",
    )
