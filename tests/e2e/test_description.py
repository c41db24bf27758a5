"""A running server does what its OpenAPI description says: schemathesis asks what the description allows, and what it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.conformance.peers import WAIT_SECONDS
from tests.support.processes import Installations

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

CONFIGURATION = Path(__file__).parent / "schemathesis.toml"


def test_the_description_is_true(install: Installations, tmp_path: Path) -> None:
    """No answer fails, has a status, a type or a form that is not described, or accepts what is described as wrong."""
    site = install()
    site.start_valkey()
    site.start("worker")
    site.start_serve()
    description = tmp_path / "openapi.json"
    description.write_bytes(httpx.get(f"{site.url}/docs/openapi.json", timeout=WAIT_SECONDS).content)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION)),
            *("run", description.name, "--url", site.url, "--no-color"),
            *("--header", f"Authorization: Bearer {site.token}"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
