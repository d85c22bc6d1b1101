"""The cheap half of the exam: bugs of a bookie and of drivers must be found, or it has gone blind.

The dear half, and the table: ``python tests/sim/planted.py --all``.
"""

import subprocess
import sys
from pathlib import Path

import pytest

PLANTED = Path(__file__).with_name("planted.py")

FOUND_AT_ONCE = (
    "acknowledge before the sync",
    "fence answered before it is durable",
    "fence kept in memory only",
    "fence not asked by adds",
    "page cache trusted after a failed sync",
    "no digest check on replay",
    "a duplicate is acknowledged at once",
    "a read that is cut claims to be complete",
    "unsynced entries are acknowledged by the sync that runs",
    "the end is where the blocks end",
    "silence is absence",
    "a change counts before the metadata has it",
    "a writer notes no holes",
)


@pytest.mark.seeds
@pytest.mark.parametrize("name", FOUND_AT_ONCE)
def test_a_planted_bug_is_found(name: str) -> None:
    """Reliability.md 4: a checker that cannot fail is none."""
    run = subprocess.run(
        [sys.executable, str(PLANTED), "--bug", name], capture_output=True, text=True, timeout=300
    )

    assert run.returncode == 0, run.stdout + run.stderr[-1000:]
