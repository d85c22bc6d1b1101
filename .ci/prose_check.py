#!/usr/bin/env python3
"""Measure how hard the project's prose is to read: pages, docstrings, comments and messages.

    .ci/prose_check.py PATH...                   figures of some files; --show RULE lists findings
    .ci/prose_check.py --ratchet                 fail if a total of the tree is above .ci/prose_limits.json
    .ci/prose_check.py --ratchet --update        lower the limits to the present totals
    .ci/prose_check.py --changed-since COMMIT    fail if the changed lines miss the goals

A finding is a construction that makes a reader stop: a bare "who" or "what" as subject or object, a human
verb for a machine, an archaic word, several colons or semicolons in one sentence. Figures are findings per
1,000 words. Code, inline code and URLs are not prose.
"""

import argparse
import ast
import inspect
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = ROOT / ".ci" / "prose_limits.json"

START = r"(?:^|(?<=[.:;!?(]\s)|(?<=[.:;!?] \())(?:and |but |or |so )?"
RULES = {
    "who": START
    + r"who(?:ever)?\b|\b(?:of|to|from|for|by|with|at|as|than|and|or|but) who(?:ever)?\b",
    "what": START
    + r"what\b|\b(?:of|to|from|by|with|at|in|on|than|all|and|or|but|so|that|where|when|as|beside|behind"
    r"|before|after|until|unless) what\b|, what\b",
    "told": r"\b(?:is|are|was|were|be|been|being|has|have|had|gets?|then|not|only|still|also) told\b"
    r"|\btells?\b",
    "say": r"\b(?:says?|said|saying)\b",
    "go": r"\b(?:goes|go|went|gone)\b(?! through\b)",
    "stand": r"\b(?:stands?|stood)\b(?! (?:for|in for|out|by|up|alone)\b)|\b(?:lies?|lay|lain)\b"
    r"|\b(?:meets?|met)\b",
    "quaint": r"\b(?:anew|beside|nobody|whoever|by turns|in vain|of before|all the same|as ever|from then on"
    r"|meanwhile|in words|be had|had everything|as it is|as it was|as they are|of its own|of ours"
    r"|give[sn]? (?:up|back)|is (?:over|gone|wanted))\b",
}
CHAIN = r"^(?:[^:;]*[:;](?=\s)){2}"
ALL_RULES = {**RULES, "chain": CHAIN}
NOT_IN_QUESTIONS = ("who", "what")
SENTENCE_WORDS_MAX = 35
PARAGRAPH_WORDS_MAX = 80
CELL_WORDS_MAX = 60

WORD = re.compile(r"[A-Za-z][\w'’-]*")
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z(\"'`\[])")
GOALS = {"docs": 3.0, "docstrings": 8.0, "comments": 8.0, "messages": 3.0}
"""Dialect per 1,000 changed words, at most."""
CHANGED_WORDS_MIN = 150
"""With fewer changed words of a kind one finding would decide; up to one is accepted."""
PRODUCT_EXCLUDED = ("tests", "docs", "examples", "docker", ".ci", ".venv", "build", "site")


@dataclass
class Figures:
    """Counts of words, sentences and findings of some prose."""

    words: int = 0
    sentences: int = 0
    long_sentences: int = 0
    paragraphs: int = 0
    long_paragraphs: int = 0
    table_words: int = 0
    long_cells: int = 0
    findings: Counter[str] = field(default_factory=Counter)

    @property
    def dialect(self) -> int:
        """Findings of all rules except chained clauses."""
        return sum(self.findings[rule] for rule in RULES)

    def add(self, other: "Figures") -> None:
        """Add the counts of other prose."""
        for name in vars(self):
            if name != "findings":
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.findings.update(other.findings)

    def row(self, name: str) -> str:
        """Return one line for a person: rates per 1,000 words and percentages."""
        words = max(self.words, 1)
        rates = "  ".join(f"{rule} {1000 * self.findings[rule] / words:.1f}" for rule in ALL_RULES)
        return (
            f"{name}: {self.words} words, dialect {1000 * self.dialect / words:.1f}, {rates},"
            f" >{SENTENCE_WORDS_MAX} words {100 * self.long_sentences / max(self.sentences, 1):.1f} %,"
            f" >{PARAGRAPH_WORDS_MAX} words {100 * self.long_paragraphs / max(self.paragraphs, 1):.0f} %,"
            f" in tables {100 * self.table_words / words:.0f} %, cells >{CELL_WORDS_MAX}: {self.long_cells}"
        )


