"""What code and documents cite can be looked up in the tree: invariants, defects, documents."""

import re
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
    )
    if not path.is_symlink() and path != Path(__file__)
)
INVARIANTS = (ROOT / "docs/internals/invariants.md").read_text()
KNOWN = set(re.findall(r"^- \*\*(inv\. \d+|D\d+)\*\*: ", INVARIANTS, re.M))
NUMBERS = r"(\d+)((?:(?:,| to| and|, and) \d+)*)"
INVARIANT = re.compile(rf"\b(?:inv\.|invariants?) {NUMBERS}", re.IGNORECASE)
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
        if path.suffix == ".py"
        for name in DOCUMENT.findall(path.read_text())
        if Path(name).name not in documents or ("/" in name and not (ROOT / name).is_file())
    }

    assert sorted(gone) == []


def test_each_decision_has_a_number_of_its_own() -> None:
    """They are cited by it."""
    numbers = Counter(path.name[:4] for path in (ROOT / "docs/decisions").glob("0*.md"))

    assert [number for number, files in numbers.items() if files > 1] == []


def test_each_of_the_scenarios_names_tests_that_are_there() -> None:
    """docs/testing.md: 42, in order, each with tests by their whole names or the word "none"."""
    text = (ROOT / "docs/testing.md").read_text()
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| ([^|]+) \|$", text, re.M)
    there = {
        (path.relative_to(ROOT / "tests").parts[0], name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.M)
    }

    assert [int(number) for number, _ in rows] == list(range(1, 43))
    for number, said in rows:
        part, named = "", 0
        for word, name in re.findall(r"\b([a-z]+) (?=`test_)|`(test_\w+)`", said):
            part = word or part
            if name:
                named += 1
                assert (part, name) in there, f"scenario {number}: {part} {name}"
        assert named or said.startswith("none"), f"scenario {number} names no test"


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
