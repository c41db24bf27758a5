"""`manage.py up`: everything that one machine needs, started, watched and ended together.

Owns the children (Valkey, the web process, the worker): their order, their restarts and their end. Does not
own what they do, nor the first steps on a new data folder, which need Django (`first_run.py`). It imports no
Django itself: it lives as long as the server does and should weigh nothing.

It has one thread, and all its waiting is one `sigtimedwait`: children that ended and people who want to stop
both arrive as signals.
"""

import argparse
import fcntl
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ochat_site import prctl, valkey
from ochat_site.env import ConfigError, Env, read
from ochat_site.secrets import make_private_dir

MANAGE = Path(__file__).resolve().parent.parent / "manage.py"
STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
SIGNALS = STOP_SIGNALS | {signal.SIGCHLD}

# While something is starting, its readiness is asked this often.
TICK_SECONDS = 0.02
# A child that dies again and again is started again after these pauses; one that ran for a minute is forgiven.
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
FORGIVEN_AFTER_SECONDS = 60.0
# A child that ends by itself this soon after the first start has refused to start, and has said why.
REFUSAL_SECONDS = 10.0
REFUSED = 1
# The default of the setting `shutdown_grace_ms`, and what a child may take beyond its grace before it is killed.
DEFAULT_GRACE_MS = 30_000
MARGIN_SECONDS = 10.0
VALKEY_SECONDS = 5.0


class RefusedToStart(Exception):
    """A child ended while everything was starting; it has said why itself."""


class StopRequested(Exception):
    """Somebody pressed Ctrl-C or sent a signal."""


@dataclass
class Child:
    """One process that is kept running."""

    name: str
    command: list[str]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    due_at: float | None = None

    @property
    def runs(self) -> bool:
        """Whether the process is there."""
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Signal the process and what it started in its group."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                return


def main(arguments: Sequence[str], manage: Path = MANAGE) -> int:
    """Run the commands of `manage` until a signal; the exit code is 1 when the start was refused.

    Refuses with `ConfigError` (one line) a bad variable, a busy address and a folder it cannot use.
    """
    parser = argparse.ArgumentParser(prog="manage.py up", description="Run Ochat on this machine.")
    parser.parse_args(arguments)
    env = read(os.environ, Path.cwd())
    make_private_dir(env.data_dir)
    make_private_dir(env.run_dir)
    if env.run_dir.is_symlink():
        # Before anything is started in it, or changed about it: the web process refuses it too.
        raise ConfigError(f"{env.run_dir}: the folder of the socket must be a folder itself, not a link.")
    env.run_dir.chmod(0o700)
    with _only_one(env.run_dir):
        _check_address(env)
        return Supervisor(env, manage).run()


