"""The documents: every link has a target, docs/index.md lists every page, and all pages make a site."""

import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("docker/*.md"),
        *ROOT.glob("examples/**/*.md"),
    )
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
ASKS = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=["'](?:https?:)?//|url\(["']?https?:|@import"""
)
"""What a browser would fetch by itself from elsewhere; a link that somebody clicks is none."""


def _words(path: Path) -> str:
    """Without blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)


@cache
def anchors(path: Path) -> frozenset[str]:
    """Of its headings, as the readers of Markdown name them."""
    found: Counter[str] = Counter()
    for heading in re.findall(r"^#+ (.*)$", _words(path), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        found[re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")] += 1
    repeated = {f"{anchor}-{n}" for anchor, count in found.items() for n in range(1, count)}
    return frozenset(repeated.union(found))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_leads_nowhere(page: Path) -> None:
    gone = []
    for link in LINK.findall(_words(page)):
        if re.match(r"\w+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            gone.append(link)

    assert gone == []


INDEX = ROOT / "docs" / "index.md"
ENTRY = re.compile(r"^- \[[^\]]+\]\(([^)#\s]+)\): [^\n]+\.$")
"""One page of the index, with its purpose."""


def test_the_index_lists_each_page_once() -> None:
    """The navigation of the site is made from it. Decisions have a list of their own."""
    lines = [line for line in INDEX.read_text().splitlines() if line.startswith("- ")]
    matches = [ENTRY.match(line) for line in lines]
    listed = [(INDEX.parent / found[1]).resolve() for found in matches if found]
    own_lists = {ROOT / "README.md", INDEX}

    assert len(listed) == len(lines), "each line is: - [title](path): purpose."
    assert sorted(listed) == [
        page
        for page in PAGES
        if page not in own_lists and (page.parent.name != "decisions" or page.name == "README.md")
    ]


def test_the_front_page_leads_to_the_index() -> None:
    assert "(docs/index.md)" in (ROOT / "README.md").read_text()


def test_the_decisions_are_listed_by_their_titles() -> None:
    """The number, which some titles repeat, stands once."""
    decisions = ROOT / "docs" / "decisions"
    wanted = []
    for page in sorted(decisions.glob("0*.md")):
        title = page.read_text().split("\n", 1)[0].removeprefix("# ")
        number = int(page.name[:4])
        wanted.append(f"- {number}: [{title.removeprefix(f'{number}. ')}]({page.name})")

    listed = [
        line for line in (decisions / "README.md").read_text().splitlines() if line[:2] == "- "
    ]

    assert listed == wanted


def test_all_pages_make_a_site_that_asks_nobody(tmp_path: Path) -> None:
    """The command of docs/internals/testing.md fails for a broken link or a page that docs/index.md omits."""
    pytest.importorskip("sphinx", reason="pip install '.[docs]'")
    pytest.importorskip("myst_parser", reason="pip install '.[docs]'")
    pytest.importorskip("furo", reason="pip install '.[docs]'")
    text = (ROOT / "docs/internals/testing.md").read_text()
    [command] = re.findall(r"^python (-m sphinx .*) site$", text, re.M)

    done = subprocess.run(
        [sys.executable, *command.split(), "-d", str(tmp_path / "trees"), str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        timeout=300,
        text=True,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    site = tmp_path / "site"
    made = {path.relative_to(site).with_suffix("") for path in site.rglob("*.html")}
    written = {path.relative_to(ROOT).with_suffix("") for path in PAGES}
    assert written - made == set()
    assert (
        'Log.open_writer<a class="headerlink"'
        in (site / "docs/reference/api/write.html").read_text()
    )
    assert "url=README.html" in (site / "index.html").read_text()
    for file in (*site.rglob("*.html"), *site.rglob("*.css")):
        assert not ASKS.search(file.read_text()), file


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_that_is_copied_into_a_terminal_is_wider_than_one(page: Path) -> None:
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```", page.read_text(), re.M | re.S)

    assert [line for block in blocks for line in block.splitlines() if len(line) > 80] == []
