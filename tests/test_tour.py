"""Whoever reads along the docstring of a part, or a document, finds the files that are named there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.defined_names import names_of
from tests.parts import files_of, part_folders

ROOT = Path(__file__).resolve().parent.parent
PARTS = part_folders()
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if path.name != "CHANGELOG.md"  # it also names files of earlier releases
)
FILE = re.compile(r"(?<![\w/.*])((?:[a-z_]+/)*[a-z_][a-z0-9_]*\.py)\b")
"""A Python file, with or without the folders before it; no pattern with a star."""
BUGS = re.compile("planted|_bugs")
"""Files of known bugs, which a part's docstring names together."""
USERS = {"README.md"}
USER_FOLDERS = ("docs/start/", "docs/guides/", "docs/operate/")
"""Pages whose readers have their own programs: only names with a folder are files of the tree there."""


@pytest.mark.parametrize("part", PARTS)
def test_the_docstring_of_a_part_names_files_that_are_there(part: str) -> None:
    doc = ast.get_docstring(ast.parse((PARTS[part] / "__init__.py").read_text())) or ""

    gone = [
        name
        for name in FILE.findall(doc)
        if not any((at / name).is_file() for at in (PARTS[part], ROOT))
    ]

    assert gone == []


@pytest.mark.parametrize("part", PARTS)
def test_the_docstring_of_a_part_that_tells_its_files_tells_all(part: str) -> None:
    doc = ast.get_docstring(ast.parse((PARTS[part] / "__init__.py").read_text())) or ""
    named = re.findall(r"[\w*]+\.py", doc)

    untold = [
        path.name
        for path in files_of(part)
        if not path.name.startswith("_")
        and not BUGS.search(path.name)
        and not any(path.match(one) for one in named)
        and not re.search(rf"\b{path.parent.name}/(?!\w)", doc)
    ]

    assert untold == [] or not any(any(PARTS[part].rglob(one)) for one in named if "*" not in one)


@cache
def names_of_modules() -> set[str]:
    """Return the names of all Python files of product, tests, docs and examples."""
    known = {path.name for part in ("distributedlog", *PARTS) for path in files_of(part)}
    folders = [ROOT / name for name in ("tests", "docs", "examples")]
    known |= {path.name for folder in folders for path in folder.rglob("*.py")}
    return known | {path.name for path in ROOT.glob("*.py")}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_name_files_that_are_there(document: str) -> None:
    """A name without a folder may be anywhere in the tree."""
    text = (ROOT / document).read_text()
    known = names_of_modules()
    of_users = document in USERS or document.startswith(USER_FOLDERS)

    gone = [
        name
        for name in FILE.findall(text)
        if not ((ROOT / name).is_file() or (ROOT / document).parent.joinpath(name).is_file())
        and ("/" in name or not (of_users or name in known))
    ]

    assert gone == []


ITEM = re.compile(r"^- \[`([a-z_/]+\.py)`\]\(\.\./\.\./\1\) \([^)]+\): ?(.*(?:\n  .*)*)", re.M)
NAME = re.compile(r"`([A-Za-z_]\w*)`")
TOUR = (ROOT / "docs/internals/source-tour.md").read_text()
OF_THE_SYSTEM = {"fdatasync"}


def defined_in(path: Path) -> set[str]:
    """Classes, functions, and what is assigned, by name, attributes too."""
    stored = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return names_of(path) | stored


def test_the_path_of_a_record_names_what_is_in_its_files() -> None:
    """Each item is one file. A name of another file has that file with it, as ``of `file.py```."""
    items = ITEM.findall(TOUR)
    assert len(items) > 40, "the lists were read"
    gone = []
    for file, text in items:
        own = re.sub(r"`\w+` of\s+`[a-z_/]+\.py`", "", text)
        there = defined_in(ROOT / file) | OF_THE_SYSTEM
        gone += [f"{file}: {name}" for name in NAME.findall(own) if name not in there]
        for name, other in re.findall(r"`(\w+)` of\s+`([a-z_/]+\.py)`", text):
            if name not in defined_in(ROOT / other):
                gone.append(f"{other}: {name}")
    assert gone == []


def test_the_path_of_a_record_meets_each_file_once() -> None:
    files = [file for file, _ in ITEM.findall(TOUR)]

    assert sorted(files) == sorted(set(files))