class Supervisor:
    """The children of one data folder."""

    def __init__(self, env: Env, manage: Path) -> None:
        self._env = env
        self._manage = manage
        self._environment = {**os.environ, "OCHAT_DATA_DIR": str(env.data_dir)}
        self._valkey: Child | None = None
        if env.redis is None:
            self._valkey = Child("valkey", valkey.command(env.run_dir))
            self._environment["OCHAT_REDIS_URL"] = valkey.url(env.run_dir)
        self._serve = Child("serve", [])
        self._worker = Child("worker", self._command("worker"))
        self._starting = True

    @property
    def _children(self) -> list[Child]:
        return [child for child in (self._valkey, self._serve, self._worker) if child is not None]

    def run(self) -> int:
        """Start everything, keep it running, and end it in order."""
        # Blocked, they wait for `sigtimedwait`, also those that come between two calls of it.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        code = 0
        try:
            self._start_all()
            while True:
                self._look_after_children()
                self._wait(self._next_due())
        except StopRequested:
            pass
        except RefusedToStart:
            code = 1
        finally:
            self._drain()
        return code

    def _start_all(self) -> None:
        """Start the children, as much at once as can be: on two cores, importing is what takes the time."""
        if self._valkey is not None:
            self._await_end_of_orphan()
            self._start(self._valkey)
        read_end, write_end = os.pipe()
        with os.fdopen(read_end, "rb") as prepared:
            os.set_blocking(read_end, False)
            # One process prepares the store and then serves it, so that Django is imported once.
            self._serve.command = self._command("first_run", "--notify", str(write_end), "--then", "serve")
            try:
                self._start(self._serve, keep=(write_end,))
            finally:
                os.close(write_end)
            self._serve.command = self._command("serve")
            self._until(lambda: bool(prepared.read(1)))
        self._start(self._worker)
        self._until(self._listens)
        self._starting = False
        _say(self._welcome())

    def _await_end_of_orphan(self) -> None:
        """Let the Valkey of a killed `up` end: the last thing it does is to remove the socket's name."""
        deadline = time.monotonic() + VALKEY_SECONDS
        self._until(lambda: not valkey.answers(self._env.run_dir) or time.monotonic() > deadline)

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, str(self._manage), *arguments]

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._look_after_children()
            self._wait(TICK_SECONDS)

    def _listens(self) -> bool:
        bind = self._env.bind
        try:
            with socket.create_connection((bind.local_host, bind.port), timeout=1):
                return True
        except OSError:
            return False

    def _wait(self, seconds: float | None) -> None:
        information = (
            signal.sigwaitinfo(SIGNALS) if seconds is None else signal.sigtimedwait(SIGNALS, max(seconds, 0))
        )
        if information is not None and information.si_signo in STOP_SIGNALS:
            raise StopRequested

    def _start(self, child: Child, keep: Sequence[int] = ()) -> None:
        parent = os.getpid()

        def prepare() -> None:
            # The supervisor has one thread, so running Python between fork and exec is safe here.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            prctl.end_with_parent(parent, signal.SIGTERM)

        child.due_at = None
        child.started_at = time.monotonic()
        child.process = subprocess.Popen(
            child.command,
            stdin=subprocess.DEVNULL,
            env=self._environment,
            pass_fds=keep,
            # Of its own, so that Ctrl-C reaches the supervisor alone, which then ends them in order.
            start_new_session=True,
            preexec_fn=prepare,
        )

    def _look_after_children(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                self._bury(child, child.process.returncode, now)
            if child.due_at is not None and child.due_at <= now:
                self._start(child)

    def _bury(self, child: Child, code: int, now: float) -> None:
        lived = now - child.started_at
        child.process = None
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        if self._starting or (code > 0 and child.failures == 0 and lived < REFUSAL_SECONDS):
            if code != REFUSED:
                _say(f"ochat: {child.name} {how} while starting.", sys.stderr)
            raise RefusedToStart
        if lived > FORGIVEN_AFTER_SECONDS:
            child.failures = 0
        pause = min(FIRST_PAUSE_SECONDS * 2**child.failures, LONGEST_PAUSE_SECONDS)
        child.failures += 1
        child.due_at = now + pause
        _say(f"ochat: {child.name} {how}; starting it again in {pause:.1f} s.", sys.stderr)

    def _next_due(self) -> float | None:
        due = [child.due_at for child in self._children if child.due_at is not None]
        return min(due) - time.monotonic() if due else None

    def _drain(self) -> None:
        """End the children: those that work first, then what they work with. A second signal kills them."""
        working = [self._serve, self._worker]
        for child in working:
            if child.runs and child.process is not None:
                child.process.terminate()
        self._end(working, _grace_seconds(self._env.catalog) + MARGIN_SECONDS)
        if self._valkey is not None:
            self._valkey.send(signal.SIGTERM)
            self._end([self._valkey], VALKEY_SECONDS)

    def _end(self, children: Sequence[Child], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        try:
            while any(child.runs for child in children) and time.monotonic() < deadline:
                self._wait(deadline - time.monotonic())
        except StopRequested:
            _say("ochat: ending at once.", sys.stderr)
        for child in children:
            # Also what an orderly end left behind in its group.
            child.send(signal.SIGKILL)
            if child.process is not None:
                child.process.wait()

    def _welcome(self) -> str:
        url, token = self._env.bind.url, self._env.data_dir / "client.token"
        # What was set for this command has to be set for the client too.
        given = [
            f"{name}={shlex.quote(self._environment[name])}"
            for name in ("OCHAT_DATA_DIR", "OCHAT_BIND")
            if name in os.environ
        ]
        chat = " ".join([*given, _shown(Path(sys.executable)), _shown(self._manage), "chat"])
        return "\n".join(
            (
                "",
                f"Ochat is running at {url}",
                "",
                f"  talk    {chat}",
                f"  open    {url}/admin/  and sign in as operator",
                f"  speak   {url.replace('http', 'ws', 1)}/v1/ws  with the token in {_shown(token)}",
                f"          unix://{self._env.run_dir / 'agent.sock'}  without one",
                "  stop    Ctrl-C",
                "",
            )
        )


def _shown(path: Path) -> str:
    """A path as it is typed: from here, if it is below here."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


@contextmanager
def _only_one(run_dir: Path) -> Iterator[None]:
    """Hold the folder for this process; the kernel lets it go however the process ends."""
    with (run_dir / "up.lock").open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{run_dir.parent}: another `up` is running on this folder.") from None
        yield


def _check_address(env: Env) -> None:
    """Try the address before anything is started: a busy one is the commonest reason for a failed start."""
    host, port = env.bind.host, env.bind.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror or "not an address"
        raise ConfigError(f"OCHAT_BIND: cannot listen on {host}:{port} ({reason}).") from None


def _grace_seconds(catalog: Path) -> float:
    """How long children may take to end; what the catalog's reader refuses, this one passes over."""
    try:
        server = tomllib.loads(catalog.read_text(encoding="utf-8")).get("server", {})
        grace_ms = int(server.get("shutdown_grace_ms", DEFAULT_GRACE_MS))
    except (OSError, ValueError, AttributeError, TypeError):
        grace_ms = DEFAULT_GRACE_MS
    return max(grace_ms, 0) / 1000


def _say(text: str, stream: IO[str] | None = None) -> None:
    print(text, file=stream or sys.stdout, flush=True)
