"""An installation whose processes a test starts, kills, pauses and stops itself, with a scripted model behind it.

Owns: its catalog, with durations so short that a test does not wait for them, and short ways to what a test looks at. Does not
own: processes (`tests.support.processes`), clients (`tests.conformance.peers`).
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import psutil

from sessions_app.db import in_db
from sessions_app.models import Operation
from sessions_app.models import Process as Listed
from tests.conformance import fixture
from tests.conformance.peers import Hold, answered
from tests.conformance.sites import SocketDoor
from tests.support import databases
from tests.support.manage_with_tools import EFFECTS, GO
from tests.support.model_servers import ModelServer
from tests.support.processes import Installation, Process
from tests.support.waiting import until

SETTINGS = {
    **fixture.SETTINGS,
    "process_heartbeat_ms": 200,
    "process_expiry_ms": 1500,
    "sweep_lease_ms": 500,
    "shutdown_grace_ms": 4000,
}
PATIENT = "patient"
"""A prompt whose tools wait for an answer, whoever is there."""
OPEN = "open"
"""A prompt whose tools run unasked."""


class CrashSite(SocketDoor):
    """One installation. What it runs is what the test has started."""

    def __init__(self, installation: Installation, model: ModelServer) -> None:
        super().__init__(installation.port)
        self.installation = installation
        self.model = model
        fixture.write(installation.data_dir, SETTINGS)
        for name in (PATIENT, OPEN):
            tools = '<tool name="clock"/>\n<tool name="slow"/>\n'
            fixture.write_prompt(installation.data_dir, name, "Use your tools.", tools)
        installation.manage = ("-m", "tests.support.manage_with_tools")

    # Processes. They end with the thread that started them, which must be the main one.

    def start(self, *, workers: int = 1) -> list[Process]:
        """Start Valkey, a web process and workers; return the workers, ready."""
        self.start_valkey()
        self.start_serve()
        return [self.start_worker() for _ in range(workers)]

    def start_valkey(self) -> Process:
        """Start the broker in place of one that is gone."""
        self.valkey = self.installation.start_valkey()
        return self.valkey

    def start_serve(self) -> Process:
        """Start a web process in place of one that is gone."""
        self.serve = self.installation.start_serve()
        return self.serve

    def start_worker(self) -> Process:
        """Start one more worker and wait until it is ready."""
        ready = self.workers_ready()
        worker = self.installation.start("worker")
        worker.until(lambda: self.workers_ready() > ready, "the worker is ready")
        return worker

    def workers_ready(self) -> int:
        """Return how many workers have said so far that they are ready."""
        log = self.installation.data_dir / "worker.log"
        return log.read_text(encoding="utf-8").count("worker.ready") if log.exists() else 0

    def pause(self, process: Process) -> None:
        """Let a process neither work nor beat."""
        psutil.Process(process.pid).send_signal(signal.SIGSTOP)

    def resume(self, process: Process) -> None:
        """Let it go on as if nothing had been."""
        psutil.Process(process.pid).send_signal(signal.SIGCONT)

    # The tool `slow`

    @property
    def workspace(self) -> Path:
        """Where tools work."""
        return self.installation.data_dir / fixture.PHYSICAL

    def effects(self) -> int:
        """Return how often the tool has had its effect."""
        file = self.workspace / EFFECTS
        return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0

    def await_effects(self, count: int) -> None:
        """Wait until the tool has had its effect so often."""
        until(lambda: self.effects() >= count, f"{count} effects of the tool")

    def let_go(self) -> None:
        """Let the tool return, now and whenever it is called again."""
        (self.workspace / GO).touch()

    # The store

    async def saved(self, hold: Hold, text: bytes) -> None:
        """Wait until so much of what streams is saved."""

        def found() -> bool:
            rows = Operation.objects.filter(session=hold.session_id).values_list("streamed", flat=True)
            return any(text in bytes(row or b"") for row in rows)

        await answered(lambda: in_db(found), "the text is saved")

    async def operation(self, hold: Hold) -> Operation:
        """Return the newest operation of a session."""
        return await in_db(Operation.objects.filter(session=hold.session_id).latest, "started_at")

    async def holder(self, hold: Hold, workers: Sequence[Process]) -> Process:
        """Return the worker that holds the operation of a session."""
        found = Operation.objects.filter(session=hold.session_id).values_list("process__pid", flat=True)
        pid = await in_db(found.get)
        return next(worker for worker in workers if worker.pid == pid)

    async def parked(self, hold: Hold) -> None:
        """Wait until the operation has parked."""
        parked = Operation.objects.filter(session=hold.session_id, parked=True)
        await answered(lambda: in_db(parked.exists), "the operation has parked")

    async def spoken_of(self, times: int) -> None:
        """Tell the workers of every operation so many times more."""
        ids = await in_db(lambda: list(Operation.objects.values_list("id", flat=True)))
        code = f"from jobs_app.dispatch import publish_turn\nfor id in {ids * times}: publish_turn(id)"
        done = self.installation.run("shell", "-c", code)
        assert done.returncode == 0, done.stderr

    async def listed(self, kind: str = "worker") -> int:
        """Return how many processes of a kind are listed in the store."""
        return await in_db(Listed.objects.filter(kind=kind).count)


def database_url(installation: Installation) -> str:
    """Return what `OCHAT_DATABASE_URL` is for another process that shall use the same store."""
    return databases.sqlite_url(installation.data_dir / "ochat.sqlite3")
