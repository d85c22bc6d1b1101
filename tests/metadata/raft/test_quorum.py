"""Counting majorities."""

import itertools

import pytest

from distributedlog.metadata.raft.quorum import VoteResult, majority, reached_by_majority, tally


@pytest.mark.parametrize(("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_a_majority_is_more_than_half(voters: int, needed: int) -> None:
    assert majority(voters) == needed


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_a_value_is_reached_when_a_majority_has_it_or_more(count: int) -> None:
    """Raft paper 5.3: committed is what a majority holds; tried on all small cases."""
    for values in itertools.product(range(3), repeat=min(count, 5)):
        reached = reached_by_majority(values)

        assert sum(value >= reached for value in values) >= majority(len(values))
        assert sum(value > reached for value in values) < majority(len(values))


def test_any_two_majorities_share_a_voter() -> None:
    """Raft paper 5.2: this is why one term elects one leader."""
    for count in range(1, 7):
        voters = range(count)
        for one in itertools.combinations(voters, majority(count)):
            for other in itertools.combinations(voters, majority(count)):
                assert set(one) & set(other)


def test_an_election_is_won_lost_or_open() -> None:
    voters = ["a", "b", "c", "d"]

    assert tally({"a": True, "b": True}, voters) is VoteResult.PENDING
    assert tally({"a": True, "b": True, "c": True}, voters) is VoteResult.WON
    assert tally({"a": True, "b": False}, voters) is VoteResult.PENDING
    assert tally({"b": False, "c": False}, voters) is VoteResult.LOST  # a tie elects nobody


def test_votes_of_others_than_voters_do_not_count() -> None:
    """Hazard H5: a learner or an emptied node is no voter."""
    assert tally({"a": True, "x": True, "y": True}, ["a", "b", "c"]) is VoteResult.PENDING
