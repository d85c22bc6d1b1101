"""Seeds of the ledger protocol's world, and the planted bugs that they must find.

DLOG_LEDGER_SEEDS sets the budget (default 2,000); DLOG_LEDGER_FIRST_SEED where it begins.
"""

import os

import pytest

from distributedlog.testing.sim.ledger.ledger_injected_bugs import (
    DIRECTED_ONLY,
    INJECTED_BUGS,
    seeds_until_found,
)
from distributedlog.testing.sim.ledger.ledger_world import run_seed

BUDGET = int(os.environ.get("DLOG_LEDGER_SEEDS", "2000"))
FIRST = int(os.environ.get("DLOG_LEDGER_FIRST_SEED", "0"))


@pytest.mark.seeds
def test_seeds_of_the_ledger_world() -> None:
    """G1 to G5, invariants 4 to 22 of the protocol, in any order of events a seed draws."""
    for seed in range(FIRST, FIRST + BUDGET):
        run_seed(seed)


@pytest.mark.seeds
def test_a_seed_is_the_same_run_each_time() -> None:
    for seed in range(20):
        assert run_seed(seed).net.trace == run_seed(seed).net.trace


@pytest.mark.seeds
@pytest.mark.parametrize("bug", [name for name in INJECTED_BUGS if name not in DIRECTED_ONLY])
def test_a_planted_bug_is_found(bug: str) -> None:
    """An oracle that never fires proves nothing."""
    assert seeds_until_found(bug, range(4000)) is not None
