"""Each test belongs to one tier, and a run takes the tests of its tiers."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import tiers

ROOT = Path(__file__).resolve().parent.parent
STORY, SEEDS = "tests/cluster/local/test_child_processes.py", "tests/sim/test_seeds.py"


@pytest.mark.parametrize(
    ("marks", "tier"),
    [
        ([], "units"),
        (["parametrize", "usefixtures"], "units"),
        (["properties"], "properties"),
        (["processes", "spark"], "extras"),
        (["extra"], "extras"),
        (["browser", "processes"], "extras"),
        (["processes", "campaigns"], "campaigns"),
        (["seeds", "properties"], "seeds"),
    ],
)
def test_a_test_with_two_marks_belongs_to_the_slower_tier(marks: list[str], tier: str) -> None:
    assert tiers.tier_of(marks) == tier
    assert [one for one in tiers.TIERS if tiers.chosen(one, "tests/x.py::test", tier)] == [tier]


def test_each_mark_of_the_project_belongs_to_a_tier() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    marks = {line.partition(":")[0] for line in settings["markers"]}

    assert marks == {*tiers.TIERS, *tiers.EXTRAS} - {"units", "extras"}


@pytest.mark.parametrize("node_id", tiers.ALSO_DEFAULT)
def test_the_default_tier_names_tests_that_exist(node_id: str) -> None:
    path, _, name = node_id.partition("::")
    body = ast.parse((ROOT / path).read_text()).body
    found = [one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]

    assert not name or name in {one.name for one in found}


def collected(*arguments: str) -> set[str]:
    """Return the functions that a run of pytest with these arguments takes."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    return {line.partition("[")[0] for line in run.stdout.splitlines() if "::" in line}


@pytest.mark.properties
def test_a_path_runs_every_test_and_a_tier_only_its_own() -> None:
    everything = collected(SEEDS, STORY)
    seeds = collected(SEEDS, STORY, "--tier", "seeds")
    processes = collected(SEEDS, STORY, "--tier", "processes")
    default = collected(SEEDS, STORY, "--tier", "default")

    assert everything == seeds | processes
    assert not seeds & processes
    assert default == everything & set(tiers.ALSO_DEFAULT)


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown tier unit: choose from units, "):
        tiers.check("seeds,unit")


def test_each_campaign_is_in_the_index() -> None:
    page = (ROOT / "docs/internals/testing.md").read_text()
    scripts = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if not path.name.startswith("test_")
        and "argparse.ArgumentParser(" in (text := path.read_text())
        and "__main__" in text
    ]

    assert [name for name in scripts if name not in page.replace("/", ".")] == []
