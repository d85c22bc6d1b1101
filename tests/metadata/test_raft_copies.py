"""Seeds of Raft worlds where nodes run on older copies of their disks, and what they must find (H107)."""

import pytest

from distributedlog.testing.sim.raft.raft_disk_copies import (
    CopiedWorld,
    CountsAsBeforeWorld,
    CountsLateAnswersWorld,
    OlderMajorityWorld,
)
from distributedlog.testing.sim.raft.raft_world import run_seeds

pytestmark = pytest.mark.seeds

SEEDS = 40
SOME_SEEDS = [range(12), range(12, SEEDS)]


@pytest.mark.parametrize("seeds", SOME_SEEDS)
def test_what_a_copy_forgot_is_not_counted(seeds: range) -> None:
    worlds = [CopiedWorld(seed) for seed in seeds]
    for world in worlds:
        world.run()

    assert sum(world.restore_count for world in worlds) > len(seeds)


@pytest.mark.parametrize(
    ("world", "start"), [(CountsAsBeforeWorld, 85), (CountsLateAnswersWorld, 25)]
)
def test_who_counts_what_was_before_is_found(world: type[CopiedWorld], start: int) -> None:
    """By some of the seeds from this one on."""
    found = run_seeds(range(start, start + 2 * SEEDS), world)

    assert found is not None
    assert found[1].startswith("commit")


@pytest.mark.parametrize("seeds", SOME_SEEDS)
def test_committed_entries_that_a_majority_has_forgotten_are_not_deleted(seeds: range) -> None:
    """Two of three nodes run on older copies, and lead. The third ends with an error instead."""
    ended = 0
    for seed in seeds:
        world = OlderMajorityWorld(seed)
        world.run()
        if world.away_node is None or world.is_overtaken:
            continue
        assert not world.deleted_entries, seed
        assert world.divergence is not None or not world.lost_entries, seed
        ended += world.divergence is not None
    assert ended > len(seeds) / 4
