"""What a majority of voters has done (pure): the only place where votes and indexes are counted.

Source: docs/concepts/guarantees.md M1; Raft paper 5.2 (majority), 5.3 (an entry is on a majority).
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

_Number = TypeVar("_Number", int, float)


class VoteResult(enum.Enum):
    """How an election stands."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voters: int) -> int:
    """How many of ``voters`` (1 or more) any two decisions must share one of: 2 of 3, 3 of 4, 3 of 5."""
    assert voters > 0, "a quorum of nobody decides nothing"
    return voters // 2 + 1


def reached_by_majority(values: Iterable[_Number]) -> _Number:
    """The largest value that a majority has reached; one value a voter, at least one."""
    ascending = sorted(values)
    return ascending[(len(ascending) - 1) // 2]


def tally(votes: Mapping[str, bool], voters: Sequence[str]) -> VoteResult:
    """Count the votes of ``voters`` (of nobody else): won, lost, or not yet decided."""
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
