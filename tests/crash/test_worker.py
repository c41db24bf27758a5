"""Workers that die, stand still or stop in a turn (behaviour 14.3, 14.4; peers 1, 2)."""

from __future__ import annotations

import psutil
import pytest

from ochat_site.valkey import answers
from sessions_app.commands.operations import SERVER_SHUTDOWN, WORKER_LOST
from tests.conformance.peers import Hold, history
from tests.crash.site import OPEN, PATIENT, CrashSite
from tests.support.model_scripts import Call, Reply, Text, Wait
from tests.support.model_servers import Request
from tests.support.processes import Process

pytestmark = pytest.mark.timeout(300)

UNKNOWN = "The call was interrupted before it returned; what it did is unknown."


def asked_with(request: Request) -> list[str]:
    """Return the input of a request in a few words, and check that each call in it has its output."""
    calls = [item["call_id"] for item in request.body["input"] if item["type"] == "function_call"]
    outputs = [item["call_id"] for item in request.body["input"] if item["type"] == "function_call_output"]
    assert calls == outputs
    return [str(item.get("role") or item["type"]) for item in request.body["input"]]


async def check_goes_on(site: CrashSite, hold: Hold) -> None:
    """Check that the next turn works."""
    site.model.answer(Reply(Text("All is well.")))
    await hold.say("again")
    assert (await hold.until_ended()).kind == "operation.completed"
    assert history(await hold.snapshot())[-2:] == ["user: again", "assistant: All is well."]
    asked_with(site.model.requests[-1])


async def half_said(site: CrashSite, hold: Hold) -> None:
    """Begin a turn, and let its model fall silent once what it said is saved."""
    site.model.answer(Reply(Text("Half ", "said", Wait("silence"), " more")))
    await hold.say("hello")
    await hold.until_text("Half said")
    await site.saved(hold, b"Half said")


async def check_interrupted(site: CrashSite, hold: Hold, reason: str, *left: str) -> None:
    """Check how the turn that `half_said` or `at_work` began has ended."""
    ended = await hold.until_ended()
    row = await site.operation(hold)
    assert (ended.kind, row.interruption, row.retryable) == ("operation.interrupted", reason, True)
    assert history(await hold.snapshot())[1:] == ["user: hello", *left]
    assert hold.view.session.observed_state.__struct_config__.tag == "idle"


async def at_work(site: CrashSite, hold: Hold) -> None:
    """Begin a turn whose tool has had its effect and does not return."""
    site.model.answer(Reply(Call("slow", call_id="call_1")))
    await hold.say("hello")
    site.await_effects(1)


def ended(process: Process) -> bool:
    """Tell whether nothing is left of a process."""
    return not process.runs() and not psutil.pid_exists(process.pid)


# Killed


async def test_killed_in_mid_reply(site: CrashSite) -> None:
    """K14; 14.4: interrupted, `worker_lost`; the text is kept; the model is not asked again for it."""
    workers = site.start(workers=2)
    hold = await (await site.peer()).create(OPEN, start=True)
    await half_said(site, hold)
    (await site.holder(hold, workers)).kill()
    await check_interrupted(site, hold, WORKER_LOST, "assistant: Half said…")
    assert len(site.model.requests) == 1
    await check_goes_on(site, hold)
    assert len(site.model.requests) == 2
    assert asked_with(site.model.requests[1]) == ["developer", "user", "assistant", "user"]


@pytest.mark.long
async def test_killed_while_a_tool_runs(site: CrashSite) -> None:
    """14.4: "Unknown side effects are never repeated"."""
    (worker,) = site.start()
    hold = await (await site.peer()).create(OPEN, start=True)
    await at_work(site, hold)
    worker.kill()
    site.start_worker()
    site.let_go()
    await check_interrupted(site, hold, WORKER_LOST, "call call_1", f"output call_1: {UNKNOWN}")
    await check_goes_on(site, hold)
    assert site.effects() == 1


@pytest.mark.long
async def test_all_killed_while_a_request_waits(site: CrashSite) -> None:
    """7.2: a request whose operation is parked on it survives; the tool runs once."""
    (worker,) = site.start()
    hold = await (await site.peer()).create(PATIENT, start=True)
    site.model.answer(Reply(Text("May I?"), Call("slow", call_id="call_1")), Reply(Text("Done.")))
    await hold.say("hello")
    await hold.until_asked()
    await site.parked(hold)
    for process in (worker, site.serve, site.valkey):
        process.kill()
    site.start()
    later = await (await site.peer()).attach(hold.session_id)
    (permission,) = later.view.pending_permissions
    site.let_go()
    await later.answer(permission, "approve_once")
    assert (await later.until_ended()).kind == "operation.completed"
    assert site.effects() == 1
    assert history(await later.snapshot())[1:] == [
        "user: hello",
        "assistant: May I?",
        "call call_1",
        "output call_1: done",
        "assistant: Done.",
    ]
    assert len(site.model.requests) == 2
    asked_with(site.model.requests[-1])


