"""An installation under a test's hand: a data folder, Valkey, `serve` and `worker`, each a real process.

What `up` keeps running, a test starts, kills and starts again itself.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ochat_site import prctl, valkey
from tests.support.ports import answers, free_port
from tests.support.postgres import Postgres
from tests.support.waiting import until

ROOT = Path(__file__).parent.parent.parent
# Beyond the grace that a process gives what it still does when it is told to end.
ENDS_WITHIN_SECONDS = 60.0


class Process:
    """One process of an installation; its output goes into a file of its own."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self._log = log
        parent = os.getpid()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=lambda: prctl.end_with_parent(parent, signal.SIGKILL),
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def runs(self) -> bool:
        """Whether it is there."""
        return self._process.poll() is None

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition that this process brings about; fail with its output when it ends first."""
        until(lambda: condition() or not self.runs(), what)
        assert self.runs(), f"{self.name} ended with code {self._process.returncode}:\n{self.output}"

    def kill(self) -> None:
        """End it as a crash does."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it in order; its exit code."""
        self._process.terminate()
        return self._process.wait(ENDS_WITHIN_SECONDS)


class Installation:
    """A prepared data folder and the processes that a test runs on it."""

    def __init__(self, data_dir: Path, variables: Mapping[str, str]) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.manage: Sequence[str] = ("manage.py",)
        """What is run as `manage.py`: arguments of the interpreter."""
        self._processes: list[Process] = []
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("OCHAT_")}
        self.environment = {
            **inherited,
            "OCHAT_DATA_DIR": str(data_dir),
            "OCHAT_BIND": f"127.0.0.1:{self.port}",
            "OCHAT_REDIS_URL": valkey.url(data_dir / "run"),
            **variables,
        }

    @property
    def token(self) -> str:
        """The bearer token with all scopes."""
        return (self.data_dir / "client.token").read_text(encoding="utf-8").strip()

    def start_valkey(self) -> Process:
        """Start the broker and wait until it answers."""
        run_dir = self.data_dir / "run"
        run_dir.mkdir(mode=0o700, exist_ok=True)
        process = self._start("valkey", valkey.command(run_dir))
        process.until(lambda: valkey.answers(run_dir), "Valkey answers")
        return process

    def start_serve(self, *arguments: str) -> Process:
        """Start a web process and wait until it listens."""
        process = self.start("serve", *arguments)
        process.until(lambda: answers(self.port), "serve listens")
        return process

    def start(self, command: str, *arguments: str) -> Process:
        """Start `manage.py COMMAND` and do not wait."""
        return self._start(command, [sys.executable, *self.manage, command, *arguments])

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `manage.py COMMAND` to its end."""
        return subprocess.run(
            [sys.executable, *self.manage, command, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            process.kill()

    def _start(self, name: str, command: list[str]) -> Process:
        process = Process(name, command, self.environment, self.data_dir / f"{name}.log")
        self._processes.append(process)
        return process


class Installations:
    """Makes installations as copies of one that was prepared once, on either database."""

    def __init__(self, folder: Path, postgres: Callable[[], Postgres]) -> None:
        self._folder = folder
        self._postgres = postgres
        self._prepared: dict[str, tuple[Path, str]] = {}
        self._made: list[Installation] = []

    def __call__(self, database: str = "sqlite", **variables: str) -> Installation:
        """Make an installation on `sqlite` or `postgresql`, its processes started with `variables`."""
        if database not in self._prepared:
            self._prepared[database] = self._prepare(database)
        prepared, template = self._prepared[database]
        data_dir = self._folder / str(len(self._made))
        shutil.copytree(prepared, data_dir)
        if template:
            variables["OCHAT_DATABASE_URL"] = self._postgres().new_database(template)
        self._made.append(Installation(data_dir, variables))
        return self._made[-1]

    def close(self) -> None:
        """Kill what still runs in all of them."""
        for installation in self._made:
            installation.close()

    def _prepare(self, database: str) -> tuple[Path, str]:
        folder = self._folder / database
        url = self._postgres().new_database() if database == "postgresql" else ""
        done = Installation(folder, {"OCHAT_DATABASE_URL": url}).run("first_run")
        assert done.returncode == 0, done.stderr
        return folder, url
