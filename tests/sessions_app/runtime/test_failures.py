"""What a turn meets, and that its operation ends all the same: models, stores, lost claims (behaviour 6.5, 14.4)."""

from __future__ import annotations

import msgspec
import pytest
from django.db import connection

from sessions_app import processes
from sessions_app.commands import operations
from sessions_app.commands.operations import Ending
from sessions_app.db import in_db
from sessions_app.limits import MAX_ENTRY_BYTES
from sessions_app.models import Operation
from sessions_app.records import Error
from sessions_app.runtime.models.port import ErrorReason, ModelError
from tests.support.busy import busy
from tests.support.scripts import UNAVAILABLE, Break, Gate, Say, Step, Think, Use
from tests.support.turns import Turns
from tests.support.waiting import eventually
from tests.support.world import Client, World, assistant

REASONS: tuple[ErrorReason, ...] = (
    "provider_auth",
    "provider_limit",
    "provider_unavailable",
    "provider_refused",
    "context_overflow",
)


async def failure(turns: Turns, client: Client) -> Error:
    """Return the error of the operation that failed last."""
    row = await turns.operation(client)
    assert row.state == "failed"
    assert not row.process_id
    assert row.streamed is None
    assert row.error is not None
    return msgspec.json.decode(row.error, type=Error)


async def check_goes_on(turns: Turns, client: Client) -> None:
    """Check that the next turn works."""
    await turns.turn(client, "again")
    assert (await turns.history(client))[-2:] == ["user: again", "assistant: ok"]


# Models


@pytest.mark.parametrize("reason", REASONS)
async def test_a_model_that_does_not_answer(turns: Turns, reason: ErrorReason) -> None:
    """6.5: "Provider or worker failure → operation.failed with the error"."""
    retryable = reason in ("provider_limit", "provider_unavailable")
    client = await turns.session()
    turns.model.will(Break(ModelError(reason, "The model says no.", retryable=retryable)))
    assert (await turns.turn(client))[-1] == ["operation.failed", "state running/idle"]
    error = await failure(turns, client)
    assert (error.code, error.message, error.retryable) == ("internal_error", "The model says no.", retryable)
    assert msgspec.json.decode(msgspec.json.encode(error.data)) == {"reason": reason}
    await check_goes_on(turns, client)


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([Say("One."), Break(UNAVAILABLE)], ["assistant: One."]),
        ([Think("Hm."), Break(UNAVAILABLE)], []),
        (
            [Use("read", call_id="a"), Break(UNAVAILABLE)],
            ["call: a", "output: a: The call was not run: the operation ended first."],
        ),
    ],
    ids=["after an item", "after reasoning", "after a call"],
)
async def test_a_model_that_breaks_off(turns: Turns, steps: list[Step], left: list[str]) -> None:
    client = await turns.session()
    turns.model.will(*steps)
    await turns.turn(client)
    assert await turns.history(client) == ["user: hello", *left]
    assert turns.tools["read"].runs == []
    await failure(turns, client)
    await check_goes_on(turns, client)


async def test_a_model_that_breaks_off_in_its_text(turns: Turns) -> None:
    """6.5, step 1: "streamed text that is in no entry yet, as an assistant entry with … status `incomplete`"."""
    client = await turns.session()
    turns.model.will(Say("Hel", Gate("cut", UNAVAILABLE), "lo"))
    await turns.send(client)
    turns.gates.open("cut")
    await turns.idle(client)
    assert await turns.history(client) == ["user: hello", "assistant: Hel…"]
    await check_goes_on(turns, client)


async def test_a_model_with_a_bug(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Say("Hel", "lo"), Break(RuntimeError("secret detail")))
    await turns.turn(client)
    error = await failure(turns, client)
    assert (error.code, error.message, error.retryable) == ("internal_error", "the turn failed", True)
    assert await turns.history(client) == ["user: hello", "assistant: Hello"]
    await check_goes_on(turns, client)


async def test_an_item_that_is_too_large(turns: Turns) -> None:
    """6.1: "a model item that cannot be cut fails the operation with `resource_limit`"; its text is kept as far as it fits."""
    client = await turns.session()
    turns.model.will(Say("x" * MAX_ENTRY_BYTES))
    await turns.turn(client)
    assert (await failure(turns, client)).code == "resource_limit"
    (_, kept) = await turns.history(client)
    assert kept.startswith("assistant: xxx")
    assert kept.endswith("x…")
    await check_goes_on(turns, client)


async def test_an_output_that_is_too_large_is_cut(turns: Turns) -> None:
    """6.1: "a tool output is cut and says so in words"."""
    client = await turns.session()
    turns.tools["read"].then = lambda _arguments: "x" * MAX_ENTRY_BYTES
    turns.model.will(Use("read", call_id="a"))
    await turns.turn(client)
    assert (await turns.operation(client)).state == "completed"
    assert turns.model.heard()[-1].endswith(
        "[The output was cut here: it is longer than a history entry may be.]"
    )


