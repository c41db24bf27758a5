"""`manage.py up` under a test's hand."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.waiting import until

STAND_IN = """
import sys
from pathlib import Path
from ochat_site import supervisor
sys.exit(supervisor.main([], Path("tests/support/stand_in_manage.py").absolute()))
"""


class Up:
    """One `up` after the other on a data folder."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self._started: list[subprocess.Popen[str]] = []

    def start(self, **variables: str) -> subprocess.Popen[str]:
        """Start `manage.py up`."""
        return self._start(["manage.py", "up"], variables)

    def start_stand_in(self, **variables: str) -> subprocess.Popen[str]:
        """Start it with a stand-in for the commands that it runs."""
        return self._start(["-c", STAND_IN], variables)

    def ready(self) -> str:
        """Wait for the welcome; what was printed up to its end."""
        process = self._started[-1]
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if "Ctrl-C" in line:
                return said
        raise AssertionError(f"`up` ended while starting: {process.communicate()[1]}")

    def children(self) -> list[psutil.Process]:
        """What it runs, directly and below."""
        return psutil.Process(self._started[-1].pid).children(recursive=True)

    def child(self, command: str, but: int = 0) -> psutil.Process:
        """The process of a command of `manage.py`, or `valkey-server`, once there is one other than `but`."""

        def found() -> psutil.Process | None:
            for child in self.children():
                if child.pid != but and child.status() != psutil.STATUS_ZOMBIE and command in _words(child):
                    return child
            return None

        return until(found, f"{command} runs")  # type: ignore[return-value]  # what is true is not None

    def close(self) -> None:
        """Kill what a failed test left."""
        for process in self._started:
            left = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.kill()
            for child in left:
                child.kill()
            process.communicate()

    def _start(self, arguments: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OCHAT_")}
        environment |= {
            "OCHAT_DATA_DIR": str(self.data_dir),
            "OCHAT_BIND": f"127.0.0.1:{self.port}",
            **variables,
        }
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process


def _words(process: psutil.Process) -> list[str]:
    return [process.name(), *process.cmdline()]
