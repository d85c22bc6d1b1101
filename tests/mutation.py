"""Plant small mutations into product files, one at a time, and report those that no near test finds.

    python -m tests.mutation bookie/store/bookie_store.py distributedlog/log/write/log_writer.py
    python -m tests.mutation --changed-since fea56d70
    python -m tests.mutation --changed-since fea56d70 --part ledger --count 10 --tier default

The first command mutates these files, the others the files that changed since a commit.

A mutation is one change of one place: a comparison, `and` and `or`, a `not`, an arithmetic operator, an
integer, `True` and `False`, or a call whose result is unused. Asserts, messages, annotations and log lines
are left alone. A fixed seed chooses the places. Mutations are made in a copy of the files that git tracks.

Near tests are, in this order: the test file of the module's name, the tests of its part, and seeds of the
simulators that run the part. With `--tier default` only those of the default tier run, which shows how much
a contributor's usual run finds. A mutation is killed by the first test that fails. "timeout" means that the
tests did not end within the limit, because they hang or because they take longer.

Cost: at most `--count` times `--limit`. A mutation that is killed takes seconds.
"""

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.parts import part_folders, part_of, shown

ROOT = Path(__file__).resolve().parent.parent
SEEDS = {
    "bookie": ["tests/sim/test_few_seeds.py", "tests/sim/test_seeds.py"],
    "ledger": ["tests/sim/test_few_seeds.py", "tests/sim/test_ledger_seeds.py"],
    "log": ["tests/sim/test_few_seeds.py", "tests/sim/test_pipeline_seeds.py"],
    "metadata": ["tests/sim/test_few_seeds.py", "tests/sim/test_trusted_seeds.py"],
    "proxy": ["tests/sim/test_proxied_seeds.py"],
    "cluster": ["tests/sim/test_few_seeds.py"],
    "runtime": ["tests/sim/test_few_seeds.py"],
}  # fmt: skip
"""Tests of simulators that run a part, beside the tests in the part's own folder."""
SWAPS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.FloorDiv: ("//", "*"),
}  # fmt: skip
LOGS = re.compile(r"(\w+\.)*_?(log|logger|events|say|report|debug|info|warning|warn)\b")


@dataclass(frozen=True)
class Mutation:
    """Bytes of one file to replace."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old} becomes {self.new}"


class Places:
    """The places of one file that can be mutated."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def offset(self, line: int | None, column: int | None) -> int:
        assert line is not None
        assert column is not None
        return self.starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def swap(self, left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Mutation]:
        """Replace an operator in the text between its operands, if nothing else is there."""
        if type(operator) not in SWAPS:
            return
        old, new = SWAPS[type(operator)]
        begin, end = self.span(left)[1], self.span(right)[0]
        found = re.fullmatch(
            rb"[\s)\\]*(" + re.escape(old.encode()) + rb")[\s(\\]*", self.source[begin:end]
        )
        if found:
            yield Mutation(
                self.file, right.lineno, begin + found.start(1), begin + found.end(1), old, new
            )

    def replace(self, node: ast.expr | ast.stmt, new: str) -> Mutation:
        start, end = self.span(node)
        old = " ".join(self.source[start:end].decode().split())
        return Mutation(self.file, node.lineno, start, end, old, new)

    def of(self, node: ast.AST) -> Iterator[Mutation]:
        """Find the mutations of a node and of those below it."""
        match node:
            case ast.Assert() | ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
                return
            case ast.Expr(value=ast.Constant()):
                return  # a docstring
            case ast.Expr(value=ast.Call() | ast.Await() as value):
                if LOGS.match(ast.unparse(value).removeprefix("await ")):
                    return
                yield self.replace(node, "pass")
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                operands = [left, *comparators]
                for operator, one, two in zip(ops, operands, comparators, strict=False):
                    yield from self.swap(one, two, operator)
            case ast.BoolOp(op=operator, values=values):
                for one, two in pairwise(values):
                    yield from self.swap(one, two, operator)
            case ast.BinOp(left=left, op=operator, right=right):
                yield from self.swap(left, right, operator)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                start, end = self.span(node)[0], self.span(operand)[0]
                if self.source[start:end].strip() == b"not":
                    yield Mutation(self.file, node.lineno, start, end, "not", "")
            case ast.Constant(value=bool() as value):
                yield self.replace(node, str(not value))
            case ast.Constant(value=int() as value):
                yield self.replace(node, str(value + 1))
        for name, below in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for one in below if isinstance(below, list) else [below]:
                if isinstance(one, ast.AST):
                    yield from self.of(one)


