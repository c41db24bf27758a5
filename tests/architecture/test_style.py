"""Rules of the house that no linter has."""

import ast
import re

import pytest

from tests.architecture.source import PACKAGES, ROOT, functions, modules

# Modules that hold nothing but a heavy library, imported with it at its first use.
FIRST_USE = {("sessions_app/runtime/models/pydantic_ai.py", "sessions_app.runtime.models")}


def test_no_import_inside_a_function_hides_a_cycle() -> None:
    """Our own modules stand at the top."""
    hidden = {
        (path, name)
        for path, tree in modules().items()
        for function in functions(tree)
        # Django calls this method once models can be imported; before that, they cannot.
        if function.name != "ready"
        for node in ast.walk(function)
        for name in _imported(node)
        if name.split(".")[0] in PACKAGES
    }
    assert hidden == FIRST_USE


@pytest.mark.parametrize("method", ["save", "delete"])
def test_models_have_no_effects_of_their_own(method: str) -> None:
    overridden = [
        f"{path}:{function.lineno}"
        for path, tree in modules().items()
        if "/models/" in path or path.endswith("/models.py")
        for function in functions(tree)
        if function.name == method
    ]
    assert overridden == []


def test_migrations_only_change_tables() -> None:
    """A new store is made from the models at once: what a migration did besides would be missing in it."""
    others = [
        str(path)
        for package in PACKAGES
        for path in (ROOT / package).glob("migrations/0*.py")
        if re.search(r"Run(SQL|Python)", path.read_text(encoding="utf-8"))
    ]
    assert others == []


def test_every_module_says_what_it_is() -> None:
    silent = [path for path, tree in modules().items() if tree.body and ast.get_docstring(tree) is None]
    assert silent == []


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []
