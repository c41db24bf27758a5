"""A process of writers on one store: `python -m tests.support.store_writers THREADS SECONDS`.

Waits for a line on standard input, so that several processes start together; prints one JSON object:
`commits` per thread, the `waits` for a transaction in milliseconds, and the `errors`.
"""

import json
import sys
import threading
import time

import django


def main() -> None:
    """Run the writers that the command line asks for."""
    django.setup()
    threads_count, seconds = int(sys.argv[1]), float(sys.argv[2])
    commits = [0] * threads_count
    waits: list[float] = []
    errors: list[str] = []
    print("ready", flush=True)
    sys.stdin.readline()
    deadline = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_write, args=(number, deadline, commits, waits, errors))
        for number in range(threads_count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"commits": commits, "waits": waits, "errors": errors}), flush=True)


def _write(number: int, deadline: float, commits: list[int], waits: list[float], errors: list[str]) -> None:
    from django.db import connection, transaction

    from sessions_app.errors import Refusal

    try:
        while time.monotonic() < deadline:
            asked = time.monotonic()
            with transaction.atomic(), connection.cursor() as cursor:
                waits.append((time.monotonic() - asked) * 1000)
                # A lost update would show: the new value is made here, not in the database.
                (value,) = cursor.execute("SELECT value FROM tally").fetchone()
                cursor.execute("UPDATE tally SET value = %s", [value + 1])
            with connection.cursor() as cursor:
                cursor.execute("UPDATE tally SET single = single + 1")
            commits[number] += 1
    except (Refusal, django.db.Error) as error:
        errors.append(repr(error))
    finally:
        connection.close()


if __name__ == "__main__":
    main()
