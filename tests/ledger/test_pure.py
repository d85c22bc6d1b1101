"""Striping, placement, holes and ensemble changes: the small pure parts."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.ledger.model.ledger_metadata import LedgerState
from distributedlog.ledger.model.missing_range import (
    MissingRange,
    decode_missing_ranges,
    encode_missing_ranges,
    limit_ranges,
    merge_ranges,
)
from distributedlog.ledger.model.striping import Striping
from distributedlog.ledger.placement.ensemble_placement import (
    Candidate,
    choose_ensemble,
    choose_replacements,
)
from distributedlog.ledger.write.ensemble_change import EnsembleChange
from distributedlog.runtime.interfaces.errors import (
    CorruptData,
    LedgerClosed,
    LedgerFenced,
    NoSuchLedger,
)
from tests.examples import examples

from .model.test_ledger_metadata import ledger

quorums = st.integers(1, 7).flatmap(
    lambda e: st.integers(1, e).flatmap(
        lambda w: st.integers(1, w).map(lambda a: Striping(e, w, a))
    )
)


@settings(max_examples=examples(100))
@given(quorums, st.integers(0, 100), st.integers(0, 20), st.data())
def test_striping_agrees_with_its_definition(
    one: Striping, start: int, n: int, data: st.DataObject
) -> None:
    """docs/internals/invariants.md, striping: entry e lies in slots (e + k) mod E."""
    slot = data.draw(st.integers(0, one.ensemble_size - 1))
    held = [e for e in range(start, start + 200) if slot in one.write_set(e)]

    assert [e for e in range(start, start + 200) if one.holds(slot, e)] == held
    assert one.next_held(slot, start) == held[0]
    assert one.nth_held(slot, start, n) == held[n]


@settings(max_examples=examples(100))
@given(quorums, st.integers(0, 100))
def test_each_cover_holds_every_entry(one: Striping, entry: int) -> None:
    """docs/internals/invariants.md, striping; the first one begins where ``entry``'s write set does."""
    covers = one.covering_slot_sets(entry)

    assert covers[0][0] == one.write_set(entry)[0]
    for cover in covers:
        assert len(set(cover)) == len(cover)
        assert all(any(one.holds(slot, e) for slot in cover) for e in range(entry, entry + 20))


@settings(max_examples=examples(100))
@given(quorums, st.sets(st.integers(0, 6)))
def test_coverage_leaves_no_ack_quorum_unseen(one: Striping, slots: set[int]) -> None:
    """Invariant 14: covered means that every ack quorum of every entry has a known slot."""
    known = {s for s in slots if s < one.ensemble_size}
    unseen = max(sum(s not in known for s in w) for w in one.all_write_sets())

    assert one.covered(known) == (unseen < one.ack_quorum)
    assert one.keeps_ack_quorums(known) == all(
        sum(s in known for s in w) >= one.ack_quorum for w in one.all_write_sets()
    )


def draw() -> float:
    return 0.5


def test_placement_keeps_racks_apart_while_there_are_racks() -> None:
    live = [Candidate(f"b{n}", {"rack": f"r{n % 3}"}) for n in range(9)]
    for drawn in (0.0, 0.3, 0.6, 0.99):
        chosen = choose_ensemble(Striping(3, 3, 2), live, lambda drawn=drawn: drawn)  # type: ignore[misc]
        assert chosen is not None
        assert len({int(b[1:]) % 3 for b in chosen[0]}) == 3
    one_rack = [Candidate(f"b{n}", {"rack": "r"}) for n in range(3)]
    assert choose_ensemble(Striping(3, 3, 2), one_rack, draw) is not None


def test_an_ensemble_may_begin_without_a_bookie_that_is_down() -> None:
    """H22b: up to Qw-Qa slots of each write set."""
    live, down = [Candidate("b0"), Candidate("b1")], [Candidate("b2", is_unavailable=True)]

    chosen = choose_ensemble(Striping(3, 3, 2), [*live, *down], draw)
    assert chosen is not None
    bookies, detached = chosen
    assert sorted(bookies) == ["b0", "b1", "b2"]
    assert [bookies[slot] for slot in detached] == ["b2"]
    assert choose_ensemble(Striping(3, 3, 3), [*live, *down], draw) is None
    assert choose_ensemble(Striping(3, 3, 2), live, draw) is None
    assert (
        choose_ensemble(
            Striping(3, 3, 2), [live[0], *down, Candidate("b3", is_unavailable=True)], draw
        )
        is None
    )


def test_missing_slot_prefers_a_bookie_that_may_return_to_one_that_leaves() -> None:
    live = [Candidate("b0"), Candidate("b1")]
    absent = [
        Candidate("b2", is_unavailable=True, is_leaving=True),
        Candidate("b3", is_unavailable=True),
    ]

    for drawn in (0.0, 0.5, 0.99):
        chosen = choose_ensemble(Striping(3, 3, 2), [*live, *absent], lambda drawn=drawn: drawn)  # type: ignore[misc]
        assert chosen is not None
        assert "b3" in chosen[0]
    only_leaving = choose_ensemble(Striping(3, 3, 2), [*live, absent[0]], draw)
    assert only_leaving is not None
    assert [only_leaving[0][slot] for slot in only_leaving[1]] == ["b2"]


