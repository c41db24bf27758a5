"""Logging: one structlog pipeline for our lines and the libraries', as text or JSON, on standard error.

Owns the shape of a log line. What may stand in one is each caller's duty: never message text, tool
input or tokens.
"""

import logging
import sys
from typing import Any

from ochat_site.env import LogFormat

# structlog imports these two when they are installed, for ways of printing that nobody uses here: 0.2 s and
# 11 MB in every process. It does without what looks as if it were missing.
_NOT_FOR_LOGS = [name for name in ("rich", "twisted") if name not in sys.modules]
sys.modules.update(dict.fromkeys(_NOT_FOR_LOGS))  # type: ignore[arg-type]  # None means: cannot be imported
import structlog  # noqa: E402 - after the above

for name in _NOT_FOR_LOGS:
    del sys.modules[name]


class WithoutTraceback(logging.Filter):
    """For lines that a library writes with a traceback, once a second, as long as an outage lasts."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every line pass, as one line."""
        record.exc_info = None
        return True


def configuration(log_format: LogFormat) -> dict[str, Any]:
    """Configure structlog, and return the `dictConfig` that sends the standard library's records along."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if log_format == "json"
        else [structlog.dev.ConsoleRenderer(colors=False)]
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": shared,
                "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
            }
        },
        "filters": {"without_traceback": {"()": WithoutTraceback}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": "INFO"},
        "loggers": {
            # Django attaches its own handlers to these two; one line per event is enough.
            "django": {"handlers": [], "propagate": True},
            "django.server": {"handlers": [], "propagate": True},
            # A line per request, task or statement belongs to a proxy and to a profiler.
            "daphne": {"level": "WARNING"},
            "celery.worker.strategy": {"level": "WARNING"},
            "celery.app.trace": {"level": "WARNING"},
            "django.db.backends": {"level": "WARNING"},
            "httpx": {"level": "WARNING"},
            "httpx2": {"level": "WARNING"},
            "channels_redis.pubsub": {"filters": ["without_traceback"]},
        },
    }
