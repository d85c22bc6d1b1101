"""README's commands install the extra `test` alone: what needs more skips itself, and CI finds it again."""

import ast
import importlib.machinery
import re
import sys
from pathlib import Path

import pytest

from tests.extras import GATEWAY, INSTALL, SPARK, missing

TESTS = Path(__file__).resolve().parent


def _needs_extra(tree: ast.AST) -> bool:
    """Does it import a package of the extra, or skip for want of one?"""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.importorskip":
            names.add(str(ast.literal_eval(node.args[0])))
    return not names.isdisjoint((*SPARK, *GATEWAY))


def test_whatever_needs_the_extra_has_a_marker_that_says_so() -> None:
    """CI runs the default tier without these packages, then the tier `extras` with them."""
    bare = [
        path.relative_to(TESTS).as_posix()
        for path in sorted(TESTS.rglob("test_*.py"))
        if re.search("|".join((*SPARK, *GATEWAY)), text := path.read_text())
        and _needs_extra(ast.parse(text))
        and not re.search(r"pytest\.mark\.(extra|spark)\b", text)
    ]

    assert bare == []


@pytest.mark.parametrize("name", [*SPARK, *GATEWAY])
def test_a_test_of_one_extra_runs_without_the_other(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/internals/testing.md: tests of the gateway are skipped without its extra alone."""
    for one in (*SPARK, *GATEWAY):  # all are there, but for one
        monkeypatch.setitem(sys.modules, one, type(sys)(one))
        sys.modules[one].__spec__ = importlib.machinery.ModuleSpec(one, None)
    monkeypatch.setitem(sys.modules, name, None)

    assert bool(missing("gateway")) is (name in GATEWAY)
    assert bool(missing("spark")) is (name in SPARK)


@pytest.mark.parametrize("name", SPARK)
def test_what_is_missing_is_named_with_what_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)

    assert missing() in {f"{one} is not installed: {INSTALL}" for one in SPARK}