def test_replacements_exclude_and_stop_where_nobody_is_left() -> None:
    live = [Candidate(f"b{n}") for n in range(5)]
    chosen = choose_replacements(
        Striping(3, 3, 2), {0: "b0"}, [1, 2], live, draw, excluded=["b1", "b2", "b3"]
    )
    assert chosen == {1: "b4"}


def test_holes_merge_and_survive_their_bytes() -> None:
    holes = merge_ranges(
        [
            MissingRange("b", 5, 9),
            MissingRange("a", 3, None),
            MissingRange("b", 9, 12),
            MissingRange("b", 20, 20),
            MissingRange("a", 1, 4),
        ]
    )

    assert holes == (MissingRange("a", 1, None), MissingRange("b", 5, 12))
    assert decode_missing_ranges(encode_missing_ranges(holes)) == holes
    assert limit_ranges(holes, 10) == (MissingRange("a", 1, 10), MissingRange("b", 5, 10))
    with pytest.raises(CorruptData):
        decode_missing_ranges(encode_missing_ranges(holes)[:-1])


def change() -> EnsembleChange:
    return EnsembleChange(ledger(), 4)


def test_a_round_replaces_only_what_failed() -> None:
    """Inv. 6, 10."""
    one = change()
    assert one.on_failure(1, "b")
    assert not one.on_failure(0, "z")  # late: not in that slot

    round_ = one.start_round(9, [], lambda slots, kept, taken: {1: "d"})
    assert round_.proposed is not None
    assert round_.proposed.ensembles[-1].bookies == ("a", "d", "c")
    assert (round_.first_entry, round_.version) == (10, 4)
    assert not one.on_failure(1, "d")  # not there yet
    assert one.on_failure(2, "c")  # meanwhile: folded into the next round
    one.on_committed(5)
    assert one.failed_slots == {2: "c"}
    assert one.version == 5
    round_ = one.start_round(9, [], lambda slots, kept, taken: {2: "e"})
    assert round_.proposed is not None
    assert [f.bookies for f in round_.proposed.ensembles] == [("a", "b", "c"), ("a", "d", "e")]


def test_without_a_spare_a_slot_is_detached_and_below_the_quorum_it_starves() -> None:
    """H22."""
    one = change()
    one.on_failure(0, "a")
    one.on_failure(2, "c")
    round_ = one.start_round(-1, [], lambda slots, kept, taken: {})
    assert round_.proposed is None
    assert (round_.newly_detached, round_.unreplaced) == ((0,), (2,))


def test_a_conflict_ends_the_writer_or_is_tried_again() -> None:
    """Inv. 10; the lost answer of a round that went through is recognised."""
    one = change()
    one.on_failure(0, "a")
    round_ = one.start_round(3, [], lambda slots, kept, taken: {0: "d"})
    stored = ledger()

    with pytest.raises(LedgerFenced):
        one.on_conflict(stored.in_recovery(), 5)
    with pytest.raises(LedgerClosed):
        one.on_conflict(stored.close_by_writer(3, 9), 5)
    with pytest.raises(NoSuchLedger):
        one.on_conflict(None, 0)
    with pytest.raises(LedgerFenced):
        one.on_conflict(stored.with_fragment(2, "xyz"), 5)
    again = one.on_conflict(replace(stored, owner=(1, 2)), 6)
    assert again is not None
    assert again.proposed is not None
    assert (again.version, again.proposed.owner) == (6, (1, 2))
    assert again.proposed.state is LedgerState.OPEN
    assert round_.proposed is not None
    assert one.on_conflict(again.proposed, 7) is None
    one.on_committed(7)
    assert one.metadata == again.proposed


def test_a_conflict_refuses_ensembles_that_another_writer_changed_before_the_rounds_entry() -> None:
    """Also where the last ensemble is the one that the round proposes: the acks were counted on another."""
    one = change()
    one.on_failure(0, "a")
    one.start_round(9, [], lambda slots, kept, taken: {0: "d"})

    with pytest.raises(LedgerFenced):
        one.on_conflict(ledger().with_fragment(2, ("d", "b", "c")), 5)
    assert (one.metadata, one.version) == (ledger(), 4)


def test_after_a_conflict_the_round_is_proposed_from_the_same_entry_at_the_stored_version() -> None:
    one = change()
    one.on_failure(0, "a")
    one.start_round(9, [], lambda slots, kept, taken: {0: "d"})
    stored = replace(ledger(), owner=(1, 2))

    again = one.on_conflict(stored, 6)

    assert again is not None
    assert again is one.pending_round
    assert (one.metadata, one.version) == (stored, 6)
    assert again.proposed == stored.with_fragment(10, ("d", "b", "c"))
    assert (again.first_entry, again.replacements) == (10, {0: "d"})
