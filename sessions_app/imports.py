"""Keeping out what a library would load because it is installed, and this process never uses.

Owns: the way an optional import is made to fail. Does not own: which ones; each caller says what for and how much.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(module: str) -> Iterator[None]:
    """Let imports of `module` fail inside the block, as if it were not installed; later ones succeed.

    Nothing happens when it is loaded already. For the import of a library that says what it does without.
    """
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # the documented way to have an import fail
    try:
        yield
    finally:
        del sys.modules[module]
