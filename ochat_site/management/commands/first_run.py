"""`manage.py first_run`: prepare a data folder; used by `up`, and before the first `serve` elsewhere."""

import argparse
import os
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, call_command

from ochat_site import preparation


class Command(BaseCommand):
    """Runs the steps of `preparation.py`, then, when asked to, another command in the same process."""

    help = "Migrate the store, load the example catalog, make the operator account and its token."
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Define what `up` passes."""
        parser.add_argument(
            "--notify", type=int, metavar="FD", help="write a byte here once everything is prepared"
        )
        parser.add_argument(
            "--then",
            nargs=argparse.REMAINDER,
            default=[],
            metavar="COMMAND",
            help="run this command afterwards",
        )

    def handle(self, *args: Any, notify: int | None, then: list[str], **options: Any) -> None:
        """Prepare, tell, go on."""
        for line in preparation.prepare(settings.ENV):
            self.stdout.write(line)
        self.stdout.flush()
        if notify is not None:
            os.write(notify, b"1")
            os.close(notify)
        if then:
            call_command(*then)
