"""What a process asks of the Linux kernel for itself; elsewhere these calls do nothing."""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4


def forbid_dumps() -> None:
    """Keep other processes of our user from reading this one's memory and environment, which hold secrets."""
    _prctl(PR_SET_DUMPABLE, 0)


def end_with_parent(parent: int, number: signal.Signals) -> None:
    """Have this child, just forked by `parent`, sent the signal `number` when its parent ends.

    The kernel means the *thread* that forked: `parent` must fork from a thread that lives as long as it.
    """
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        # The parent ended before the kernel knew; nobody would tell.
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
