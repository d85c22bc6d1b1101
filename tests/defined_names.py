"""What the source of a module defines, for the tests of the tree."""

import ast
from functools import cache
from pathlib import Path


@cache
def names_of(path: Path) -> set[str]:
    """What a module defines, and does not import."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found
