"""A server with a catalog, and what happens at it while somebody chats."""

from __future__ import annotations

import asyncio
from typing import Any

from ochat_site.terminal.chat import chat
from ochat_site.terminal.target import Target
from sessions_app.events import EventKind
from sessions_app.records import OperationCancelled, OperationCompleted, OperationState
from tests.ochat_client.agent import entry
from tests.ochat_client.server import Connection, Server
from tests.ochat_site.terminal.script import Script

SCOPES = ["session.transcript.read", "session.message.send"]


def prompt(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"prd_{name}",
        "name": name,
        "description": f"The {name} prompt",
        "enabled": True,
        "allowed_workspaces": ["wsd_scratch"],
        "permission_profile": "open",
        "availability": "available",
        **changes,
    }


class Desk:
    """A server with a catalog, and whoever sits in front of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.agent = server.agent
        self.uri = server.uri
        self.prompts = [prompt("demo")]
        self.scopes = SCOPES
        initialize = server.handler("protocol.initialize")
        server.handlers |= {
            "protocol.initialize": lambda connection, params: {
                **initialize(connection, params),
                "principal": {
                    "id": "pri_1",
                    "authentication_kind": "http.static_bearer",
                    "scopes": self.scopes,
                },
            },
            "prompt.list": lambda *_: {"items": self.prompts},
            "session.list": lambda *_: {"items": [self.agent.session]},
            "session.cancel_operation": self._cancel,
        }

    def run(self, screen: Script, **options: Any) -> asyncio.Task[int]:
        """Begin to chat."""
        chosen = {"prompt": None, "session_id": None, **options}
        return asyncio.create_task(chat(Target(self.uri, None), screen, **chosen))

    async def answer(self, text: str) -> None:
        """Finish the turn that runs."""
        self.agent.ready()
        self.agent.append(entry(self.agent.number(), text, "assistant"))
        self.agent.end("operation.completed", OperationCompleted())
        await self.server.publish()

    def answers(self, *answers: tuple[EventKind, OperationState]) -> None:
        """Answer each message as soon as it comes, with these ends in turn."""
        send = self.server.handler("session.send_message")
        ends = iter(answers)

        def answered(connection: Connection, params: dict[str, Any]) -> object:
            result = send(connection, params)
            kind, state = next(ends, ("operation.completed", OperationCompleted()))
            self.agent.append(
                entry(self.agent.number(), f"answer to {params['content']['text']}", "assistant")
            )
            self.agent.end(kind, state)
            return result

        self.server.handlers["session.send_message"] = answered

    def _cancel(self, connection: Connection, params: dict[str, Any]) -> object:
        self.agent.end("operation.cancelled", OperationCancelled())
        return self.changed()

    def changed(self) -> dict[str, Any]:
        """Return the answer to most mutations."""
        return {
            "revision": self.agent.session.revision,
            "latest_event_sequence": self.agent.sequence,
            "session": self.agent.session,
        }
