"""Seeds of Raft worlds whose disks rot, and what must be found in them (H106)."""

import pytest

from distributedlog.testing.sim.raft.raft_corruption import (
    CorruptionWorld,
    TrustingWorld,
    VotesWithoutHardState,
)
from distributedlog.testing.sim.raft.raft_world import run_seeds

pytestmark = pytest.mark.seeds

SEEDS = 80


def test_nothing_committed_is_lost_while_disks_rot() -> None:
    assert run_seeds(range(SEEDS), CorruptionWorld) is None


def test_the_world_rots_and_forgets() -> None:
    worlds = [CorruptionWorld(seed) for seed in range(20)]
    for world in worlds:
        world.run()

    assert sum(world.corruptions for world in worlds) > 40
    assert sum(world.lost_hard_states for world in worlds) > 10


def test_who_trusts_what_is_left_is_found() -> None:
    assert run_seeds(range(SEEDS), TrustingWorld) is not None


def test_who_remembers_nothing_is_found() -> None:
    assert run_seeds(range(SEEDS), VotesWithoutHardState) is not None