@dataclass(frozen=True)
class Finding:
    """One place that a rule names; its line counts from 1."""

    line: int
    rule: str
    text: str


@dataclass(frozen=True)
class Text:
    """A piece of prose of a file and the line it begins in."""

    line: int
    text: str


def markdown_texts(source: str) -> Iterator[Text]:
    """Yield a page as one piece."""
    yield Text(1, source)


def docstring_texts(source: str) -> Iterator[Text]:
    """Yield docstrings, and the strings that document an attribute."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for item in node.body:
            if (
                isinstance(item, ast.Expr)
                and isinstance(item.value, ast.Constant)
                and isinstance(item.value.value, str)
            ):
                text = inspect.cleandoc(item.value.value)
                text = re.sub(
                    r"^(?:Args|Returns|Raises|Yields|Notes?|Examples?):$", "", text, flags=re.M
                )
                text = re.sub(r"^\s+\*{0,2}[\w., `]+: (?=[A-Z`])", "- ", text, flags=re.M)
                # A row of a list of files is an item, too.
                text = re.sub(
                    r"^\s+(?:[a-z_*]+/)*[a-z_*]+(?:\.py|/) {2,}(?=\S)", "- ", text, flags=re.M
                )
                yield Text(
                    item.lineno, re.sub(r"::\n\n(?:[ \t]+.*\n|\n(?=[ \t]))+", _blank, text + "\n")
                )


def comment_texts(source: str) -> Iterator[Text]:
    """Yield runs of comment lines."""
    run: list[str] = []
    last = -9
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(
            r"#!|# ?(?:type|noqa|ruff|pragma|mypy|fmt)", token.string
        ):
            continue
        if token.start[0] != last + 1 and run:
            yield Text(last - len(run) + 1, "\n".join(run))
            run = []
        run.append(token.string.lstrip("# "))
        last = token.start[0]
    if run:
        yield Text(last - len(run) + 1, "\n".join(run))


def message_texts(source: str) -> Iterator[Text]:
    """Yield the texts that programs print: raised errors, log lines, help of commands and options."""
    for node in ast.walk(ast.parse(source)):
        values: list[ast.expr] = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            values = node.exc.args
        elif isinstance(node, ast.Call):
            values = [k.value for k in node.keywords if k.arg in ("help", "short_help", "epilog")]
            if isinstance(node.func, ast.Attribute) and node.func.attr in (
                "debug",
                "info",
                "warning",
                "error",
            ):
                values = node.args
        for value in values:
            parts = value.values if isinstance(value, ast.JoinedStr) else [value]
            text = "".join(
                part.value
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
                else "X"
                for part in parts
            )
            if len(text.split()) > 3:
                yield Text(value.lineno, text)


READERS = {
    "docs": markdown_texts,
    "docstrings": docstring_texts,
    "comments": comment_texts,
    "messages": message_texts,
}


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")  # keeps line numbers


def plain(text: str) -> str:
    """Return the text without markup; code becomes one word."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r":[\w:.+-]+:`[^`]*`|``[^`]+``|`[^`]+`_{0,2}", "CODE", text)
    return re.sub(r"https?://\S+|<[^>\n]+>|[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", "", text)


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line from 0, "heading", "para" or "cell", content) of Markdown or of a docstring."""
    text = re.sub(r"^( *)(```|~~~).*?^\1?\s*\2\s*$", _blank, text, flags=re.S | re.M)
    text = re.sub(r"<!--.*?-->|<(script|style|table|pre).*?</\1>", _blank, text, flags=re.S)
    paragraph: list[str] = []
    first = 0
    for number, line in enumerate([*text.split("\n"), ""]):
        stripped = line.strip()
        is_row = len(stripped) > 1 and stripped[0] == "|" == stripped[-1]
        item = re.match(r"(?:[-*+]|\d+[.)])\s+", stripped)
        if paragraph and (not stripped or is_row or item or stripped[0] == "#"):
            yield first, "para", " ".join(paragraph)
            paragraph = []
        if not stripped or set(stripped) <= set("|-: =+"):
            continue
        if is_row:
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                if cell.strip():
                    yield number, "cell", cell.strip()
        elif stripped[0] == "#":
            yield number, "heading", stripped
        else:
            first = first if paragraph else number
            paragraph.append(stripped[item.end() :] if item else stripped.lstrip("> "))


