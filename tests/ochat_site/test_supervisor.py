"""`up` with real processes and a real Valkey; what `serve` and `worker` do is played by a stand-in."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ochat_site import valkey
from tests.support.ports import free_port
from tests.support.waiting import until

ROOT = Path(__file__).parent.parent.parent
RUN = """
import sys
from pathlib import Path
from ochat_site import supervisor
sys.exit(supervisor.main([], Path("tests/support/stand_in_manage.py").absolute()))
"""


class Up:
    """One `up` on a data folder."""

    def __init__(self, data_dir: Path, port: int) -> None:
        self.data_dir = data_dir
        self.port = port
        self._started: list[subprocess.Popen[str]] = []

    def start(self, **variables: str) -> subprocess.Popen[str]:
        """Start `up` over the stand-in."""
        return self._start([sys.executable, "-c", RUN], variables)

    def start_really(self, **variables: str) -> subprocess.Popen[str]:
        """Start `manage.py up`."""
        return self._start([sys.executable, "manage.py", "up"], variables)

    def ready(self) -> list[psutil.Process]:
        """Wait for the welcome; the children."""
        process = self._started[-1]
        assert process.stdout is not None
        for line in process.stdout:
            if "Ctrl-C" in line:
                return psutil.Process(process.pid).children(recursive=True)
        raise AssertionError(f"`up` ended while starting: {process.communicate()[1]}")

    def pid(self, command: str, but: int = 0) -> int:
        """The process that plays a command, once one other than `but` does."""

        def found() -> int:
            for path in (self.data_dir / "pids").glob(f"{command}.*"):
                pid = int(path.suffix[1:])
                if pid != but and psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie":
                    return pid
            return 0

        return until(found, f"{command} runs")

    def close(self) -> None:
        """Kill what a failed test left."""
        for process in self._started:
            left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.kill()
            for child in left:
                child.kill()
            process.communicate()

    def _start(self, command: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OCHAT_")}
        environment |= {
            "OCHAT_DATA_DIR": str(self.data_dir),
            "OCHAT_BIND": f"127.0.0.1:{self.port}",
            **variables,
        }
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._started.append(process)
        return process


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path / "data", free_port())
    yield running
    running.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_in_order(up: Up, number: signal.Signals) -> None:
    process = up.start()
    children = up.ready()
    assert sorted(child.name().partition("3")[0] for child in children) == [
        "python",
        "python",
        "valkey-server",
    ]
    up.pid("worker")
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert not any(child.is_running() for child in children)
    assert sorted((up.data_dir / "ends").read_text().split()) == ["serve", "worker"]


def test_a_second_signal_ends_everything_at_once(up: Up) -> None:
    process = up.start(STAND_IN_STUBBORN="worker")
    children = up.ready()
    up.pid("worker")
    process.send_signal(signal.SIGINT)
    until(lambda: (up.data_dir / "ends").exists(), "serve has ended")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert not any(child.is_running() for child in children)


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_a_killed_child_is_started_again(up: Up, command: str) -> None:
    process = up.start()
    up.ready()
    first = up.pid(command)
    os.kill(first, signal.SIGKILL)
    second = up.pid(command, but=first)
    os.kill(second, signal.SIGKILL)
    up.pid(command, but=second)
    assert process.poll() is None


def test_a_killed_valkey_is_started_again(up: Up) -> None:
    up.start()
    (server,) = [child for child in up.ready() if child.name() == "valkey-server"]
    server.kill()
    server.wait(30)
    until(lambda: valkey.answers(up.data_dir / "run"), "Valkey answers again")


def test_nothing_outlives_a_killed_supervisor(up: Up) -> None:
    process = up.start()
    children = up.ready()
    process.kill()
    process.wait(30)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []


def test_a_named_broker_is_used_and_none_is_started(up: Up) -> None:
    up.start(OCHAT_REDIS_URL="redis://127.0.0.1:1")
    assert len(up.ready()) == 2


@pytest.mark.parametrize("command", ["first_run", "worker"])
def test_a_child_that_refuses_to_start_ends_the_start_with_its_line(up: Up, command: str) -> None:
    process = up.start(STAND_IN=f"{command}:1")
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (1, f"ochat: {command} refuses to start\n")


def test_a_child_that_crashes_while_starting_is_named(up: Up) -> None:
    process = up.start(STAND_IN="first_run:3")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "ochat: serve ended with code 3 while starting."


def test_a_busy_port_is_one_line(up: Up) -> None:
    with socket.create_server(("127.0.0.1", up.port)):
        process = up.start_really()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors == f"ochat: OCHAT_BIND: cannot listen on 127.0.0.1:{up.port} (Address already in use).\n"


def test_an_unusable_folder_is_one_line(up: Up) -> None:
    up.data_dir.touch()
    process = up.start_really()
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (
        1,
        f"ochat: {up.data_dir}: cannot make this folder (File exists).\n",
    )


def test_a_bad_variable_is_one_line(up: Up) -> None:
    process = up.start_really(OCHAT_LOG_FORMAT="xml")
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (1, "ochat: OCHAT_LOG_FORMAT: expected text or json, not 'xml'.\n")


def test_a_second_up_on_the_same_folder_is_one_line(up: Up) -> None:
    up.start()
    up.ready()
    second = up.start_really(OCHAT_BIND=f"127.0.0.1:{free_port()}")
    _, errors = second.communicate(timeout=30)
    assert (second.returncode, errors) == (
        1,
        f"ochat: {up.data_dir}: another `up` is running on this folder.\n",
    )
