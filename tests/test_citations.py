"""What code and documents cite can be looked up in the tree: invariants, defects, documents."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.parts import files_of, part_folders

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path
    for path in (
        *(path for part in ("distributedlog", *part_folders()) for path in files_of(part)),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "examples").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "tests/hazards.toml",
        ROOT / "tests/scenarios.toml",
    )
    if not path.is_symlink() and path != Path(__file__)
)
HAZARDS = tomllib.loads((ROOT / "tests/hazards.toml").read_text())
INVARIANTS = (ROOT / "docs/internals/invariants.md").read_text()
KNOWN = set(re.findall(r"^- \*\*(inv\. \d+|D\d+)\*\*: ", INVARIANTS, re.M))
NUMBERS = r"(\d+)((?:(?:,| to| and|, and) \d+)*)"
INVARIANT = re.compile(rf"\b(?:inv\.|invariants?) {NUMBERS}", re.IGNORECASE)
HAZARD = re.compile(r"(?<![\w/])H\d+[a-z]?\b")
DEFECT = re.compile(r"(?<![\w/.-])(D\d{1,2})(?![\w-])")
DOCUMENT = re.compile(r"(?<![\w/*.-])((?:[\w-]+/)*[a-z][\w-]*\.md)\b")


def cited(text: str) -> Iterator[str]:
    for match in INVARIANT.finditer(text):
        for number in re.findall(r"\d+", match.group(0)):
            yield f"inv. {number}"
    yield from DEFECT.findall(text)


def test_the_numbers_that_are_cited_are_explained() -> None:
    gone = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for name in cited(path.read_text())
        if name not in KNOWN
    }

    assert sorted(gone) == []


def test_the_documents_that_are_cited_are_there() -> None:
    documents = {path.name for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))}
    documents |= {path.name for path in (*ROOT.glob("docker/*.md"), *ROOT.glob("examples/**/*.md"))}

    gone = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        if path.suffix == ".py" and ".md" in (text := path.read_text())
        for name in DOCUMENT.findall(text)
        if Path(name).name not in documents or ("/" in name and not (ROOT / name).is_file())
    }

    assert sorted(gone) == []


def test_each_decision_has_a_number_of_its_own() -> None:
    """They are cited by it."""
    numbers = Counter(path.name[:4] for path in (ROOT / "docs/decisions").glob("0*.md"))

    assert [number for number, files in numbers.items() if files > 1] == []


def named_tests() -> set[str]:
    """Return every test file, and every test function after the name of its folder below tests/."""
    found = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        below = path.relative_to(ROOT / "tests").parts
        part = below[0] if len(below) > 1 else "tests"
        found.add(path.relative_to(ROOT).as_posix())
        found |= {f"{part} {name}" for name in re.findall(r"def (test_\w+)", path.read_text())}
    return found


def test_each_hazard_names_code_and_tests_that_exist() -> None:
    numbers = Counter(one["id"] for one in (*HAZARDS["hazard"], *HAZARDS["defect"]))
    there = named_tests()

    assert [number for number, entries in numbers.items() if entries > 1] == []
    for one in HAZARDS["hazard"]:
        assert one["hazard"], one["id"]
        assert one["remedy"], one["id"]
        assert one.get("tests") or one.get("commands"), one["id"]
        assert [name for name in one.get("code", ()) if not (ROOT / name).is_file()] == [], one[
            "id"
        ]
    for one in (*HAZARDS["hazard"], *HAZARDS["defect"]):
        assert [test for test in one.get("tests", ()) if test not in there] == [], one["id"]


def test_the_hazards_that_are_cited_are_listed() -> None:
    """A letter after the number names a case of the hazard."""
    listed = {one["id"] for one in HAZARDS["hazard"]}

    gone = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in SOURCES
        for name in HAZARD.findall(path.read_text())
        if name not in listed and name.rstrip("abcdefghijklmnopqrstuvwxyz") not in listed
    }

    assert sorted(gone) == []


def test_each_scenario_names_tests_that_exist() -> None:
    scenarios = tomllib.loads((ROOT / "tests/scenarios.toml").read_text())
    there = named_tests()

    assert [int(one["id"]) for one in scenarios["bookkeeper"]] == list(range(1, 43))
    for one in (*scenarios["bookkeeper"], *scenarios["distributedlog"]):
        assert [test for test in one["tests"] if test not in there] == [], one["id"]
        assert one["scenario"], one["id"]
        assert one["tests"] or one["commands"], one["id"]


def test_the_tests_that_documents_name_are_there() -> None:
    """Whole, or the beginning of a name before "…" or "*"."""
    there: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        there |= {path.stem, *re.findall(r"def (test_\w+)", path.read_text())}

    gone = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "docs").rglob("*.md"))
        for name, cut in re.findall(r"(?<![\w/.])(test_\w+)([…*]?)", path.read_text())
        if not (any(one.startswith(name) for one in there) if cut else name in there)
    ]

    assert gone == []


def test_each_limitation_is_listed_once() -> None:
    """Two entries of one name remain after a merge of two versions; one of them is out of date."""
    text = (ROOT / "docs/concepts/limitations.md").read_text()
    subjects = Counter(re.findall(r"^- \*\*([^*]+)\*\*: ", text, re.M))

    assert subjects
    assert [name for name, rows in subjects.items() if rows > 1] == []
