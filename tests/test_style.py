"""Lint, format and types, as tests: one command passes or fails the whole."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def check(*command: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


def test_types_of_the_product_are_right() -> None:
    check("mypy", "distributedlog")


@pytest.mark.properties
def test_types_of_product_tests_and_examples_are_right() -> None:
    check("mypy")


def test_the_tree_is_linted() -> None:
    check("ruff", "check", ".")


def test_the_tree_is_formatted() -> None:
    check("ruff", "format", "--check", ".")


BEFORE_PLAIN_ENGLISH = "6c16b160707e13d105e59f3567b1c47cd13c17b7"
"""Lines that changed since this commit meet the goals of the language standard."""


def prose_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ".ci/prose_check.py", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def in_history(commit: str) -> bool:
    found = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    return found.returncode == 0


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no git checkout")
@pytest.mark.properties
def test_findings_in_prose_never_increase() -> None:
    run = prose_check("--ratchet")
    assert run.returncode == 0, run.stdout


@pytest.mark.skipif(not in_history(BEFORE_PLAIN_ENGLISH), reason="no git history")
@pytest.mark.properties
def test_changed_prose_meets_the_goals() -> None:
    run = prose_check("--changed-since", BEFORE_PLAIN_ENGLISH)
    assert run.returncode == 0, run.stdout


@pytest.mark.properties
def test_breaches_of_the_laws_of_the_tree_never_increase() -> None:
    run = subprocess.run(
        [sys.executable, ".ci/house_check.py", "--ratchet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
