"""`manage.py chat` from its first word to its exit code.

Owns: choosing a session, going from one to another, and telling why it cannot be done. Does not own: a conversation
(`conversation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ochat_client import Client, ClientError, ReconnectingSession
from ochat_site.terminal import catalog
from ochat_site.terminal.catalog import NotFound
from ochat_site.terminal.conversation import Conversation
from ochat_site.terminal.screen import Screen
from ochat_site.terminal.target import Target
from sessions_app.records import AttachmentMode, Prompt, SessionId


async def chat(target: Target, screen: Screen, *, prompt: str | None, session_id: SessionId | None) -> int:
    """Talk until somebody leaves, and return the exit code: 0, 1 when something failed, 130 after Ctrl-C in a pipe.

    With `prompt` (name or id) a new session is begun; with `session_id` that one is opened; without both a person is
    asked, and a pipe begins a new session of the only prompt there is.
    """
    dial = partial(Client.connect, target.uri, token=target.token)
    try:
        async with await dial() as client:
            mode = _mode(client)
            chosen = session_id or await _choose(client, screen, prompt)
        while chosen is not None:
            async with await ReconnectingSession.open(dial, chosen, mode=mode) as session:
                screen.note(f"Session {chosen}. /help lists commands.")
                left = await Conversation(session, screen).run()
            if left.go_to is None:
                return left.code
            chosen = left.go_to
    except (ClientError, NotFound, ValueError) as error:
        screen.note(f"{target.uri}: {error}" if isinstance(error, ClientError) else str(error), "error")
        return 1
    return 0


def _mode(client: Client) -> AttachmentMode:
    return "read_write" if "session.message.send" in client.server.principal.scopes else "read_only"


async def _choose(client: Client, screen: Screen, wanted: str | None) -> SessionId | None:
    """Return the session to open, or None when whoever is asked has enough."""
    if wanted is None and screen.streams:
        return await _ask(client, screen)
    prompt = catalog.find_prompt(await catalog.available_prompts(client), wanted)
    return await catalog.create_session(client, prompt)


async def _ask(client: Client, screen: Screen) -> SessionId | None:
    prompts = await catalog.available_prompts(client)
    sessions = await catalog.recent_sessions(client)
    if sessions:
        screen.table(catalog.SESSION_HEADER, catalog.session_rows(sessions, prompts))
        answer = await _line(screen, "The number or the id of a session, or Enter for a new one:")
        if answer is None or answer:
            return None if answer is None else catalog.find_session(sessions, answer)
    if len(prompts) > 1:
        screen.table(("prompt", "what it is"), _prompt_rows(prompts))
        answer = await _line(screen, "The name of a prompt:")
        if answer is None:
            return None
        return await catalog.create_session(client, catalog.find_prompt(prompts, answer))
    return await catalog.create_session(client, catalog.find_prompt(prompts, None))


async def _line(screen: Screen, question: str) -> str | None:
    screen.note(question)
    answer = await screen.read_line()
    return None if answer is None else answer.strip()


def _prompt_rows(prompts: Sequence[Prompt]) -> list[list[str]]:
    return [[prompt.name, prompt.description or ""] for prompt in prompts]
