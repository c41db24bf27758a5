"""`manage.py chat`: talk to an agent from a terminal or a pipe. Needs no database, and no server of this machine."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from ochat_site.terminal import target
from ochat_site.terminal.chat import chat
from ochat_site.terminal.conversation import INTERRUPTED
from ochat_site.terminal.screen import PlainScreen
from ochat_site.terminal.tty import TtyScreen


class Command(BaseCommand):
    """Finds the server and the screen, and ends with the exit code of the chat."""

    help = (
        "Talk to an agent. On a terminal, type; in a pipe, each line of standard input is a message and the answers go"
        " to standard output."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Define what a person may say."""
        parser.add_argument("--connect", metavar="URI", help="the server; this machine's own by default")
        parser.add_argument(
            "--prompt", metavar="ID", help="begin a new session of this prompt, by name or id"
        )
        parser.add_argument("--session", metavar="ID", help="go on in this session")
        parser.add_argument(
            "--bearer-token-file",
            type=Path,
            metavar="FILE",
            help="the token; client.token of the data folder by default, for this machine's server only",
        )

    def handle(
        self,
        *args: Any,
        connect: str | None,
        prompt: str | None,
        session: str | None,
        bearer_token_file: Path | None,
        **options: Any,
    ) -> None:
        """Chat."""
        found = target.find(settings.ENV, connect, bearer_token_file)
        interactive = sys.stdin.isatty() and sys.stdout.isatty()
        try:
            code = asyncio.run(_chat(found, interactive=interactive, prompt=prompt, session=session))
        except KeyboardInterrupt:  # before there is a conversation to interrupt
            code = INTERRUPTED
        sys.exit(code)


async def _chat(found: target.Target, *, interactive: bool, prompt: str | None, session: str | None) -> int:
    screen = TtyScreen() if interactive else PlainScreen.standard()
    return await chat(found, screen, prompt=prompt, session_id=session)
