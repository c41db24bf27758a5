"""Talking over a real connection: choosing, saying, interrupting, commanding, losing the connection, leaving."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import msgspec
import pytest

from ochat_site.terminal.conversation import HELP
from sessions_app.records import (
    Error,
    ObservedStopped,
    OperationCancelled,
    OperationFailed,
)
from tests.ochat_client.agent import SESSION, Agent
from tests.ochat_client.server import Refused, serving
from tests.ochat_site.terminal.desk import Desk, prompt
from tests.ochat_site.terminal.script import Script
from tests.support.waiting import eventually


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with serving(Agent()) as server:
        yield Desk(server)


@asynccontextmanager
async def talking(desk: Desk, *lines: str, **options: Any) -> AsyncIterator[Script]:
    """Chat in the session for the block, and leave in order."""
    screen = Script(*lines)
    running = desk.run(screen, session_id=SESSION, **options)
    await screen.until("/help")
    yield screen
    screen.type("/quit")
    assert await running == 0


# Choosing


async def test_without_sessions_and_with_one_prompt_a_session_is_begun(desk: Desk) -> None:
    desk.server.handlers["session.list"] = lambda *_: {"items": []}
    screen = Script("/quit")
    assert await desk.run(screen) == 0
    [created] = desk.server.called("session.create")
    assert created["spec"]["prompt"] == {"type": "catalog", "prompt_id": "prd_demo"}
    assert created["spec"]["workspace"] == {"type": "configured", "workspace_id": "wsd_scratch"}
    assert created["spec"]["start_immediately"] is True


async def test_a_session_is_chosen_by_number(desk: Desk) -> None:
    screen = Script("1", "/quit")
    assert await desk.run(screen) == 0
    assert f"1|demo|idle|2026-11-30 08:00|{SESSION}" in screen.shown
    assert desk.server.called("session.create") == []
    assert desk.server.called("session.attach")[0]["session_id"] == SESSION


async def test_enter_means_a_new_session_and_then_a_prompt_is_chosen(desk: Desk) -> None:
    desk.prompts = [prompt("demo"), prompt("coding")]
    screen = Script("", "coding", "/quit")
    assert await desk.run(screen) == 0
    assert "coding|The coding prompt" in screen.shown
    assert desk.server.called("session.create")[0]["spec"]["prompt"]["prompt_id"] == "prd_coding"


@pytest.mark.parametrize("lines", [(None,), ("", None)])
async def test_nothing_is_chosen(desk: Desk, lines: tuple[str | None, ...]) -> None:
    desk.prompts = [prompt("demo"), prompt("coding")]
    assert await desk.run(Script(*lines)) == 0
    assert desk.server.called("session.attach") == []


@pytest.mark.parametrize("wanted", ["coding", "prd_coding"])
async def test_a_named_prompt_begins_a_session_without_asking(desk: Desk, wanted: str) -> None:
    desk.prompts = [prompt("demo"), prompt("coding")]
    assert await desk.run(Script("/quit"), prompt=wanted) == 0
    assert desk.server.called("session.create")[0]["spec"]["prompt"]["prompt_id"] == "prd_coding"


@pytest.mark.parametrize(
    ("prompts", "wanted", "sentence"),
    [
        (
            ["demo", "coding"],
            None,
            "Several prompts are there. Available: coding, demo. Name one with --prompt.",
        ),
        (["demo"], "none", "No such prompt: none. Available: demo. Name one with --prompt."),
        ([], None, "No such prompt: any. Available: none. Name one with --prompt."),
    ],
)
async def test_a_pipe_must_be_told_which_prompt(
    desk: Desk, prompts: list[str], wanted: str | None, sentence: str
) -> None:
    desk.prompts = [prompt(name) for name in prompts]
    screen = Script(streams=False)
    assert await desk.run(screen, prompt=wanted) == 1
    assert screen.shown == [f"✗ {sentence}"]


async def test_a_prompt_without_a_workspace(desk: Desk) -> None:
    desk.prompts = [prompt("demo", allowed_workspaces=[])]
    screen = Script()
    assert await desk.run(screen, prompt="demo") == 1
    assert screen.shown == ["✗ The prompt demo allows no workspace."]


async def test_a_session_that_is_not_there(desk: Desk) -> None:
    desk.server.refusals["session.attach"].append(Refused("session_not_found"))
    screen = Script()
    assert await desk.run(screen, session_id="ses_none") == 1
    assert screen.shown[-1].endswith("because of session_not_found (session_not_found)")


async def test_a_session_is_called_by_its_name_where_it_has_one(desk: Desk) -> None:
    spec = msgspec.structs.replace(desk.agent.session.spec, display_name="Holiday")
    desk.agent.session = msgspec.structs.replace(desk.agent.session, spec=spec)
    screen = Script(None)
    await desk.run(screen)
    assert any("|Holiday|" in line for line in screen.shown)


async def test_nobody_is_there(desk: Desk) -> None:
    await desk.server.stop()
    screen = Script()
    assert await desk.run(screen) == 1
    assert screen.shown[0].startswith(f"✗ {desk.uri}: cannot connect")


async def test_credentials_that_are_not_taken(desk: Desk) -> None:
    desk.server.status = HTTPStatus.FORBIDDEN
    screen = Script()
    assert await desk.run(screen) == 1
    assert "does not accept these credentials" in screen.text


async def test_who_may_not_send_reads_along(desk: Desk) -> None:
    desk.scopes = ["session.transcript.read"]
    desk.agent.session = msgspec.structs.replace(desk.agent.session, observed_state=ObservedStopped())
    desk.agent.touch()
    async with talking(desk):
        assert desk.server.called("session.attach")[0]["requested_mode"] == "read_only"
    assert desk.server.called("session.start") == []


async def test_a_stopped_session_is_started(desk: Desk) -> None:
    desk.server.handlers["session.start"] = lambda *_: desk.changed()
    desk.agent.session = msgspec.structs.replace(desk.agent.session, observed_state=ObservedStopped())
    desk.agent.touch()
    async with talking(desk):
        pass
    assert len(desk.server.called("session.start")) == 1


# Saying something


async def test_a_message_and_its_answer(desk: Desk) -> None:
    async with talking(desk, "hello") as screen:
        await eventually(lambda: desk.agent.operation, "the turn runs")
        await desk.answer("Good day.")
        await screen.until("Good day.")
        assert "> hello" not in screen.shown


async def test_a_slash_can_be_said(desk: Desk) -> None:
    desk.answers()
    async with talking(desk, "//etc") as screen:
        await screen.until("answer to /etc")


async def test_a_message_that_is_not_taken(desk: Desk) -> None:
    desk.server.refusals["session.send_message"].append(Refused("invalid_state"))
    async with talking(desk, "hello") as screen:
        await screen.until("✗ because of invalid_state (invalid_state)")


async def test_messages_typed_without_a_connection_are_said_in_order_when_there_is_one(desk: Desk) -> None:
    async with talking(desk) as screen:
        desk.server.status = HTTPStatus.BAD_GATEWAY
        desk.server.open[0].abort()
        await screen.until("connecting again")
        for text in ("one", "two", "three"):
            screen.type(text)
        desk.server.status = None
        await screen.until("Connected again; nothing was missed.")
        await screen.until("Queued: three")
    assert [params["content"]["text"] for params in desk.server.called("session.send_message")] == [
        "one",
        "two",
        "three",
    ]


async def test_what_was_missed_is_shown_after_a_loss(desk: Desk) -> None:
    async with talking(desk) as screen:
        desk.agent.send("from elsewhere")
        desk.server.open[0].abort()
        await screen.until("3 events were missed and follow.")
        await screen.until("> from elsewhere")


async def test_when_the_connection_cannot_come_back_the_chat_ends(desk: Desk) -> None:
    screen = Script()
    running = desk.run(screen, session_id=SESSION)
    await screen.until("/help")
    desk.server.status = HTTPStatus.FORBIDDEN
    await desk.server.open[0].socket.close(4401)
    assert await running == 1
    assert "does not accept these credentials" in screen.text


# Interrupting


async def test_ctrl_c_cancels_what_runs_and_a_second_one_leaves(desk: Desk) -> None:
    desk.server.handlers["session.cancel_operation"] = lambda *_: desk.changed()  # takes its time
    screen = Script("hello")
    running = desk.run(screen, session_id=SESSION)
    await screen.until("/help")
    await eventually(lambda: "working" in screen.states, "the turn runs")
    screen.interrupt()
    await eventually(lambda: desk.server.called("session.cancel_operation"), "it is asked for")
    assert desk.server.called("session.cancel_operation")[0]["operation_id"] == "op_1"
    assert not running.done()

    screen.interrupt()
    assert await running == 0


async def test_ctrl_c_cancels_every_turn_anew(desk: Desk) -> None:
    async with talking(desk) as screen:
        for text in ("one", "two"):
            screen.type(text)
            await eventually(lambda: desk.agent.operation and screen.states[-1] == "working", "the turn runs")
            screen.interrupt()
            await eventually(lambda: screen.states[-1] == "idle", "it is cancelled")
    assert screen.shown.count("· Cancelled.") == 2


@pytest.mark.parametrize(("streams", "code"), [(True, 0), (False, 130)])
async def test_ctrl_c_leaves_when_nothing_runs(desk: Desk, streams: bool, code: int) -> None:
    screen = Script(streams=streams)
    running = desk.run(screen, session_id=SESSION)
    await screen.until("/help")
    screen.interrupt()
    screen.interrupt()
    assert await running == code


# Pipes


async def test_a_pipe_waits_for_each_answer_and_leaves_at_its_end(desk: Desk) -> None:
    desk.answers()
    screen = Script("one", "", "two", None, streams=False)
    assert await desk.run(screen, prompt="demo") == 0
    assert screen.shown[2:] == ["answer to one", "answer to two"]


FAILURE = OperationFailed(error=Error(code="internal_error", message="no", retryable=True))


async def test_a_pipe_says_by_its_exit_code_that_a_turn_failed(desk: Desk) -> None:
    desk.answers(("operation.failed", FAILURE))
    screen = Script("one", "two", None, streams=False)
    assert await desk.run(screen, session_id=SESSION) == 1
    assert "answer to two" in screen.shown


async def test_a_pipe_says_by_its_exit_code_that_a_message_was_refused(desk: Desk) -> None:
    desk.server.refusals["session.send_message"].append(Refused("invalid_state"))
    screen = Script("one", "/quit", streams=False)
    assert await desk.run(screen, session_id=SESSION) == 1


async def test_a_pipe_does_not_wait_for_a_message_that_stays_queued(desk: Desk) -> None:
    desk.agent.send("somebody else's")
    screen = Script("one", None, streams=False)
    running = desk.run(screen, session_id=SESSION)
    await screen.until("Queued: one")
    desk.agent.end("operation.cancelled", OperationCancelled())
    await desk.server.publish()
    assert await running == 1


# Commands


async def test_help_lists_the_commands(desk: Desk) -> None:
    async with talking(desk, "/help") as screen:
        await screen.until("/quit|leave")
    assert [f"{command}|{what}" in screen.shown for command, what in HELP.items()] == [True] * len(HELP)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/dance", "✗ No such command: /dance. /help lists them."),
        ("/cancel", "✗ Nothing runs."),
        ("/approve", "✗ Nothing asks for permission."),
        ("/deny", "✗ Nothing asks for permission."),
        ("/open 7", "✗ No such session: 7"),
        ("/open", "✗ No such session: "),
        ("/new none", "✗ No such prompt: none"),
        ("/start", "✗ because of method_not_found (method_not_found)"),
        ("/server", "✗ because of method_not_found (method_not_found)"),
    ],
)
async def test_what_cannot_be_done_is_said(desk: Desk, line: str, sentence: str) -> None:
    async with talking(desk, line) as screen:
        await screen.until(sentence)


async def test_cancel(desk: Desk) -> None:
    async with talking(desk, "hello") as screen:
        await eventually(lambda: "working" in screen.states, "the turn runs")
        screen.type("/cancel")
        await screen.until("· Cancelled.")


async def test_start_and_stop(desk: Desk) -> None:
    desk.server.handlers |= {
        "session.start": lambda *_: desk.changed(),
        "session.stop": lambda *_: desk.changed(),
    }
    async with talking(desk, "/stop", "/start"):
        await eventually(lambda: desk.server.called("session.start"), "it is asked for")
    assert desk.server.called("session.stop")[0]["mode"] == "graceful"


async def test_requests_are_answered(desk: Desk) -> None:
    desk.agent.send("hello")
    desk.agent.ask("per_1")

    def respond(_: object, params: dict[str, Any]) -> object:
        return {**desk.changed(), "permission": desk.agent.permissions["per_1"]}

    desk.server.handlers["permission.respond"] = respond
    async with talking(
        desk, "/approve perhaps", "/approve", "/approve approve_once", "/deny not now"
    ) as screen:
        await screen.until("✗ That is not offered. Choose from: approve_once.")
        await eventually(lambda: len(desk.server.called("permission.respond")) == 3, "it is asked for")
    answers = desk.server.called("permission.respond")
    assert [answer["choice"] for answer in answers] == ["approve_once", "approve_once", "deny"]
    assert answers[2]["reason"] == "not now"


async def test_a_server_that_takes_no_answers_says_so(desk: Desk) -> None:
    desk.agent.send("hello")
    desk.agent.ask("per_1")
    async with talking(desk, "/approve") as screen:
        await screen.until("✗ because of method_not_found (method_not_found)")


async def test_going_on_in_another_session(desk: Desk) -> None:
    async with talking(desk, "/sessions") as screen:
        await screen.until(SESSION)
        screen.type("/open 1")
        await eventually(lambda: len(desk.server.called("session.attach")) == 2, "it is asked for")
        screen.type("/new demo")
        await eventually(lambda: len(desk.server.called("session.attach")) == 3, "it is asked for")
    assert len(desk.server.called("session.create")) == 1


async def test_what_the_server_is(desk: Desk) -> None:
    desk.server.handlers["server.info"] = lambda *_: {
        "server_id": "srv_1",
        "implementation": {"name": "ochat", "version": "0.1"},
        "protocol_version": {"major": 1, "minor": 0},
        "features": [],
        "transports": ["websocket"],
        "limits": {
            "max_request_bytes": 1,
            "max_event_bytes": 1,
            "max_page_size": 1,
            "max_attachments_per_connection": 1,
        },
        "unsafe_development_auth": False,
    }
    async with talking(desk, "/server") as screen:
        await screen.until("· ochat 0.1, websocket")
