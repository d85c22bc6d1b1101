"""The log as the core sees it: terms, tails, prefixes, hints."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.metadata.raft.raft_log import RaftLog
from distributedlog.metadata.raft.raft_messages import Entry
from tests.examples import examples


def log_of(*terms: int, base: int = 0, base_term: int = 0) -> RaftLog:
    """A log whose entries have these terms."""
    entries = (Entry(base + place, term, b"%d" % term) for place, term in enumerate(terms, 1))
    return RaftLog(base, base_term, entries)


def test_an_empty_log_ends_before_the_first_entry() -> None:
    log = RaftLog()

    assert (log.last_index, log.last_term, log.term_at(0), log.term_at(1)) == (0, 0, 0, None)


def test_a_gap_or_a_falling_term_is_our_own_mistake() -> None:
    log = log_of(1, 2)

    with pytest.raises(AssertionError, match="put at 3"):
        log.append([Entry(4, 2, b"")])
    with pytest.raises(AssertionError, match="term 1 after 2"):
        log.append([Entry(3, 1, b"")])


def test_compaction_keeps_the_mark_of_the_last_entry_forgotten() -> None:
    """Raft paper 7: last included index and term, for the next consistency check."""
    log = log_of(1, 1, 2, 3)

    log.compact(3)

    assert (log.base_index, log.base_term, log.last_index) == (3, 2, 4)
    assert [log.term_at(index) for index in (2, 3, 4, 5)] == [None, 2, 3, None]
    log.compact(2)  # older than the base: nothing happens
    assert log.base_index == 3


def test_a_reset_log_begins_after_the_snapshot() -> None:
    log = log_of(1, 1)

    log.reset(10, 4)

    assert (log.last_index, log.last_term, log.term_at(1)) == (10, 4, None)


def test_a_slice_is_cut_by_bytes_but_never_empty() -> None:
    """An entry larger than a message's bound still travels, alone."""
    log = RaftLog(0, 0, [Entry(index, 1, bytes(100)) for index in range(1, 6)])

    assert [entry.index for entry in log.slice(2, 5, bytes_max=250)] == [2, 3]
    assert [entry.index for entry in log.slice(2, 5, bytes_max=1)] == [2]
    assert [entry.index for entry in log.slice(2, 5, bytes_max=1000, entries_max=3)] == [2, 3, 4]
    assert log.slice(6, 9, bytes_max=1000) == ()


def test_up_to_date_compares_the_last_term_first() -> None:
    """Raft paper 5.4.1: the later last term wins; with equal terms the longer log."""
    log = log_of(1, 1, 2)

    assert log.is_up_to_date(1, 3)
    assert log.is_up_to_date(3, 2)
    assert not log.is_up_to_date(2, 2)
    assert not log.is_up_to_date(99, 1)


def test_the_first_conflict_is_the_first_entry_missing_or_of_another_term() -> None:
    log = log_of(1, 1, 2)

    assert log.first_conflict(log_of(1, 1, 2)._entries) == 0
    assert log.first_conflict(log_of(1, 1, 3)._entries) == 3
    assert log.first_conflict(log_of(1, 1, 2, 2)._entries) == 4


@pytest.mark.parametrize(
    ("leader", "follower", "refusals"),
    [
        # Raft paper, figure 7: the leader of term 8 and the followers (a) .. (f)
        ((1, 1, 1, 4, 4, 5, 5, 6, 6, 6), (1, 1, 1, 4, 4, 5, 5, 6, 6), 1),
        ((1, 1, 1, 4, 4, 5, 5, 6, 6, 6), (1, 1, 1, 4), 1),
        ((1, 1, 1, 4, 4, 5, 5, 6, 6, 6), (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6), 0),
        ((1, 1, 1, 4, 4, 5, 5, 6, 6, 6), (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7), 0),
        ((1, 1, 1, 4, 4, 5, 5, 6, 6, 6), (1, 1, 1, 4, 4, 4, 4), 2),
        ((1, 1, 1, 4, 4, 5, 5, 6, 6, 6), (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3), 2),
    ],
)
def test_the_hint_skips_a_term_a_refusal(
    leader: tuple[int, ...], follower: tuple[int, ...], refusals: int
) -> None:
    """Raft paper 5.3 and figure 7: one refusal for each conflicting term, not for each entry."""
    assert _refusals(log_of(*leader), log_of(*follower)) == refusals


def _refusals(leader: RaftLog, follower: RaftLog) -> int:
    next_index, count = leader.last_index + 1, 0
    while follower.term_at(next_index - 1) != leader.term_at(next_index - 1):
        hint = follower.conflict_hint(next_index - 1)
        tried, next_index = next_index, leader.next_after_hint(next_index - 1, *hint)
        assert next_index < tried, "no progress"
        count += 1
    return count


TERMS = st.lists(st.integers(1, 5), max_size=12).map(sorted)


@settings(max_examples=examples(100))
@given(TERMS, TERMS)
def test_the_hint_finds_where_any_two_logs_agree(one: list[int], other: list[int]) -> None:
    """It ends, and never asks for more refusals than there are terms to skip."""
    assert _refusals(log_of(*one), log_of(*other)) <= len({*one, *other}) + 1
