"""One line per event, ours and the libraries', as text and as JSON."""

import json
import subprocess
import sys

import pytest

from ochat_site.env import LogFormat

SCRIPT = """
import logging, logging.config, sys
import structlog
from ochat_site import logs
logging.config.dictConfig(logs.configuration(sys.argv[1]))
structlog.contextvars.bind_contextvars(session="ses_1")
structlog.get_logger("ours").info("turn.started", operation="op_1")
logging.getLogger("theirs").warning("lost %s", "it", extra={"count": 2})
logging.getLogger("celery.app.trace").info("of no interest")
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger("ours").exception("turn.failed")
    logging.getLogger("channels_redis.pubsub").exception("broker away")
"""


def _lines(log_format: LogFormat) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, log_format], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_lines_hold_everything() -> None:
    ours, theirs, failed, outage = (json.loads(line) for line in _lines("json"))
    assert (ours["event"], ours["operation"], ours["session"], ours["level"]) == (
        "turn.started",
        "op_1",
        "ses_1",
        "info",
    )
    assert (theirs["event"], theirs["logger"], theirs["count"]) == ("lost it", "theirs", 2)
    assert "ZeroDivisionError" in failed["exception"]
    assert (outage["event"], "exception" in outage) == ("broker away", False)
    assert all(line["timestamp"].endswith("Z") for line in (ours, theirs, failed))


@pytest.mark.parametrize("text", ["turn.started", "operation=op_1", "lost it", "ZeroDivisionError"])
def test_text_lines_hold_the_same(text: str) -> None:
    assert any(text in line for line in _lines("text"))