@pytest.mark.long
async def test_killed_while_one_call_runs_and_another_waits(site: CrashSite) -> None:
    """7.2: a request is left alone only where its operation is parked on it; any other is cancelled with its operation."""
    (worker,) = site.start()
    hold = await (await site.peer()).create(PATIENT, start=True)
    site.model.answer(Reply(Call("slow", call_id="call_1"), Call("clock", call_id="call_2")))
    await hold.say("hello")
    await hold.until(lambda: len(hold.view.pending_permissions) == 2)
    running, _ = sorted(hold.view.pending_permissions, key=lambda permission: permission.call_id)
    await hold.answer(running, "approve_once")
    site.await_effects(1)
    worker.kill()
    site.start_worker()
    await check_interrupted(
        site,
        hold,
        WORKER_LOST,
        "call call_1",
        "call call_2",
        f"output call_1: {UNKNOWN}",
        "output call_2: The call was not run: the operation ended first.",
    )
    await hold.until(lambda: not hold.view.pending_permissions)
    await check_goes_on(site, hold)
    assert site.effects() == 1


# Taken for dead


@pytest.mark.long
async def test_a_worker_that_stands_still_is_not_heard_any_more(site: CrashSite) -> None:
    """6.6: results of a claim that was lost are dropped; the worker goes on under a new name."""
    (worker,) = site.start()
    hold = await (await site.peer()).create(OPEN, start=True)
    await half_said(site, hold)
    site.pause(worker)
    await check_interrupted(site, hold, WORKER_LOST, "assistant: Half said…")
    site.model.open("silence")
    site.resume(worker)
    site.model.requests[0].wait_over()
    await check_goes_on(site, hold)
    assert history(await hold.snapshot())[1:] == [
        "user: hello",
        "assistant: Half said…",
        "user: again",
        "assistant: All is well.",
    ]
    assert [event.kind for event in hold.events].count("operation.interrupted") == 1
    assert worker.runs()


# Stopped


@pytest.mark.long
async def test_stopped_while_a_turn_can_finish(site: CrashSite) -> None:
    """14.3: "running operations and jobs may finish within the grace"."""
    (worker,) = site.start()
    hold = await (await site.peer()).create(OPEN, start=True)
    await half_said(site, hold)
    psutil.Process(worker.pid).terminate()
    site.model.open("silence")
    assert (await hold.until_ended()).kind == "operation.completed"
    assert worker.stop() == 0
    assert ended(worker)
    assert await site.listed() == 0
    assert history(await hold.snapshot())[1:] == ["user: hello", "assistant: Half said more"]
    site.start_worker()
    await check_goes_on(site, hold)


@pytest.mark.long
async def test_stopped_while_turns_cannot_finish(site: CrashSite) -> None:
    """14.3: "what still runs near its end is ended as in 14.4, reason `server_shutdown`"; parked ones are left alone."""
    (worker,) = site.start()
    peer = await site.peer()
    talking, calling = await peer.create(OPEN, start=True), await peer.create(OPEN, start=True)
    waiting = await peer.create(PATIENT, start=True)
    site.model.answer(Reply(Call("clock", call_id="call_1")))
    await waiting.say("hello")
    permission = await waiting.until_asked()
    await site.parked(waiting)
    await half_said(site, talking)
    await at_work(site, calling)
    assert worker.stop() == 0
    assert ended(worker)
    assert await site.listed() == 0
    await check_interrupted(site, talking, SERVER_SHUTDOWN, "assistant: Half said…")
    await check_interrupted(site, calling, SERVER_SHUTDOWN, "call call_1", f"output call_1: {UNKNOWN}")
    site.start_worker()
    await waiting.answer(permission, "approve_once")
    assert (await waiting.until_ended()).kind == "operation.completed"
    for hold in (talking, calling):
        await check_goes_on(site, hold)


@pytest.mark.long
async def test_stopped_while_the_broker_is_gone(site: CrashSite) -> None:
    (worker,) = site.start()
    site.valkey.kill()
    assert worker.stop() == 0
    assert ended(worker)


# The broker


@pytest.mark.long
async def test_the_broker_dies_in_a_turn(site: CrashSite) -> None:
    """Peers 2: "stop/start DB and Redis during load; recover without restart"."""
    (worker,) = site.start()
    hold = await (await site.peer()).create(OPEN, start=True)
    await half_said(site, hold)
    site.valkey.kill()
    site.model.open("silence")
    assert (await hold.until_ended()).kind == "operation.completed"
    site.model.answer(Reply(Text("Late.")))
    await hold.say("while it is gone")
    assert not answers(site.installation.data_dir / "run")
    site.start_valkey()
    assert (await hold.until_ended()).kind == "operation.completed"
    await check_goes_on(site, hold)
    assert worker.runs()
    assert len(site.model.requests) == 3


# Races


@pytest.mark.long
async def test_workers_that_race_for_turns(site: CrashSite) -> None:
    """Each turn is asked once, however often it is spoken of: messages wait for two workers that start at once."""
    site.start_valkey()
    site.start_serve()
    peer = await site.peer()
    holds = [await peer.create(OPEN, start=True) for _ in range(8)]
    site.model.default = Reply(Text("Once."))
    for hold in holds:
        await hold.say("hello")
    await site.spoken_of(3)
    workers = [site.installation.start("worker") for _ in range(2)]
    for hold in holds:
        assert (await hold.until_ended()).kind == "operation.completed"
        assert history(await hold.snapshot())[1:] == ["user: hello", "assistant: Once."]
    assert len(site.model.requests) == len(holds)
    assert all(worker.runs() for worker in workers)
