"""Whatever models and tools do and however turns end: the log, the history and what is asked next stay well formed.

The laws themselves are those of `World.check_laws` and `Turns.check_laws`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessions_app import processes
from sessions_app.commands import operations
from sessions_app.db import in_db
from sessions_app.models import Operation
from sessions_app.models.operations import ENDED
from sessions_app.records import PermissionChoice
from tests.support.scripts import UNAVAILABLE, Gate, Say, Script, Step, Think, Use
from tests.support.turns import NAMES, Turns
from tests.support.world import Client

End = Literal["completed", "failed", "cancelled", "stopped", "lost"]


@dataclass(frozen=True)
class Planned:
    """One turn: what the model says, and what happens at the gate in its last reply or in a tool, if that is reached."""

    replies: Sequence[Script]
    end: End
    answers: Sequence[PermissionChoice]
    """To the requests in turn; with none left, the operation is cancelled."""


words = st.sampled_from(["a", "few words", "ünï\u2028", "x" * 300])
says = st.builds(lambda pieces: Say(*pieces), st.lists(words, max_size=3))
thinks = st.builds(Think, words)
uses = st.builds(Use, st.sampled_from([*NAMES, "unknown"]), st.sampled_from(["{}", '{"gate":"here"}']))
steps: st.SearchStrategy[Step] = says | thinks | uses


def _whole(steps: Sequence[Step]) -> Script:
    """Return a reply as models finish one: reasoning leads to something."""
    ending: Script = [Say("so")] if steps and isinstance(steps[-1], Think) else []
    return [*steps, *ending]


replies = st.lists(steps, max_size=4).map(_whole)


@st.composite
def last_replies(draw: st.DrawFn) -> Script:
    """A reply with a gate somewhere, between two items or inside one."""
    gate = Gate("here", UNAVAILABLE if draw(st.booleans()) else None)
    reply = draw(replies)
    at = draw(st.integers(0, len(reply)))
    places: Sequence[Step] = [gate, Say("before ", gate, "after"), Say(gate, "after"), Think("hm", gate)]
    return _whole([*reply[:at], draw(st.sampled_from(places)), *reply[at:]])


turns_planned = st.builds(
    Planned,
    replies=st.builds(lambda some, last: [*some, last], st.lists(replies, max_size=2), last_replies()),
    end=st.sampled_from(get_args(End)),
    answers=st.lists(st.sampled_from(["approve_once", "deny"]), max_size=3),
)


async def play(turns: Turns, client: Client, plan: Planned) -> None:
    """Run one planned turn to its end."""
    turns.gates.shut()
    turns.model.forget()
    for reply in plan.replies:
        turns.model.will(*reply)
    answers = list(plan.answers)
    await turns.send(client)
    while True:
        await turns.until(lambda: _stands(turns, client), "the turn stands or is over")
        if turns.gates.is_reached("here") and not turns.gates.is_open("here"):
            await end(turns, client, plan.end)
            turns.gates.open("here")
        elif await in_db(Operation.objects.filter(session_id=client.session_id, parked=True).exists):
            waiting = await turns.pending_now(client)
            if answers and waiting:
                await turns.answer(client, waiting[0], answers.pop())
            else:
                await turns.cancel(client)
        else:
            break
    await turns.over()


def _stands(turns: Turns, client: Client) -> bool:
    row = Operation.objects.filter(session_id=client.session_id).latest("started_at")
    at_gate = turns.gates.is_reached("here") and not turns.gates.is_open("here")
    return at_gate or row.parked or row.state in ENDED


async def end(turns: Turns, client: Client, how: End) -> None:
    """Let happen at the gate what was planned; a turn that completes or fails just goes through it."""
    row = await turns.operation(client)
    if how == "cancelled":
        await turns.cancel(client)
    elif how == "stopped":
        await turns.host.stop(0.1)
        turns.host = turns.new_host()
    elif how == "lost":
        await in_db(
            operations.interrupt, client.session_id, row.id, processes.current_id(), operations.WORKER_LOST
        )


async def run(turns: Turns, plans: Sequence[Planned]) -> None:
    """Run planned turns in one session, and a plain one behind each."""
    client = await turns.session()
    for plan in plans:
        await play(turns, client, plan)
        turns.model.forget()
        await turns.turn(client, "and now?")
        assert (await turns.history(client))[-1] == "assistant: ok"
    turns.check_laws()
    turns.model.requests.clear()
    await in_db(turns.world.check_laws)


_settings = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@settings(_settings, max_examples=12)
@given(plans=st.lists(turns_planned, min_size=1, max_size=3))
async def test_random_turns(turns: Turns, plans: Sequence[Planned]) -> None:
    await run(turns, plans)


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(_settings, max_examples=150)
@given(plans=st.lists(turns_planned, min_size=1, max_size=4))
async def test_many_random_turns(turns: Turns, plans: Sequence[Planned]) -> None:
    await run(turns, plans)
