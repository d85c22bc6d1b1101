"""A budget of Raft seeds, and the exam of the simulator with planted bugs."""

import os
import random
from pathlib import Path

import pytest

from distributedlog.metadata.declarations.options import RaftOptions
from distributedlog.metadata.raft.raft import Raft
from distributedlog.testing.sim.raft.raft_faults import Faults
from distributedlog.testing.sim.raft.raft_injected_bugs import (
    INJECTED_BUGS,
    InjectedBug,
    seeds_until_found,
)
from distributedlog.testing.sim.raft.raft_node import RaftNode
from distributedlog.testing.sim.raft.raft_world import RaftWorld, run_seeds

from .transcript import run_transcript

SEEDS = int(os.environ.get("DLOG_RAFT_SEEDS", "1000"))
SCENARIOS = Path(__file__).parent / "scenarios"

FOUND_WITHIN = 600
"""Seeds; the plants that need more (`python -m distributedlog.testing.sim.raft.raft_injected_bugs`) have a
scenario."""

SCENARIO_OF = {
    "ChangesMembersTooEarly": "two_changes",
    "ChangesMembersTwice": "two_changes",
    "CommitsBeyondMessage": "",  # test_a_follower_commits_no_further_than_the_message_reaches
    "CommitsOldTerms": "figure8",
    "ComparesLengthOnly": "older_log",
    "CountsAnswersOfOldTerms": "",  # test_answers_to_an_earlier_term_do_not_count
    "EmptiedDiskVotes": "",  # scenarios/emptied.txt
    "HelpsDisturbers": "pre_vote",
    "IgnoresLateness": "late",
    "IgnoresOldLeader": "ran_ahead",
    "NoCheckQuorum": "check_quorum",
    "NoPreVote": "pre_vote",
    "RemovedLeaderStays": "removed",
    "RemovedOnAppendGivesUp": "removed",
    "ReadsBeforeNoop": "read_index",
    "ReadsByLease": "read_index",
    "ReadsJoinOldRound": "read_index",
    "ReadsWithoutRound": "read_index",
    "RestartsAtEachRefusal": "",  # test_one_lost_append_is_answered_by_one_new_attempt
}
"""Plants that random seeds find late or never, or that break no promise, and who shows them then."""


@pytest.mark.seeds
def test_the_seeds_hold() -> None:
    """M1..M4, M5's reads, and liveness after healing. DLOG_RAFT_SEEDS sets the budget."""
    assert run_seeds(range(SEEDS)) is None


def test_a_seed_is_one_history() -> None:
    """Same seed, same run: else a failure could not be replayed."""
    histories = []
    for _ in range(2):
        random.seed()  # the global generator must not matter
        world = RaftWorld(11)
        world.run()
        histories.append((world.network.message_count, world.now, world.oracles.chains))

    assert histories[0] == histories[1]


@pytest.mark.parametrize("seed", range(10))
def test_a_stall_of_the_whole_machine_elects_nobody(seed: int) -> None:
    """H25: six nodes in one thread; a stall lets all deadlines pass at once, the term stays."""
    world = RaftWorld(seed, nodes=3, faults=Faults(kinds=()), options=RaftOptions())
    for node in world.nodes.values():
        world.start(node)
    world.run_until(3.0)
    terms = {core_of(node).term for node in world.nodes.values()}
    for node in world.nodes.values():
        node.paused_since = world.now
    world.run_until(6.0)
    for node in world.nodes.values():
        world.nemesis.resume(node, node.life)
    world.run_until(9.0)

    assert len(terms) == 1
    assert {core_of(node).term for node in world.nodes.values()} == terms


def core_of(node: RaftNode) -> Raft:
    assert node.core is not None
    return node.core


def plant_named(name: str) -> InjectedBug:
    return next(plant for plant in INJECTED_BUGS if plant.name == name)


@pytest.mark.seeds
@pytest.mark.parametrize(
    "name", [plant.name for plant in INJECTED_BUGS if plant.name not in SCENARIO_OF]
)
def test_the_world_finds_the_plant(name: str) -> None:
    """A checker that cannot fail is not one (reliability reference, planted bugs)."""
    assert seeds_until_found(plant_named(name), FOUND_WITHIN, white_box=True) is not None


@pytest.mark.parametrize(("name", "scenario"), [item for item in SCENARIO_OF.items() if item[1]])
def test_the_scenario_shows_the_plant(name: str, scenario: str) -> None:
    """Directed scenarios for what random search finds late or not at all."""
    path = SCENARIOS / f"{scenario}.txt"
    try:
        played = run_transcript(path, plant_named(name).world.core_class)
    except AssertionError:
        return
    assert played != path.read_text()
