"""What needs the store itself; run beside the server as `python -m bench.store`, because it needs Django.

transactions COUNT           the floor of the store: a bare ORM transaction of three statements, COUNT times;
                             prints the median, in milliseconds
grow SESSION ENTRIES         appends entries to a session, through the kernel, one event each
"""

from __future__ import annotations

import sys
import time
from statistics import median

import django

ENTRIES_AT_ONCE = 500
"""In one transaction: the server beside goes on."""


def transactions(count: int) -> float:
    """Return how many milliseconds an insert, an update and a select take together with their commit."""
    from django.contrib.sessions.models import Session
    from django.db import transaction

    from sessions_app import clock

    times = []
    now = clock.now()
    for number in range(count):
        begun = time.perf_counter()
        with transaction.atomic():
            row = Session.objects.create(
                session_key=f"bench-{number}", session_data="x" * 200, expire_date=now
            )
            Session.objects.filter(pk=row.pk).update(session_data="y" * 200)
            Session.objects.get(pk=row.pk)
        times.append(time.perf_counter() - begun)
    Session.objects.filter(session_key__startswith="bench-").delete()
    return median(times) * 1000


def grow(session_id: str, count: int) -> None:
    """Append `count` messages, by turns a user's and an answer, of some hundred bytes each."""
    from sessions_app import history, ids, ledger
    from sessions_app.callers import system
    from sessions_app.commands import entries

    said = "This is about as much as people and models say in one message of a chat. " * 2
    for begin in range(0, count, ENTRIES_AT_ONCE):
        with ledger.session_txn(session_id, system("bench")) as txn:
            for number in range(begin, min(begin + ENTRIES_AT_ONCE, count)):
                if number % 2:
                    answer_number = entries.take_number(txn)
                    entry = history.incomplete_message(ids.new_id("msg"), said, answer_number)
                else:
                    entry = history.user_message(said)
                entries.append_and_tell(txn, [entry])


def main(command: str, *arguments: str) -> None:
    """Run one command."""
    django.setup()
    if command == "transactions":
        print(transactions(int(arguments[0])))
    else:
        grow(arguments[0], int(arguments[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