# The store


def logged(caplog: pytest.LogCaptureFixture, *events: str) -> int:
    """Return how often one of these was logged."""
    said = [record.msg["event"] for record in caplog.records if isinstance(record.msg, dict)]
    return sum(map(said.count, events))


@pytest.mark.parametrize("steps", [[Say("Hello", Gate("here"))], [Use("read", '{"gate":"here"}')]])
async def test_a_busy_store_only_delays(
    impatient_turns: Turns, caplog: pytest.LogCaptureFixture, steps: list[Step]
) -> None:
    """The end of a turn, and the step behind a call, are tried until the store takes them."""
    turns = impatient_turns
    client = await turns.session()
    turns.model.will(*steps)
    await turns.send(client)
    await turns.gates.reached("here")
    with busy(client.session_id):
        turns.gates.open("here")
        await eventually(lambda: logged(caplog, "turn.end_delayed", "turn.delayed") > 2, "refused thrice")
    await turns.idle(client)
    assert (await turns.operation(client)).state == "completed"


async def test_a_busy_store_does_not_stop_a_reply(
    impatient_turns: Turns, caplog: pytest.LogCaptureFixture
) -> None:
    turns = impatient_turns
    client = await turns.session()
    turns.model.will(Say("One."), Say("Two", Gate("here"), "."))
    await turns.send(client)
    await turns.gates.reached("here")
    with busy(client.session_id):
        await eventually(lambda: logged(caplog, "turn.not_tended"), "the first item could not be committed")
    turns.gates.open("here")
    await turns.idle(client)
    assert await turns.history(client) == ["user: hello", "assistant: One.", "assistant: Two."]


async def test_what_the_store_refuses_ends_the_turn_without_it(turns_on_each: Turns) -> None:
    """PostgreSQL takes no NUL in a text; whatever it was, the operation ends and the next one works."""
    turns = turns_on_each
    client = await turns.session()
    turns.model.will(Use("read", call_id="a\0b"))
    await turns.turn(client)
    state = "completed" if connection.vendor == "sqlite" else "failed"
    assert (await turns.operation(client)).state == state
    await check_goes_on(turns, client)


def test_an_end_in_doubt_appends_nothing_twice(world: World) -> None:
    """The commit before it may have been what failed, after it was done."""
    client = world.idle()
    claim = world.turn(client)
    said = assistant("One.", claim.first_number)
    operations.commit_said(claim, [said])
    operations.finish(claim, Ending("completed", entries=[said], in_doubt=True))
    assert world.history(client)[1:] == ["user: hello", "assistant: One."]


# Lost claims


async def test_a_lost_claim_drops_what_comes(turns: Turns) -> None:
    """6.6: "Results with a stale operation ID or claim are ignored"; the text that was saved is kept."""
    client = await turns.session()
    turns.model.will(Say("Hel", Gate("here"), "lo"))
    sent = await turns.send(client)
    await turns.gates.reached("here")
    await turns.until(lambda: Operation.objects.filter(streamed__isnull=False).exists(), "the text is saved")
    assert sent.operation_id is not None
    worker = processes.current_id()
    await in_db(operations.interrupt, client.session_id, sent.operation_id, worker, operations.WORKER_LOST)
    await turns.over()
    assert turns.model.closed == 1, "the request is torn down within a second, whatever the model does"
    assert await turns.history(client) == ["user: hello", "assistant: Hel…"]
    assert (await turns.operation(client)).interruption == operations.WORKER_LOST
    await check_goes_on(turns, client)


async def test_a_lost_claim_stops_its_tools(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Use("read", '{"gate":"here"}', call_id="a"))
    sent = await turns.send(client)
    await turns.gates.reached("here")
    assert sent.operation_id is not None
    await in_db(turns.world.new_process)
    await turns.over()
    assert turns.tools["read"].cancelled == 1
    held = await turns.operation(client)
    assert held.state == "running", "whoever finds the process dead ends it"
    await in_db(
        operations.interrupt, client.session_id, held.id, held.process_id or "", operations.WORKER_LOST
    )
    await check_goes_on(turns, client)


# Saving (behaviour 14.4, peers 4.1)


async def test_streamed_text_is_saved_while_it_streams(turns: Turns) -> None:
    client = await turns.session()
    turns.model.will(Use("read", call_id="a"), Say("One."), Say("Tw", Gate("here"), "o."))
    await turns.send(client)
    await turns.gates.reached("here")

    def saved() -> list[str]:
        row = Operation.objects.get(session_id=client.session_id)
        return [item["text"] for item in msgspec.json.decode(row.streamed or b"[]")]

    await turns.until(lambda: saved() == ["One.", "Tw"], "what is finished behind a call is saved too")
    turns.gates.open("here")
    await turns.idle(client)
    assert await in_db(saved) == []
