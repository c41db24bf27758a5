"""One conversation: what is typed becomes calls, what happens becomes words.

Owns: the commands, interrupting, and how a conversation ends. Does not own: words (`transcript`), screens, sessions that
outlive connections (`ochat_client`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from ochat_client import ClientError, Durable, ReconnectingSession, methods
from ochat_site.dialects.ochat1.types import SendMessageResult, ServerInfoParams
from ochat_site.terminal import catalog
from ochat_site.terminal.catalog import NotFound
from ochat_site.terminal.screen import Screen
from ochat_site.terminal.transcript import Transcript
from sessions_app.records import (
    ObservedStopped,
    Operation,
    OperationCancelled,
    OperationFailed,
    OperationId,
    OperationInterrupted,
    Permission,
    Session,
    SessionId,
)

HELP = {
    "/help": "this list",
    "/cancel": "cancel what runs, as Ctrl-C does",
    "/approve [choice]": "let the oldest call that asks run",
    "/deny [reason]": "do not let it run",
    "/start, /stop": "run the session, stop it",
    "/sessions": "the sessions changed last",
    "/open NUMBER|ID": "go on in another session",
    "/new [prompt]": "begin another session",
    "/server": "what the server says of itself",
    "/quit": "leave; the session goes on",
    "//text": "say something that begins with a slash",
}


INTERRUPTED = 130
"""What shells say of a process that Ctrl-C ended."""


@dataclass(frozen=True)
class Left:
    """The conversation is over: `go_to` is the session to go on in, if any; otherwise `code` is the exit code."""

    code: int = 0
    go_to: SessionId | None = None


class Conversation:
    """One session on one screen.

    On a screen that streams, everything goes on at once. On one that does not, each line is answered before the next is
    read, and an answer that does not come makes the exit code 1.
    """

    def __init__(self, session: ReconnectingSession, screen: Screen) -> None:
        """Begin with the session as it was opened; what it holds is shown when the conversation runs."""
        self._session = session
        self._screen = screen
        self._transcript = Transcript(screen, session.projection)
        self._listed: Sequence[Session] = ()
        self._interrupted: OperationId | None = None
        self._code = 0
        self._left: asyncio.Future[Left] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._order = asyncio.Lock()
        self._news = asyncio.Condition()

    async def run(self) -> Left:
        """Show and take until somebody leaves or nothing more can come."""
        self._screen.on_interrupt(self.interrupt)
        self._begin(self._follow())
        self._begin(self._listen())
        try:
            return await self._left
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def interrupt(self) -> None:
        """Cancel what runs; leave when nothing runs, or when that was said already."""
        operation = self._session.projection.session.active_operation
        if operation is UNSET or operation.id == self._interrupted:
            self._leave(Left(0 if self._screen.streams else INTERRUPTED))
        else:
            self._interrupted = operation.id
            self._begin(self._told(self._cancel()))

    # The three things that go on at once

    async def _follow(self) -> None:
        try:
            async for update in self._session:
                self._transcript.show(update)
                if isinstance(update, Durable) and isinstance(update.payload, Operation):
                    self._note_outcome(update.payload)
                async with self._news:
                    self._news.notify_all()
        except ClientError as error:
            self._screen.note(str(error), "error")
            self._leave(Left(1))

    async def _listen(self) -> None:
        await self._in_order(self._run_if_stopped())
        while (line := await self._screen.read_line()) is not None:
            command, _, argument = line.strip().partition(" ")
            if not command:
                continue
            work = self._command(command, argument.strip()) if is_command(command) else self._say(line)
            if self._screen.streams:
                self._begin(self._in_order(work))
            else:
                await self._in_order(work)
        self._leave(Left(0 if self._screen.streams else self._code))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_order(self, work: Coroutine[Any, Any, None]) -> None:
        """Do one thing after the other: what is typed while there is no connection is said in order once there is one."""
        async with self._order:
            await self._told(work)

    async def _told(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (ClientError, NotFound) as refusal:
            self._screen.note(str(refusal), "error")
            self._code = 1

    def _leave(self, left: Left) -> None:
        if not self._left.done():
            self._left.set_result(left)

    # Saying something

    async def _say(self, line: str) -> None:
        text = line.removeprefix("/") if line.startswith("//") else line
        self._transcript.expect(text)
        try:
            result = await self._session.send_message(text)
        except ClientError:
            self._transcript.unexpect(text)
            raise
        if not self._screen.streams:
            async with self._news:
                await self._news.wait_for(lambda: self._is_answered(result))

    def _is_answered(self, sent: SendMessageResult) -> bool:
        """Tell whether the message is in the history and nothing runs, or it was left in the queue."""
        projection = self._session.projection
        return (
            projection.sequence >= sent.latest_event_sequence
            and projection.session.active_operation is UNSET
            and (sent.history_id not in projection.deferred or self._code != 0)
        )

    def _note_outcome(self, operation: Operation) -> None:
        if isinstance(operation.state, OperationFailed | OperationCancelled | OperationInterrupted):
            self._code = 1

    # Commands

    async def _command(self, command: str, argument: str) -> None:
        match command:
            case "/help":
                self._screen.table(("command", "what it does"), list(HELP.items()))
            case "/quit":
                self._leave(Left(0 if self._screen.streams else self._code))
            case "/cancel":
                await self._cancel()
            case "/approve":
                await self._approve(argument)
            case "/deny":
                await self._session.respond(self._asking(), "deny", reason=argument or None)
            case "/start":
                await self._session.start()
            case "/stop":
                await self._session.stop()
            case "/sessions":
                await self._list_sessions()
            case "/open":
                self._leave(Left(go_to=catalog.find_session(self._listed, argument)))
            case "/new":
                prompt = catalog.find_prompt(await catalog.available_prompts(self._session), argument or None)
                self._leave(Left(go_to=await catalog.create_session(self._session, prompt)))
            case "/server":
                await self._show_server()
            case _:
                raise NotFound(f"No such command: {command}. /help lists them.")

    async def _cancel(self) -> None:
        operation = self._session.projection.session.active_operation
        if operation is UNSET:
            raise NotFound("Nothing runs.")
        await self._session.cancel_operation(operation.id)

    async def _approve(self, argument: str) -> None:
        permission = self._asking()
        offered = [choice for choice in permission.choices if choice != "deny"]
        choice = next((choice for choice in offered if choice == (argument or offered[0])), None)
        if choice is None:
            raise NotFound(f"That is not offered. Choose from: {', '.join(offered)}.")
        await self._session.respond(permission, choice)

    def _asking(self) -> Permission:
        pending = self._session.projection.pending_permissions
        if not pending:
            raise NotFound("Nothing asks for permission.")
        return pending[0]

    async def _list_sessions(self) -> None:
        self._listed = await catalog.recent_sessions(self._session)
        rows = catalog.session_rows(self._listed, await catalog.available_prompts(self._session))
        self._screen.table(catalog.SESSION_HEADER, rows)

    async def _show_server(self) -> None:
        info = await self._session.call(methods.SERVER_INFO, ServerInfoParams())
        self._screen.note(
            f"{info.implementation.name} {info.implementation.version}, {', '.join(info.transports)}"
        )

    async def _run_if_stopped(self) -> None:
        """A session that was stopped in order is run again by whoever comes to talk."""
        projection = self._session.projection
        if (
            self._session.mode != "read_only"
            and isinstance(projection.session.observed_state, ObservedStopped)
            and not projection.halted
        ):
            await self._session.start()


def is_command(word: str) -> bool:
    """Tell whether the first word of a line makes it a command."""
    return word.startswith("/") and not word.startswith("//")
