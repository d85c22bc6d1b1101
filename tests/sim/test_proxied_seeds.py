"""A seed of a log behind proxies, and a planted bug that it must find.

``DLOG_PROXIED_SEEDS`` sets how many seeds (1), ``DLOG_SIM_START`` the first one; they are short. All planted
bugs: ``python -m distributedlog.testing.sim.bugs.proxy_injected_bugs``.
"""

import os
from collections import Counter

import pytest

from distributedlog.testing.sim.bugs.proxy_injected_bugs import (
    INJECTED_BUGS,
    STARTS,
    seed_that_finds,
)
from distributedlog.testing.sim.faults.trigger_points import AT_PROXIES
from distributedlog.testing.sim.workloads.campaign import describe_failure
from distributedlog.testing.sim.workloads.proxy_world import ProxiedRun

SEEDS = int(os.environ.get("DLOG_PROXIED_SEEDS", "1"))
START = int(os.environ.get("DLOG_SIM_START", "1"))
CHAOS_S = 6.0

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.seeds
def test_seeds_of_a_log_behind_proxies_keep_every_promise() -> None:
    """G1 to G7, G9, G11, H60, H64, H76, H182, H183, H188, H192."""
    runs, heard = (
        [ProxiedRun(seed, chaos_s=CHAOS_S) for seed in range(START, START + SEEDS)],
        Counter[str](),
    )
    for run in runs:
        result = run.run()
        if result.failed:
            pytest.fail(describe_failure(result, CHAOS_S, "proxied"), pytrace=False)
        heard += result.trigger_counts
    assert all(run.producer_records for run in runs)
    deaf = [kind for kind in AT_PROXIES if not heard[kind]]
    assert deaf == [], "moments that never came: the ear does not fit any more"


@pytest.mark.seeds
def test_a_takeover_that_knows_no_producer_is_found() -> None:
    """H61. The other bugs: docs/internals/testing.md."""
    (bug,) = [name for name in INJECTED_BUGS if "H61" in name]

    assert seed_that_finds(bug, 2, chaos_s=CHAOS_S) is not None


@pytest.mark.seeds
def test_who_was_forgotten_while_he_was_away_stores_nothing_twice() -> None:
    """H67: what was stored and not answered is sent again, and the log does not know its producer any more.

    Taken as new, it is there twice.
    """
    (bug,) = [name for name in INJECTED_BUGS if "H67" in name]
    run = ProxiedRun(STARTS[bug], chaos_s=CHAOS_S)
    result = run.run()
    if result.failed:
        pytest.fail(describe_failure(result, CHAOS_S, "proxied"), pytrace=False)
    assert run.has_met_forgetting

    found = seed_that_finds(bug, 1, chaos_s=CHAOS_S)

    assert found is not None
    assert "G7 duplicate" in found[1]
