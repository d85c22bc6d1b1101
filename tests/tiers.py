"""Tiers of tests: which test belongs to which, and which tiers a run of pytest takes.

A test belongs to exactly one tier. Its marks choose it: a test without a mark is a unit, a test with several
belongs to the slowest of them. Plain `pytest` runs the default tier: all units, and the tests in
`ALSO_DEFAULT`. A selection on the command line (paths, `-m`, `-k`, `--last-failed`) takes from all tiers.

Costs and commands: docs/internals/testing.md.
"""

from collections.abc import Iterable, Sequence
from typing import Final

TIERS: Final = ("units", "properties", "seeds", "processes", "extras", "campaigns")
"""From the fastest to the slowest. CI runs all but `campaigns`."""

DEFAULT: Final = "default"
ALL: Final = "all"

EXTRAS: Final = ("spark", "browser", "extra")
"""Marks that name what a test of the tier `extras` needs."""

ALSO_DEFAULT: Final[tuple[str, ...]] = (
    "tests/sim/test_few_seeds.py",
    "tests/cluster/local/test_child_processes.py::test_every_line_comes_back_after_kills_a_pause_and_a_restart",
)
"""Tests of slower tiers that the default tier runs, too: files, and tests by node ID without parameters."""

SECOND_SPARK_SESSION: Final = (
    "tests/spark/test_spark_credentials.py",
    "tests/spark/test_spark_sink.py",
    "tests/spark/test_spark_stream.py",
)
"""Files that take half of the time of the tests with a Spark session."""

FIRST: Final = (
    "tests/test_style.py",
    "tests/cluster/local/test_child_processes.py",
    "tests/sim/test_few_seeds.py",
    "tests/sim/test_seeds.py",
    "tests/sim/test_pipeline_seeds.py",
)
"""Files that take longest. They start first, so that no worker waits for them at the end."""


def tier_of(marks: Iterable[str]) -> str:
    """Return the tier of a test with these marks."""
    tiers = {"extras" if mark in EXTRAS else mark for mark in marks}
    return max(tiers.intersection(TIERS), key=TIERS.index, default="units")


def chosen(tiers: str, node_id: str, tier: str) -> bool:
    """Whether a run of `tiers` (names with commas between) includes this test.

    Args:
        tiers: The value of `--tier`.
        node_id: The test, with or without parameters.
        tier: The tier it belongs to.
    """
    names = tiers.split(",")
    path, test = node_id.partition("::")[0], node_id.partition("[")[0]
    if DEFAULT in names and (tier == "units" or path in ALSO_DEFAULT or test in ALSO_DEFAULT):
        return True
    return ALL in names or tier in names


def check(tiers: str) -> None:
    """Raise `ValueError` if `--tier` names a tier that does not exist."""
    known = (*TIERS, DEFAULT, ALL)
    if unknown := [name for name in tiers.split(",") if name not in known]:
        raise ValueError(f"unknown tier {', '.join(unknown)}: choose from {', '.join(known)}")


def workers(tiers: str, cores: int) -> int:
    """Return how many tests run at once.

    Tests of real processes mostly wait. Units and extras wait for a fifth of their time. Seeds and
    properties only compute.
    """
    if tiers == "processes":
        return 3 * cores
    return cores if tiers in ("seeds", "properties") else cores + cores // 2


def place(node_id: str) -> int:
    """Return a sort key that puts the files in `FIRST` before all others."""
    path = node_id.partition("::")[0]
    return FIRST.index(path) if path in FIRST else len(FIRST)


def group(tiers: str, node_id: str) -> str:
    """Name the tests that share a worker with this one: those of its file, or half of those that use Spark.

    A worker has one Spark session. Tests of seeds take long and share nothing. Spark's units use no session.
    """
    path = node_id.partition("::")[0]
    if tiers == "seeds":
        return node_id
    uses_session = path.startswith("tests/spark/") and not {"extras", ALL}.isdisjoint(
        tiers.split(",")
    )
    if not uses_session:
        return path
    return "second Spark session" if path in SECOND_SPARK_SESSION else "tests/spark"


def not_run(left_out: dict[str, int]) -> Sequence[str]:
    """Return the lines that name the tiers that a run left out, with the command that runs each."""
    return [
        f"not run: tier {tier} ({left_out[tier]} tests). To run it: python -m pytest -q --tier {tier}"
        for tier in TIERS
        if left_out.get(tier)
    ]
