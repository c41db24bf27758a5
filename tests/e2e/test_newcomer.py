"""A newcomer's path: a clone in an empty folder, and the README's commands as they are written there."""

import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.ports import free_port
from tests.support.processes import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

COMMANDS = re.compile(
    r"^ *(make (?:up|test)|\.venv/bin/python manage\.py chat --prompt demo)\b", re.MULTILINE
)


def test_a_clone_in_an_empty_folder_answers_after_two_commands(tmp_path: Path) -> None:
    """`make test` runs one folder here: what it runs by itself is what every check of a clone runs."""
    clone = tmp_path / "ochat"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    up, test, chat, *_ = (
        words.split() for words in dict.fromkeys(COMMANDS.findall((clone / "README.md").read_text()))
    )
    assert (up, test) == (["make", "up"], ["make", "test"])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OCHAT_")}
    # The port alone is not a newcomer's: another server may run on this machine.
    environment["OCHAT_BIND"] = f"127.0.0.1:{free_port()}"

    with subprocess.Popen(
        up, cwd=clone, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        welcome = ""
        for line in running.stdout:
            welcome += line
            if "Ctrl-C" in line:
                break
        try:
            assert "manage.py chat" in welcome
            assert environment["OCHAT_BIND"] in welcome
            answer = subprocess.run(
                chat, cwd=clone, env=environment, input="hello\n", capture_output=True, text=True, check=True
            ).stdout
            assert answer.strip()
            children = psutil.Process(running.pid).children(recursive=True)
        finally:
            os.killpg(running.pid, signal.SIGINT)  # what Ctrl-C does
            running.wait(60)
    assert psutil.wait_procs(children, timeout=0)[1] == []

    tested = subprocess.run(
        [*test, "ARGS=tests/architecture"],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert status.stdout == ""
