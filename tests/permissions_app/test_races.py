"""Answers, expiry and cancelling at the same moment: exactly one wins (behaviour 7.2, 7.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from permissions_app import requests
from permissions_app.models import Grant, PermissionRequest
from sessions_app import clock
from sessions_app.commands import messages
from sessions_app.errors import AlreadyResolved, OperationNotFound, Refusal
from sessions_app.models import SessionEvent
from sessions_app.receipts import Call
from tests.permissions_app import world
from tests.permissions_app.test_requests import HOUR_MS, Asked, ask

if TYPE_CHECKING:
    from sessions_app.records import PermissionChoice

pytestmark = pytest.mark.usefixtures("database", "dispatched")

CHOICES: tuple[PermissionChoice, ...] = ("approve_once", "approve_session", "approve_prefix", "durable_exact")


def outcome(work: Callable[[], object]) -> Callable[[], str]:
    """Return the work as one that says `won`, or the code of its refusal."""

    def run() -> str:
        try:
            work()
        except Refusal as refusal:
            return refusal.code
        return "won"

    return run


def resolved(asked: Asked) -> int:
    return SessionEvent.objects.filter(session=asked.session, kind="permission.resolved").count()


def contiguous(asked: Asked) -> bool:
    sequences = SessionEvent.objects.filter(session=asked.session).order_by("sequence")
    return [*sequences.values_list("sequence", flat=True)] == [*range(1, asked.now().latest_sequence + 1)]


def test_of_many_answers_the_first_to_commit_wins() -> None:
    asked = ask("write")
    choices: list[PermissionChoice] = [*CHOICES, "deny"]
    answers = [outcome(partial(asked.respond, choice)) for choice in choices]
    assert Counter(world.together(*answers)) == {"won": 1, AlreadyResolved.code: len(choices) - 1}
    assert resolved(asked) == 1
    assert contiguous(asked)
    request = PermissionRequest.objects.get()
    assert Grant.objects.count() == (request.choice not in ("approve_once", "deny"))
    assert len(world.resume(asked.claim).start) == (request.choice != "deny")


def test_one_key_sent_twice_at_once_is_one_answer() -> None:
    asked = ask("write")
    answers = world.together(*[lambda: asked.respond("approve_session", key="k")] * 2)
    assert answers[0] == answers[1]
    assert resolved(asked) == 1
    assert Grant.objects.count() == 1


def test_an_answer_and_its_expiry_leave_one_resolution() -> None:
    asked = ask("write", approval_timeout_ms=HOUR_MS, approval_fallback="allow")
    later = clock.now() + timedelta(hours=1)
    with clock.using(lambda: later):
        expired, also_expired, answered = world.together(
            lambda: requests.expire_due(later),
            lambda: requests.expire_due(later),
            outcome(lambda: asked.respond("deny")),
        )
    assert answered == AlreadyResolved.code
    assert (expired, also_expired) != (1, 1)
    assert resolved(asked) == 1
    assert asked.shown().state == "approved"
    assert contiguous(asked)


def test_an_answer_and_a_cancel_leave_one_end() -> None:
    asked = ask("write")
    cancel = Call(caller=asked.caller, method="session.cancel_operation")
    answered, cancelled = world.together(
        outcome(lambda: asked.respond("approve_once")),
        outcome(lambda: messages.cancel_operation(cancel, asked.session.id, asked.claim.operation_id)),
    )
    assert cancelled == "won"
    assert answered in ("won", AlreadyResolved.code, OperationNotFound.code)
    assert resolved(asked) == 1
    assert asked.shown().state == ("approved" if answered == "won" else "cancelled")
    assert asked.now().observed == "idle"
    assert contiguous(asked)