def measure(source: str, kind: str, lines: set[int] | None = None) -> tuple[Figures, list[Finding]]:
    """Return figures and findings of one kind of prose in a file.

    Args:
        source: The file's content.
        kind: One of `READERS`.
        lines: Count only blocks that begin in these lines; all if None.
    """
    figures, findings = Figures(), []
    for piece in READERS[kind](source):
        for offset, block, raw in blocks(piece.text):
            line = piece.line + offset
            if block == "heading" or (lines is not None and line not in lines):
                continue
            body = plain(
                re.sub(r"^\*\*[^*]+\*\*: ", "", raw)
            )  # a list of definitions: the term is no clause
            words = len(WORD.findall(body))
            figures.words += words
            if block == "cell":
                figures.table_words += words
                figures.long_cells += words > CELL_WORDS_MAX
            elif words > 5:
                figures.paragraphs += 1
                if words > PARAGRAPH_WORDS_MAX:
                    figures.long_paragraphs += 1
                    findings.append(Finding(line, "para", f"{words} words: {body[:100]}"))
            for sentence in SENTENCE_END.split(body):
                for rule, text in findings_of(sentence, figures):
                    findings.append(Finding(line, rule, text))
    return figures, findings


def findings_of(sentence: str, figures: Figures) -> Iterator[tuple[str, str]]:
    """Count one sentence and yield (rule, text) for each finding."""
    words = len(WORD.findall(sentence))
    if words < 3:
        return
    figures.sentences += 1
    if words > SENTENCE_WORDS_MAX:
        figures.long_sentences += 1
        yield "long", f"{words} words: {sentence}"
    question = sentence.rstrip(" )\"'").endswith("?")
    for rule, pattern in ALL_RULES.items():
        if question and rule in NOT_IN_QUESTIONS:
            continue
        hits = len(re.findall(pattern, sentence, re.I | re.M))
        figures.findings[rule] += hits
        if hits:
            yield rule, sentence


def kinds_of(path: Path) -> tuple[str, ...]:
    """Return the kinds of prose that a file of the tree has; none for tests and generated files."""
    relative = path.relative_to(ROOT) if path.is_absolute() else path
    if relative.parts[:3] == ("docs", "reference", "api"):
        return ()  # the docstrings of the code, which count as such
    if path.suffix == ".md":
        return ("docs",)
    if path.suffix != ".py" or relative.parts[0] in PRODUCT_EXCLUDED:
        return ()
    return ("docstrings", "comments", "messages")