def mutations_of(file: str) -> list[Mutation]:
    """Return all mutations of a file that leave it a valid program."""
    source = (ROOT / file).read_bytes()
    return list(Places(file, source).of(ast.parse(source)))


def changed_since(commit: str, part: str) -> list[str]:
    """Return the product files that differ from a commit."""
    names = ["git", "diff", "--name-only", "--diff-filter=d", commit, "--", "*.py"]
    run = subprocess.run(names, cwd=ROOT, check=True, capture_output=True, text=True)
    parts = [part] if part else [*part_folders()]
    return [name for name in run.stdout.split() if part_of(ROOT / name) in parts]


def near_tests(file: str) -> list[str]:
    """Return the paths of tests to run for a file, the nearest first."""
    part = part_of(ROOT / file)
    mirrors = sorted((ROOT / "tests" / part).rglob(f"test_{Path(file).stem}.py"))
    paths = [*map(shown, mirrors), f"tests/{part}", *SEEDS.get(part, [])]
    return [path for path in paths if (ROOT / path).exists()]


def copy_checkout(to: Path) -> None:
    """Copy the files that git knows, links as links."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, names.stdout.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


def outcome(checkout: Path, file: str, tier: str, limit_s: float) -> str:
    """Run the near tests until one fails; return the test that failed, "timeout", or "" if all pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    command += ["--tier", tier, "--tb", "no", *near_tests(file)]
    with subprocess.Popen(
        command, cwd=checkout, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        try:
            output, _ = run.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return "timeout"
    if run.returncode in (0, 5):  # 5: no tests of this tier
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return found[1] if found else f"pytest's exit code {run.returncode}"


def main() -> None:
    """Mutate, run, report."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="product files, from the root of the checkout")
    parser.add_argument("--changed-since", metavar="COMMIT")
    parser.add_argument("--part", default="", help="with --changed-since: only this part")
    parser.add_argument("--count", type=int, default=20, help="mutations (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="chooses the places (default 1)")
    parser.add_argument(
        "--limit", type=float, default=180.0, help="seconds per mutation (default 180)"
    )
    parser.add_argument(
        "--tier", default="units,properties,seeds", help="tiers of near tests to run"
    )
    options = parser.parse_args()
    files = options.files
    if options.changed_since:
        files += changed_since(options.changed_since, options.part)
    places = [one for file in files for one in mutations_of(file)]
    chosen = random.Random(options.seed).sample(places, min(options.count, len(places)))
    results: dict[str, list[Mutation]] = {"killed": [], "survived": [], "timeout": []}
    with tempfile.TemporaryDirectory(prefix="mutation-") as temporary:
        checkout = Path(temporary)
        copy_checkout(checkout)
        for number, one in enumerate(chosen, 1):
            path = checkout / one.file
            source = path.read_bytes()
            path.write_bytes(source[: one.start] + one.new.encode() + source[one.end :])
            began = time.monotonic()
            # Bytecode is known by its source's time in seconds and its size, which may both be the same.
            os.utime(path, (began + number, began + number))
            found = outcome(checkout, one.file, options.tier, options.limit)
            path.write_bytes(source)
            os.utime(path, (number, number))
            result = "timeout" if found == "timeout" else "killed" if found else "survived"
            results[result].append(one)
            print(f"{result}  {time.monotonic() - began:.0f} s  {one}  {found}", flush=True)
    print(", ".join(f"{len(some)} {result}" for result, some in results.items()))
    for one in results["survived"]:
        print(f"survived: {one}")


if __name__ == "__main__":
    main()
