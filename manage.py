#!/usr/bin/env python3
"""The command line. `up` and gateways are started without Django, so that they stay small."""

import os
import sys

from ochat_site import prctl
from ochat_site.env import ConfigError


def main() -> None:
    """Run one management command; a bad environment is one line and exit 1."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ochat_site.settings")
    prctl.forbid_dumps()
    try:
        if sys.argv[1:2] == ["up"]:
            from ochat_site import supervisor

            sys.exit(supervisor.main(sys.argv[2:]))
        if sys.argv[1:2] == ["ochat_stdio"]:
            from ochat_site.stdio import command

            sys.exit(command.main(sys.argv[2:], _run_command))
        _run_command()
    except ConfigError as error:
        sys.exit(f"ochat: {error}")


def _run_command() -> None:
    """Run a command of Django or of ours; what the kernel refuses becomes the line that `main` prints."""
    from django.core.management import execute_from_command_line

    from sessions_app.errors import Refusal

    try:
        execute_from_command_line(sys.argv)
    except Refusal as refusal:
        raise ConfigError(f"{refusal.message} ({refusal.code}).") from None


if __name__ == "__main__":
    main()
