"""Refusals and their records."""

from __future__ import annotations

import pytest

from ochat_site.dialects.ochat1.errors import to_error as to_ochat_error
from sessions_app.errors import BY_CODE, Conflict, InvalidState, Refusal, ResourceLimit, from_error, to_error
from sessions_app.records import Error, ErrorCode

RETRYABLE = {
    "store_locked",
    "persistence_error",
    "server_shutting_down",
    "snapshot_required",
    "command_queue_full",
}


@pytest.mark.parametrize("code", [code for code in BY_CODE if code != "resource_limit"])
def test_a_refusal_says_whether_a_retry_usually_makes_sense(code: ErrorCode) -> None:
    assert BY_CODE[code]("no").retryable == (code in RETRYABLE)


def test_each_place_may_say_otherwise() -> None:
    assert InvalidState("not running", retryable=True).retryable
    assert not InvalidState("halted").retryable
    assert ResourceLimit("queue full", retryable=True).retryable


def test_a_refusal_and_its_record_stand_for_each_other() -> None:
    refusal = Conflict("stale revision", retryable=True, data={"revision": 3})
    back = from_error(to_error(refusal))

    assert isinstance(back, Conflict)
    assert (back.message, back.retryable, back.data) == ("stale revision", True, {"revision": 3})


def test_ochat_clients_get_no_data() -> None:
    assert to_ochat_error(Conflict("stale", data={"revision": 3})) == Error(
        code="conflict", message="stale", retryable=False
    )


def test_the_message_is_the_text_of_the_exception() -> None:
    assert str(Refusal("no")) == "no"
