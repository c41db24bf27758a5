"""`manage.py ochat_stdio`: the protocol on standard input and output.

What comes before Django, a gateway included, is in `ochat_site.stdio.command`; this is the host behind it.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from ochat_site.stdio import command, host
from ochat_site.stdio.streams import take_streams


class Command(BaseCommand):
    """Be an embedded host until the input ends."""

    help = "Speak the Ochat agent protocol on standard input and output, a line for each message."
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Define what may be said."""
        command.add_arguments(parser)

    def handle(
        self, *args: Any, local: bool, prompt: Path | None, workspace: Path | None, **options: Any
    ) -> None:
        """Prepare the store of this host, then serve. Refuses with ConfigError what cannot be used."""
        if not local or prompt is None or not settings.ENV.catalog.name == command.HOST_CATALOG:
            raise CommandError("run this as manage.py ochat_stdio")
        source, sink = take_streams()
        for line in host.prepare(settings.ENV, prompt, workspace):
            print(line, file=sys.stderr)  # noqa: T201 - for whoever started it; standard output is the protocol's
        asyncio.run(host.run(source, sink))
