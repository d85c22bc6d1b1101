"""A few seeds of each simulated world, for the default tier. Budgets of seeds: the tests of each world."""

import pytest

from distributedlog.testing.sim.ledger.bookie_world import BookieWorld
from distributedlog.testing.sim.ledger.ledger_world import run_seed
from distributedlog.testing.sim.raft.raft_world import run_seeds
from distributedlog.testing.sim.workloads.campaign import describe_failure
from distributedlog.testing.sim.workloads.exactly_once import OnceRun
from distributedlog.testing.sim.workloads.pipeline import PipelineRun
from distributedlog.testing.sim.workloads.seed import LogRun

CHAOS_S = 6.0
"""Virtual seconds of faults per seed of the whole cluster."""

pytestmark = [pytest.mark.seeds, pytest.mark.usefixtures("quiet")]


def test_few_seeds_of_the_raft_core_keep_every_promise() -> None:
    assert run_seeds(range(100)) is None


def test_few_seeds_of_the_ledger_protocol_keep_every_promise() -> None:
    for seed in range(200):
        run_seed(seed)


@pytest.mark.parametrize("seed", range(5))
def test_few_seeds_of_one_bookie_keep_its_promises(seed: int) -> None:
    assert BookieWorld(seed).run().failures == []


@pytest.mark.parametrize(
    ("workload", "run", "seed"),
    [("log", LogRun, 0), ("pipeline", PipelineRun, 0), ("once", OnceRun, 0)],
)
def test_few_seeds_of_the_whole_cluster_keep_every_promise(
    workload: str, run: type[LogRun | PipelineRun | OnceRun], seed: int
) -> None:
    result = run(seed, chaos_s=CHAOS_S).run()
    assert not result.failed, describe_failure(result, CHAOS_S, workload)
