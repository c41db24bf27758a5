"""Each name that only one module may touch is touched by that module alone."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.architecture.source import PACKAGES, ROOT

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
