"""The processes of a run: started, looked at from outside, ended by their ids.

Owns: the temporary data folder, the environment and catalog of the measured server, the model server beside it, processor
time and memory of a family of processes. Does not own: what is asked of them (`measures`, `floors`).
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.wire import BenchError
from ochat_site import prctl

ROOT = Path(__file__).resolve().parent.parent
CHUNKS = 10
"""Of a reply of the mock model, as in the comparison with other servers."""

STOP_SECONDS = 60.0
START_SECONDS = 30.0

CATALOG = """\
version = 1
default_prompt = "bench"
default_workspace = "scratch"

[[workspaces]]
id = "scratch"
source = { temporary = { location = "session_dir", cleanup = "on_session_delete" } }
access = "shared_write"

[[permission_profiles]]
id = "open"
tool_default = "allow"

[[prompts]]
id = "bench"
path = "prompts/bench.chatmd"
description = "A model server that answers at once."
allowed_workspaces = ["scratch"]
permission_profile = "open"
"""
PROMPT = '<config model="openai-responses:mock"/>\n<developer>Answer in one sentence.</developer>\n'


def free_port() -> int:
    """Return a port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """One child, and whatever it starts in its turn. It ends with this process, however this one ends."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: Path, *, tells: bool = True
    ) -> None:
        """Run Python with `arguments` from the root of the checkout. What it says goes to `log`, but for the standard output
        of one that `tells` us something.
        """
        parent = os.getpid()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if tells else output,
                stderr=output,
                text=True,
                preexec_fn=lambda: prctl.end_with_parent(parent, signal.SIGTERM),
            )
        self._log = log

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def line(self) -> str:
        """Return the next line of its output; it must come soon."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        line = self._process.stdout.readline().strip() if ready else ""
        if not line:
            raise BenchError(f"a process did not start:\n{self._log.read_text(encoding='utf-8')}")
        return line

    def family(self) -> list[psutil.Process]:
        """Return this process and all below it."""
        me = psutil.Process(self.pid)
        return [me, *me.children(recursive=True)]

    def finish(self) -> str:
        """Wait until it has ended by itself and return its output."""
        output, _ = self._process.communicate(timeout=STOP_SECONDS * 5)
        if self._process.returncode != 0:
            raise BenchError(f"a process failed:\n{self._log.read_text(encoding='utf-8')}")
        return output

    def stop(self) -> None:
        """End it in order; after `STOP_SECONDS`, it and all below it at once."""
        if self._process.poll() is None:
            family = self.family()
            self._process.terminate()
            try:
                self._process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                for process in family:
                    process.kill()
                self._process.communicate()


@dataclass(frozen=True, slots=True)
class Memory:
    """What a family of processes holds, in bytes. `pss` counts a page that n share as 1/n for each; None where the system
    does not tell us.
    """

    rss: int
    pss: int | None

    @property
    def best(self) -> int:
        """The fairer of the two that there is."""
        return self.rss if self.pss is None else self.pss


def memory(family: Sequence[psutil.Process]) -> Memory:
    """Return the memory of a family."""
    rss = sum(process.memory_info().rss for process in family)
    try:
        return Memory(rss, sum(process.memory_full_info().pss for process in family))
    except psutil.AccessDenied:  # Our processes forbid others to look into them; root may.
        return Memory(rss, None)


def cpu_seconds(family: Sequence[psutil.Process]) -> float:
    """Return the processor time, user and system, that a family has used; it must not have lost a member."""
    times = [process.cpu_times() for process in family]
    return sum(one.user + one.system for one in times)


class Installation:
    """A data folder, the server that works on it, and the model server that it asks."""

    def __init__(self) -> None:
        """Make the folder and start the model server; nothing else runs yet."""
        self.folder = Path(tempfile.mkdtemp(prefix="ochat-bench-"))
        self.port = free_port()
        self._log = self.folder / "bench.log"
        self._others: list[Process] = []
        prompts = self.folder / "prompts"
        prompts.mkdir()
        (prompts / "bench.chatmd").write_text(PROMPT, encoding="utf-8")
        (self.folder / "ochat.toml").write_text(CATALOG, encoding="utf-8")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("OCHAT_")}
        self._environment = {
            **inherited,
            "OCHAT_DATA_DIR": str(self.folder),
            "OCHAT_BIND": f"127.0.0.1:{self.port}",
            "DJANGO_SETTINGS_MODULE": "ochat_site.settings",
        }
        self._server: Process | None = None
        model = self.run("-m", "tests.support.model_servers", "--chunks", str(CHUNKS))
        self.model_url = f"{model.line()}/v1"
        self._environment |= {"OPENAI_BASE_URL": self.model_url, "OPENAI_API_KEY": "bench"}

    @property
    def token(self) -> str:
        """The token of the operator's client."""
        return (self.folder / "client.token").read_text(encoding="utf-8").strip()

    @property
    def family(self) -> list[psutil.Process]:
        """All processes of the server: `up` and everything below it."""
        assert self._server is not None
        return self._server.family()

    def run(self, *arguments: str) -> Process:
        """Run Python beside the server, with its environment, until `close`."""
        process = Process(arguments, self._environment, self._log)
        self._others.append(process)
        return process

    def start(self) -> float:
        """Start the server and do not wait; return when, by `time.perf_counter`."""
        started = time.perf_counter()
        self._server = Process(["manage.py", "up"], self._environment, self._log, tells=False)
        return started

    def stop(self) -> None:
        """End the server in order."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def close(self) -> None:
        """End every process and remove the folder."""
        self.stop()
        for process in self._others:
            process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def errors(self) -> str:
        """Return what the processes wrote to stderr, its end."""
        return self._log.read_text(encoding="utf-8", errors="replace")[-4000:]
