"""Whoever reads along the docstring of a part, or a document, finds the files that are named there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = sorted(path.name for path in (ROOT / "distributedlog").iterdir() if path.is_symlink())
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
)
FILE = re.compile(r"(?<![\w/.*])((?:[a-z_]+/)*[a-z_][a-z0-9_]*\.py)\b")
"""A Python file, with or without the folders before it; no pattern with a star."""
USERS = {"README.md", "docs/chaos.md", "docs/log-layer.md", "docs/operations.md", "docs/spark.md"}
"""Their readers have programs of their own: only names with a folder are ours there."""


@pytest.mark.parametrize("part", PARTS)
def test_the_docstring_of_a_part_names_files_that_are_there(part: str) -> None:
    doc = ast.get_docstring(ast.parse((ROOT / part / "__init__.py").read_text())) or ""

    gone = [
        name
        for name in FILE.findall(doc)
        if not any((at / name).is_file() for at in (ROOT / part, ROOT))
    ]

    assert gone == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_files_that_are_there(document: str) -> None:
    """A name without a folder may be anywhere in the tree."""
    text = (ROOT / document).read_text()
    known = {path.name for path in ROOT.glob("*/*.py")} | {
        path.name for path in (ROOT / "tests").rglob("*.py")
    }

    gone = [
        name
        for name in FILE.findall(text)
        if not ((ROOT / name).is_file() or (ROOT / document).parent.joinpath(name).is_file())
        and ("/" in name or (document not in USERS and name not in known))
    ]

    assert gone == []
