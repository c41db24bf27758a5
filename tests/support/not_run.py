"""A pytest plugin that says, at the end, which collected tests a run left out.

With several workers each of them leaves the same tests out; the first to end tells the controller.
"""

from collections import Counter

import pytest

_KEY = "not_run"
_left_out: dict[str, None] = {}


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Remember what `-m` and `-k` leave out."""
    _left_out.update(dict.fromkeys(item.nodeid for item in items))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker: hand it to the controller."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_KEY] = list(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """In the controller: take it from a worker."""
    output: dict[str, list[str]] = getattr(node, "workeroutput", {})
    _left_out.update(dict.fromkeys(output.get(_KEY, [])))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the names of what a mark left out; who chose by `-k` knows what he chose."""
    if _left_out and not terminalreporter.config.option.keyword:
        terminalreporter.section("not run")
        for name, cases in Counter(name.partition("[")[0] for name in _left_out).items():
            terminalreporter.line(name if cases == 1 else f"{name} ({cases} cases)")
