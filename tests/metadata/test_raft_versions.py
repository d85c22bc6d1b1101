"""Seeds of Raft worlds whose nodes are of two versions, and what must be found in them (H105)."""

import pytest

from distributedlog.testing.sim.raft.raft_versions import (
    LimitsOfTheProgramWorld,
    PassesOverWorld,
    SnapshotsForgetLimits,
    VersionsWorld,
)
from distributedlog.testing.sim.raft.raft_world import run_seeds

pytestmark = pytest.mark.seeds

SEEDS = 40


def test_nodes_of_two_versions_make_one_state() -> None:
    worlds = [VersionsWorld(seed) for seed in range(SEEDS)]
    for world in worlds:
        world.run()

    assert sum(world.changes for world in worlds) > 3 * SEEDS
    assert sum(world.refused_starts for world in worlds) > 5
    assert (
        sum(state.limits_lifted for world in worlds for state in world.machine.states.values())
        > SEEDS / 2
    )


@pytest.mark.parametrize(
    ("world", "start"),
    [(LimitsOfTheProgramWorld, 0), (PassesOverWorld, 30), (SnapshotsForgetLimits, 20)],
)
def test_what_splits_the_state_is_found(world: type[VersionsWorld], start: int) -> None:
    """By some of the seeds from this one on."""
    found = run_seeds(range(start, start + SEEDS), world)

    assert found is not None
    assert "H105" in found[1]
