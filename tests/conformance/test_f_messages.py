"""Scenarios F: messages and operations."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from sessions_app.db import in_db
from sessions_app.models import Session
from tests.conformance.peers import Hold, code, history, refusal, shown, told
from tests.conformance.sites import Site
from tests.support.model_scripts import Call, Reply, Text, Wait

HELLO = ["developer: Be brief.", "user: hello"]
GATED = Reply(Text("half ", Wait("gate"), "more"))


async def test_f1(site: Site) -> None:
    """A message to an idle session starts a turn; the events in their order; history and state."""
    site.model.answer(Reply(Text("h", "i")))
    hold = await (await site.peer()).create(start=True)

    sent = await hold.say("hello")
    ended = await hold.until_ended()

    assert sent.disposition == "started"
    assert msgspec.json.decode(ended.payload)["id"] == sent.operation_id
    assert told(hold.events) == [
        ["history.appended", "operation.started", "state(running,running_turn)"],
        ["updated(running)"],
        ["history.appended", "operation.completed", "state(running,idle)"],
    ]
    assert hold.streamed() == "hi"
    now = await hold.snapshot()
    assert history(now) == [*HELLO, "assistant: hi"]
    assert now.canonical_history.entries[1].id == sent.history_id
    assert now.session.observed_state.__struct_config__.tag == "idle"
    assert history(hold.view.snapshot()) == history(now)


async def test_f2(site: Site) -> None:
    """Two clients send at once: one started, one deferred, in one order for everybody."""
    site.model.answer(GATED)
    first = await (await site.peer()).create(start=True)
    second = await (await site.peer()).attach(first.session_id)
    observer = await (await site.peer()).attach(first.session_id, "read_only")

    sent = await asyncio.gather(first.say("one"), second.say("two"))
    await site.peer()
    now = await observer.snapshot()
    site.model.open("gate")
    holds = [first, second, observer]
    for hold in holds:
        await hold.until(lambda hold=hold: hold.kinds.count("operation.completed") == 2)  # type: ignore[misc]

    assert sorted(answer.disposition for answer in sent) == ["deferred", "started"]
    by_revision = sorted(sent, key=lambda answer: answer.revision)
    assert [answer.disposition for answer in by_revision] == ["started", "deferred"]
    listed = [entry.id for entry in (*now.canonical_history.entries[1:], *now.deferred_entries)]
    assert listed == [answer.history_id for answer in by_revision]
    assert len({answer.revision for answer in sent}) == 2
    common = holds[-1].events[0].sequence
    orders = [[(e.sequence, e.kind) for e in hold.events if e.sequence >= common] for hold in holds]
    assert orders[0] == orders[1] == orders[2]
    assert len(orders[0]) > 8


async def test_f5(site: Site) -> None:
    """A blank text, a stopped and a halted session refuse a message."""
    hold = await (await site.peer()).create()

    stopped = await refusal(hold.say())
    assert (stopped.code, stopped.retryable) == ("invalid_state", True)
    await hold.start()
    assert await code(hold.say(" \n\t")) == "invalid_request"
    # As only a moderator does it, and there is none yet.
    row = Session.objects.filter(id=hold.session_id)
    await in_db(row.update, halted=True, halt_reason="enough")
    halted = await refusal(hold.say())
    await in_db(row.update, halted=False, halt_reason="")
    assert (halted.code, halted.retryable) == ("invalid_state", False)
    assert history(await hold.snapshot()) == HELLO[:1]


@pytest.mark.parametrize(
    ("text", "entry"),
    [("<user>a</user><system>b</system>", "user: a"), ("plain words", "user: plain words")],
)
async def test_f6(site: Site, text: str, entry: str) -> None:
    """chatmd: the first user element alone; plain words are wrapped; no user element is an error."""
    hold = await (await site.peer()).create(start=True)

    await hold.say(text, kind="chatmd")
    await hold.until_ended()
    assert history(await hold.snapshot())[:2] == [HELLO[0], entry]


@pytest.mark.parametrize("text", ["<system>b</system>", "<user>a", "<user>a</user", "<unknown>a</unknown>"])
async def test_f6_refused(site: Site, text: str) -> None:
    """chatmd: the first user element alone; plain words are wrapped; no user element is an error."""
    hold = await (await site.peer()).create(start=True)

    assert await code(hold.say(text, kind="chatmd")) in ("invalid_state", "invalid_request")
    assert history(await hold.snapshot()) == HELLO[:1]


async def test_f7(site: Site) -> None:
    """Cancelling a turn keeps the streamed text as incomplete and ignores what comes later."""
    site.model.answer(GATED)
    hold = await (await site.peer()).create(start=True)
    sent = await hold.say("hello")
    await hold.until_text("half ")
    before = len(hold.events)

    result = await hold.cancel(_running(sent.operation_id))
    assert result.session.active_operation
    assert result.session.active_operation.state.__struct_config__.tag in ("cancelling", "cancelled")
    await hold.until_ended()

    assert told(hold.events[before:]) == [
        ["updated(cancelling)"],
        ["history.appended", "operation.cancelled", "moderator.notification", "state(running,idle)"],
    ]
    site.model.open("gate")
    site.model.wait_request().wait_over()
    assert history(await hold.snapshot()) == [*HELLO, "assistant: half …"]
    site.model.answer(Reply(Text("fine")))
    await hold.say("again")
    await hold.until_ended()
    assert history(await hold.snapshot()) == [*HELLO, "assistant: half …", "user: again", "assistant: fine"]


async def test_f8(site: Site) -> None:
    """cancel: another id is a conflict, none active is not found, twice is a success."""
    site.model.answer(GATED)
    hold = await (await site.peer()).create(start=True)

    assert await code(hold.cancel("op_other")) == "operation_not_found"
    sent = await hold.say("hello")
    await hold.until_text("half ")
    assert await code(hold.cancel("op_other")) == "conflict"
    operation_id = _running(sent.operation_id)
    # Sent together: the second is handled before the worker has ended the operation, or finds it gone.
    first, second = await asyncio.gather(
        hold.cancel(operation_id), hold.cancel(operation_id), return_exceptions=True
    )
    await hold.until_ended()
    assert not isinstance(first, BaseException)
    assert hold.kinds.count("operation.cancelled") == 1
    assert hold.kinds.count("session.updated") == 2
    if isinstance(second, BaseException):
        assert await code(hold.cancel(operation_id)) == "operation_not_found"
    else:
        assert second.revision == first.revision
    assert await code(hold.cancel(operation_id)) == "operation_not_found"


async def test_f9(site: Site) -> None:
    """A graceful stop lets the turn end: stopped is wanted at once and seen after the answer."""
    site.model.answer(GATED)
    hold = await (await site.peer()).create(start=True)
    await hold.say("hello")
    await hold.until_text("half ")

    stopping = (await hold.stop("graceful")).session
    assert stopping.desired_state == "stopped"
    assert stopping.observed_state.__struct_config__.tag == "running_turn"
    site.model.open("gate")
    await hold.until_ended()
    now = await hold.snapshot()
    assert now.session.observed_state.__struct_config__.tag == "stopped"
    assert history(now) == [*HELLO, "assistant: half more"]


async def test_f10(site: Site) -> None:
    """A stop that cancels keeps the message once and gives every call an output."""
    site.model.answer(Reply(Text("I look."), Call("clock", call_id="c1"), Call("clock", call_id="c2")))
    hold = await (await site.peer()).create("patient", start=True)
    await hold.say("hello")
    await hold.until(lambda: len(hold.view.pending_permissions) == 2)

    await hold.stop("cancel")
    await hold.until_ended()
    now = await hold.snapshot()
    assert now.session.desired_state == "stopped"
    assert now.session.observed_state.__struct_config__.tag == "stopped"
    assert [shown(entry).split(": ")[0] for entry in now.canonical_history.entries] == [
        "developer",
        "user",
        "assistant",
        "call c1",
        "call c2",
        "output c1",
        "output c2",
    ]
    assert len(site.model.requests) == 1


async def test_f10_while_streaming(site: Site) -> None:
    """A stop that cancels keeps the message once and gives every call an output."""
    site.model.answer(GATED)
    hold = await (await site.peer()).create(start=True)
    await hold.say("hello")
    await hold.until_text("half ")

    await hold.stop("cancel")
    await hold.until_ended()
    assert history(await hold.snapshot()) == [*HELLO, "assistant: half …"]
    assert await _stopped(hold)


async def _stopped(hold: Hold) -> bool:
    session = (await hold.snapshot()).session
    return session.observed_state.__struct_config__.tag == "stopped" and session.desired_state == "stopped"


def _running(operation_id: object) -> str:
    assert isinstance(operation_id, str), "no turn was started"
    return operation_id
