"""The table of behaviours and the tests, compared both ways."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from tests.conformance.behaviours import BEHAVIOURS

_NAME = re.compile(r"test_([a-k][0-9]+)(?:_\w+)?")
_LETTERED = re.compile(r"test_[a-k]_\w+")


def _tests() -> dict[str, list[Callable[..., object]]]:
    """Return the tests of this suite by the row that they are named after."""
    found: defaultdict[str, list[Callable[..., object]]] = defaultdict(list)
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        if not _LETTERED.fullmatch(file.stem):
            continue
        module = importlib.import_module(f"tests.conformance.{file.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_"):
                row = _NAME.fullmatch(name)
                assert row is not None, f"{file.name}: {name} is not named after a row"
                found[row[1].upper()].append(function)
    return dict(found)


def test_all_rows_are_listed() -> None:
    assert len(BEHAVIOURS) == 80


def test_every_row_that_waits_for_nothing_is_tested() -> None:
    testable = {row for row, behaviour in BEHAVIOURS.items() if not behaviour.waits_for}

    assert testable - _tests().keys() == set()


def test_every_test_repeats_the_sentence_of_its_row() -> None:
    for row, tests in _tests().items():
        for test in tests:
            said = " ".join((inspect.getdoc(test) or "").split())
            assert said.startswith(BEHAVIOURS[row].sentence), f"{test.__name__}: {BEHAVIOURS[row].sentence}"
