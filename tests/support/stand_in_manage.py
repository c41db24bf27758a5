"""Plays `manage.py` for tests of the supervisor: the same commands, without Django and without work.

Every command writes its process id into `$OCHAT_DATA_DIR/pids/<command>.<pid>` and, when it ends in order, its
name into `$OCHAT_DATA_DIR/ends`. `STAND_IN=<command>:<code>` makes a command end at once with a code.
"""

import os
import signal
import socket
import sys
from pathlib import Path

DATA_DIR = Path(os.environ["OCHAT_DATA_DIR"])


def main() -> None:
    """Play the command of the command line."""
    command, *arguments = sys.argv[1:]
    if os.environ.get("STAND_IN", "").startswith(f"{command}:"):
        print(f"ochat: {command} refuses to start", file=sys.stderr)
        sys.exit(int(os.environ["STAND_IN"].partition(":")[2]))
    if command == "first_run":
        notify = int(arguments[arguments.index("--notify") + 1])
        os.write(notify, b"1")
        os.close(notify)
        command, *arguments = arguments[arguments.index("--then") + 1 :]
    pids = DATA_DIR / "pids"
    pids.mkdir(exist_ok=True)
    if command == "serve":
        host, _, port = os.environ["OCHAT_BIND"].rpartition(":")
        listener = socket.create_server((host, int(port)))
        listener.set_inheritable(False)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    (pids / f"{command}.{os.getpid()}").write_text(" ".join(arguments))
    if command != os.environ.get("STAND_IN_STUBBORN"):
        signal.sigwait({signal.SIGTERM})
    else:
        signal.pause()
    with (DATA_DIR / "ends").open("a") as ends:
        ends.write(f"{command}\n")


if __name__ == "__main__":
    main()
