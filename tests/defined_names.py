"""Sources as syntax trees, for the tests of the tree's shape."""

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path


@cache
def nodes_of(path: Path) -> Sequence[ast.AST]:
    """Return all nodes of a file's tree, the module first. Parsing is most of the cost of these tests."""
    return list(ast.walk(ast.parse(path.read_text(), str(path))))


def module_of(path: Path) -> ast.Module:
    """Return a file's tree."""
    module = nodes_of(path)[0]
    assert isinstance(module, ast.Module)
    return module


@cache
def names_of(path: Path) -> set[str]:
    """What a module defines, and does not import."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found
