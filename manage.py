#!/usr/bin/env python3
"""The command line. `up` is started without Django, so that the supervisor stays small."""

import os
import sys

from ochat_site.env import ConfigError


def main() -> None:
    """Run one management command; a bad environment is one line and exit 1."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ochat_site.settings")
    try:
        if sys.argv[1:2] == ["up"]:
            from ochat_site import supervisor

            sys.exit(supervisor.main(sys.argv[2:]))
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
    except ConfigError as error:
        sys.exit(f"ochat: {error}")


if __name__ == "__main__":
    main()
