"""What the web process does not speak is not loaded."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_tls_and_wamp_stay_out_and_are_found_by_others() -> None:
    probe = (
        "import sys, ochat_site.server as server;"
        "assert server.server.WebSocketFactory is not None;"
        "print(*sorted({'OpenSSL', 'autobahn.wamp.auth', 'cryptography'} & sys.modules.keys()));"
        "import OpenSSL.SSL, cryptography"
    )
    ran = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr, ran.stdout) == (0, "", "\n")
