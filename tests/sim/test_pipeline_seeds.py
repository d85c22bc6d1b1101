"""Seeds of a log under pipelines, and two planted bugs that they must find; past failures by name.

``DLOG_PIPELINE_SEEDS`` sets how many seeds (4), ``DLOG_SIM_START`` the first one. All planted bugs:
``python -m distributedlog.testing.sim.bugs.pipeline_injected_bugs``.
"""

import os

import pytest

from distributedlog.testing.sim.bugs.pipeline_injected_bugs import seeds_until_found
from distributedlog.testing.sim.workloads.campaign import describe_failure
from distributedlog.testing.sim.workloads.pipeline import PipelineRun
from distributedlog.testing.sim.workloads.seed import CHAOS_S

SEEDS = int(os.environ.get("DLOG_PIPELINE_SEEDS", "3"))
START = int(os.environ.get("DLOG_SIM_START", "0"))

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.seeds
def test_seeds_keep_every_promise_and_do_all_that_pipelines_do() -> None:
    runs = [PipelineRun(seed) for seed in range(START, START + SEEDS)]
    for run in runs:
        result = run.run()
        if result.failed:
            pytest.fail(describe_failure(result, CHAOS_S, "pipeline"), pytrace=False)
    assert all(run.found_versions for run in runs)
    for what in ("new_links", "repeated_links", "truncations"):
        assert sum(getattr(run.pipeline_history, what) for run in runs), f"no seed had any {what}"
    assert sum(run.purged_segments for run in runs)


@pytest.mark.seeds
@pytest.mark.parametrize(
    "bug",
    [
        "the purge takes the segment of the point (G6)",
        "sequence ids go on without what was linked (G1)",
    ],
)
def test_a_planted_bug_is_found(bug: str) -> None:
    assert seeds_until_found(bug, range(10)) is not None
