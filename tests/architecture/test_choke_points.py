"""Each name that only one module may touch is touched by that module alone."""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.architecture.source import PACKAGES, ROOT, modules

# Who may use which of the names that ruff bans (pyproject.toml). An entry that nobody uses any more has to go.
ALLOWED = {
    ("sessions_app/broadcast.py", "channels.layers"),
    ("sessions_app/clock.py", "datetime.datetime.now"),
    ("sessions_app/encoding.py", "msgspec.json.Encoder"),
}


def test_banned_names_are_used_by_their_owners_alone(tmp_path: Path) -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    banned = configuration["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    rules = "\n".join(f"{json.dumps(name)}.msg = {json.dumps(name)}" for name in banned)
    (tmp_path / "ruff.toml").write_text(f"[lint.flake8-tidy-imports.banned-api]\n{rules}\n")

    report = subprocess.run(
        [
            *(sys.executable, "-m", "ruff", "check", "--config", tmp_path / "ruff.toml", "--no-cache"),
            *("--select", "TID251", "--output-format", "json", "--exit-zero", *PACKAGES),
        ],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout

    used = {
        (str(Path(finding["filename"]).relative_to(ROOT)), finding["message"].rpartition(": ")[2])
        for finding in json.loads(report)
    }
    assert used == ALLOWED


MAKERS = {"DurableEvent": "sessions_app/projection.py", "StoredEvent": "sessions_app/ledger.py"}
"""What is sent of an event is made where it is decided what its reader sees of it, and what is stored where the log is read."""


def test_events_are_made_by_their_owners_alone() -> None:
    made = {
        (node.func.id if isinstance(node.func, ast.Name) else node.func.attr, path)
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)
    }
    assert {(name, path) for name, path in made if name in MAKERS} == set(MAKERS.items())
