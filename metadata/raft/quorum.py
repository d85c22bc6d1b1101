"""Majorities of voters (pure). Votes and indexes are counted only here.

Source: docs/concepts/guarantees.md M1, Raft paper 5.2 (majority) and 5.3 (an entry is on a majority).
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

_Number = TypeVar("_Number", int, float)


class VoteResult(enum.Enum):
    """The result of an election so far."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voters: int) -> int:
    """Return the size of a majority of ``voters`` (at least 1): 2 of 3, 3 of 4, 3 of 5.

    Any two majorities have a common voter.
    """
    assert voters > 0, "a quorum needs at least one voter"
    return voters // 2 + 1


def reached_by_majority(values: Iterable[_Number]) -> _Number:
    """Return the largest value that a majority has reached.

    ``values`` has one value per voter, at least one.
    """
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 2]


def tally(votes: Mapping[str, bool], voters: Sequence[str]) -> VoteResult:
    """Count the votes of ``voters``. Other votes are ignored."""
    majority_size = majority(len(voters))
    yes = no = 0
    for voter in voters:
        vote = votes.get(voter)
        if vote is True:
            yes += 1
        elif vote is False:
            no += 1
    if yes >= majority_size:
        return VoteResult.WON
    if no > len(voters) - majority_size:
        return VoteResult.LOST
    return VoteResult.PENDING
