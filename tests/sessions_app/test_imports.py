"""Optional libraries are kept out while another one is imported, and only then."""

import importlib
import importlib.util
import sys

import pytest

from sessions_app.imports import without


def test_an_import_fails_inside_and_succeeds_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)

    with without("this"), pytest.raises(ImportError):
        importlib.import_module("this")

    assert "this" not in sys.modules
    assert importlib.util.find_spec("this") is not None


def test_what_is_loaded_stays() -> None:
    with without("importlib"):
        assert sys.modules["importlib"] is importlib
