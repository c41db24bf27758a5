"""The product's own source, parsed, for rules that no linter has."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("ochat_client", "ochat_site", "jobs_app", "permissions_app", "sessions_app")


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the client and the four layers but migrations, by its path in the repository."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if "migrations" not in path.parts
    }


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function in a module, methods and inner ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
