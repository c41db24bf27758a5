"""When a live event may be shown (behaviour 8.5)."""

import msgspec
import pytest

from ochat_site.rpc.live import HOLD_SECONDS, MAX_HELD, LiveEvent, LiveGate, Operations, operation_ended_by
from tests.support.feed_doubles import live

NOW = 1000.0


class Sent:
    def __init__(self, start: int = 0) -> None:
        self.operations = Operations()
        self.numbers: list[int] = []
        self.gate = LiveGate(start, self.operations, lambda event: self.numbers.append(event.sequence))

    def offer(
        self, number: int, anchor: int, cursor: int, now: float = NOW, operation: str = "opn_a"
    ) -> None:
        event = LiveEvent(live(operation, number, anchor))
        if self.operations.admit(event):
            self.gate.hold(event, now)
            self.gate.pass_on(cursor, now)


def test_an_event_goes_behind_its_anchor() -> None:
    sent = Sent()

    sent.offer(1, anchor=3, cursor=2)
    assert sent.numbers == []
    sent.gate.pass_on(3, NOW)

    assert sent.numbers == [1]


def test_an_event_waits_for_its_anchor_a_second_at_most() -> None:
    sent = Sent()

    sent.offer(1, anchor=3, cursor=2)
    sent.gate.pass_on(3, NOW + HOLD_SECONDS + 0.001)

    assert sent.numbers == []
    assert not sent.gate.is_holding


def test_an_event_does_not_pass_an_earlier_one() -> None:
    sent = Sent()

    sent.offer(1, anchor=3, cursor=2)
    sent.offer(2, anchor=2, cursor=2)
    assert sent.numbers == []
    sent.gate.pass_on(3, NOW)

    assert sent.numbers == [1, 2]


def test_doubled_and_late_events_are_dropped() -> None:
    sent = Sent()

    for number in (1, 1, 3, 2, 3, 4):
        sent.offer(number, anchor=1, cursor=1)

    assert sent.numbers == [1, 3, 4]


def test_an_event_behind_the_end_of_its_operation_is_dropped() -> None:
    sent = Sent()
    sent.offer(1, anchor=1, cursor=1)
    sent.operations.note_end("opn_a", 4)

    sent.offer(2, anchor=1, cursor=3)
    sent.offer(3, anchor=1, cursor=4)

    assert sent.numbers == [1, 2]


def test_an_event_of_unknown_fate_waits_until_the_log_was_read() -> None:
    sent = Sent(start=9)

    sent.offer(1, anchor=5, cursor=9)
    assert sent.numbers == []
    assert sent.gate.first_unread() == 5
    sent.operations.note_read(5, 9)
    sent.gate.pass_on(9, NOW)

    assert sent.numbers == [1]
    assert sent.gate.first_unread() is None


def test_an_event_whose_operation_ended_before_the_subscriber_came_is_dropped() -> None:
    sent = Sent(start=9)

    sent.offer(1, anchor=5, cursor=9)
    sent.operations.note_end("opn_a", 7)
    sent.operations.note_read(5, 9)
    sent.gate.pass_on(9, NOW)

    assert sent.numbers == []
    assert not sent.gate.is_holding


def test_a_reading_that_begins_too_late_settles_nothing() -> None:
    sent = Sent(start=9)
    sent.offer(1, anchor=5, cursor=9)

    sent.operations.note_read(6, 9)

    assert sent.gate.first_unread() == 5


def test_no_more_than_a_bound_waits() -> None:
    sent = Sent()

    for number in range(1, MAX_HELD + 10):
        sent.offer(number, anchor=3, cursor=2)
    sent.gate.pass_on(3, NOW)

    assert sent.numbers == list(range(1, MAX_HELD + 1))


def test_a_broken_event_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        LiveEvent(b'{"operation_id":"opn_a"}')


@pytest.mark.parametrize("kind", ["completed", "failed", "cancelled", "interrupted"])
def test_the_events_that_end_an_operation(kind: str) -> None:
    assert operation_ended_by(f"operation.{kind}", b'{"id":"opn_a","x":1}') == "opn_a"
    assert operation_ended_by("operation.started", b'{"id":"opn_a"}') is None