def tree() -> list[Path]:
    """Return the pages and modules that git tracks."""
    names = subprocess.run(
        ["git", "ls-files", "*.md", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [path for path in map(ROOT.joinpath, names) if path.is_file() and not path.is_symlink()]


def totals(paths: Iterable[Path]) -> dict[str, Figures]:
    """Return the figures of each kind over some files."""
    found = {kind: Figures() for kind in READERS}
    for path in paths:
        for kind in kinds_of(path):
            found[kind].add(measure(path.read_text(encoding="utf-8"), kind)[0])
    return found


def ratchet(update: bool) -> int:
    """Compare the findings of the tree with the limits; return the exit status."""
    present = {
        kind: {"dialect": f.dialect, "chain": f.findings["chain"], "long": f.long_sentences}
        for kind, f in totals(tree()).items()
    }
    del present["messages"]["chain"]  # "object: problem: cause" is the format of messages
    limits = json.loads(LIMITS.read_text()) if LIMITS.exists() else present
    above = [
        f"{kind} {name}: {count}, at most {limits[kind][name]}"
        for kind, counts in present.items()
        for name, count in counts.items()
        if count > limits[kind][name]
    ]
    if above:
        print("more findings than the tree may have:", *above, sep="\n  ")
        print("list them: .ci/prose_check.py --show dialect,chain,long PATH")
        return 1
    if update:
        LIMITS.write_text(json.dumps(present, indent=2) + "\n")
    return 0


def changed_lines(commit: str) -> dict[Path, set[int]]:
    """Return the lines of each file that differ from a commit; moved files count by their changes."""
    diff = subprocess.run(
        ["git", "diff", "-U0", "-M", "-l0", "--no-color", commit, "--", "*.md", "*.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found: dict[Path, set[int]] = {}
    path = None
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = ROOT / line[6:] if line != "+++ /dev/null" else None
        elif path and (hunk := re.match(r"@@ \S+ \+(\d+)(?:,(\d+))? @@", line)):
            start, count = int(hunk[1]), int(hunk[2] or 1)
            found.setdefault(path, set()).update(range(start, start + count))
    return found


def check_changed(commit: str) -> int:
    """Hold the changed lines to the goals; return the exit status."""
    sums = {kind: Figures() for kind in READERS}
    shown: dict[str, list[str]] = {kind: [] for kind in READERS}
    for path, lines in changed_lines(commit).items():
        for kind in kinds_of(path) if path.is_file() else ():
            figures, findings = measure(path.read_text(encoding="utf-8"), kind, lines)
            sums[kind].add(figures)
            place = path.relative_to(ROOT)
            shown[kind] += [
                f"{place}:{f.line}: {f.rule}: {f.text}" for f in findings if f.rule in RULES
            ]
    status = 0
    for kind, figures in sums.items():
        allowed = max(1.0, figures.words / 1000 * GOALS[kind])
        print(figures.row(f"changed {kind} (goal {GOALS[kind]:g})"))
        if figures.words >= CHANGED_WORDS_MIN and figures.dialect > allowed:
            status = 1
        print(*shown[kind], sep="\n")
    return status


def show(paths: list[Path], rules: set[str]) -> None:
    """Print figures per file, or each finding of some rules ("dialect" stands for all its rules)."""
    files = [f for p in paths for f in (sorted(p.rglob("*")) if p.is_dir() else [p])]
    rules = rules | set(RULES) if "dialect" in rules else rules
    sums = {kind: Figures() for kind in READERS}
    for path in files:
        kinds = {".md": ("docs",), ".py": ("docstrings", "comments", "messages")}.get(
            path.suffix, ()
        )
        for kind in kinds if path.is_file() else ():
            figures, findings = measure(path.read_text(encoding="utf-8"), kind)
            sums[kind].add(figures)
            if rules:
                for f in findings:
                    if f.rule in rules:
                        print(f"{path}:{f.line}: {f.rule}: {f.text}")
            elif figures.words:
                print(figures.row(f"{path} {kind}"))
    for kind, figures in sums.items():
        if figures.words:
            print(figures.row(f"total of {kind}"))


def main() -> int:
    """Run the checker; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument(
        "--show",
        default="",
        help="rules, separated by commas: " + ", ".join(["dialect", *ALL_RULES, "long", "para"]),
    )
    parser.add_argument("--ratchet", action="store_true")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--changed-since", metavar="COMMIT")
    options = parser.parse_args()
    if options.changed_since:
        return check_changed(options.changed_since)
    if options.ratchet:
        return ratchet(options.update)
    show(options.paths, set(filter(None, options.show.split(","))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
