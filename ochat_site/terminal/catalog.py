"""Which session to talk in: those that are there, or a new one.

Owns: how prompts and sessions are named on a command line. Does not own: asking a person (`conversation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET

from ochat_client import methods, new_key
from ochat_client.methods import Method, P, R
from ochat_site.dialects.ochat1.types import PromptListParams, SessionCreateParams, SessionListParams
from sessions_app.records import (
    LivenessDetached,
    Prompt,
    PromptRefCatalog,
    Session,
    SessionSpec,
    WorkspaceRequestConfigured,
)

PAGE = 1000
SHOWN = 10
SESSION_HEADER = ("", "session", "state", "changed (UTC)", "id")


class Caller(Protocol):
    """A client, or a session that reconnects."""

    async def call(self, method: Method[P, R], params: P) -> R:
        """Call a method."""
        ...


class NotFound(Exception):
    """What was named is not there; the text is a sentence for a person."""


async def available_prompts(caller: Caller) -> list[Prompt]:
    """Return the prompts that sessions can be made of, in the order of the server."""
    page = await caller.call(methods.PROMPT_LIST, PromptListParams(limit=PAGE, enabled=True, available=True))
    return list(page.items)


def find_prompt(prompts: Sequence[Prompt], wanted: str | None) -> Prompt:
    """Return the prompt with this name or id, or the only one. Raises NotFound."""
    found = [prompt for prompt in prompts if wanted is None or wanted in (prompt.id, prompt.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(sorted(prompt.name for prompt in prompts)) or "none"
    problem = (
        "Several prompts are there" if wanted is None and found else f"No such prompt: {wanted or 'any'}"
    )
    raise NotFound(f"{problem}. Available: {names}. Name one with --prompt.")


async def create_session(caller: Caller, prompt: Prompt) -> str:
    """Create a session that runs at once, in the first workspace that the prompt allows, and return its id."""
    if not prompt.allowed_workspaces:
        raise NotFound(f"The prompt {prompt.name} allows no workspace.")
    spec = SessionSpec(
        execution_host="daemon",
        prompt=PromptRefCatalog(prompt_id=prompt.id),
        workspace=WorkspaceRequestConfigured(workspace_id=prompt.allowed_workspaces[0]),
        liveness=LivenessDetached(),
        persistence="durable",
        start_immediately=True,
        labels={},
    )
    params = SessionCreateParams(spec=spec, subscribe=False, idempotency_key=new_key())
    return (await caller.call(methods.SESSION_CREATE, params)).session.id


async def recent_sessions(caller: Caller) -> list[Session]:
    """Return the sessions changed last, the newest first: a few of the first thousand, in which all of most people's are."""
    page = await caller.call(methods.SESSION_LIST, SessionListParams(limit=PAGE))
    return sorted(page.items, key=lambda session: session.updated_at, reverse=True)[:SHOWN]


def session_rows(sessions: Sequence[Session], prompts: Sequence[Prompt]) -> list[list[str]]:
    """Return a row per session: number, name, state, time of the last change, id."""
    names = {prompt.id: prompt.name for prompt in prompts}
    return [
        [
            str(number),
            _name(session, names),
            str(session.observed_state.__struct_config__.tag),
            session.updated_at[:16].replace("T", " "),
            session.id,
        ]
        for number, session in enumerate(sessions, 1)
    ]


def _name(session: Session, prompts: dict[str, str]) -> str:
    if session.spec.display_name is not UNSET:
        return session.spec.display_name
    prompt = session.spec.prompt
    return prompts.get(prompt.prompt_id, prompt.prompt_id) if isinstance(prompt, PromptRefCatalog) else "?"


def find_session(sessions: Sequence[Session], wanted: str) -> str:
    """Return the id that a number of the list, or an id, stands for. Raises NotFound."""
    if wanted.isdecimal() and 1 <= int(wanted) <= len(sessions):
        return sessions[int(wanted) - 1].id
    if wanted.startswith("ses_"):
        return wanted
    raise NotFound(f"No such session: {wanted}")
