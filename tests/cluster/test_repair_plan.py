"""Which entries a repair copies (H22, H22b): what the bookie should hold and does not have, no more."""

from collections.abc import Iterable
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.bookie.client.bookie_client import EntryList
from distributedlog.cluster.repair.copier import (
    EntryRange,
    lacking_ranges,
    ranges_to_hold,
    subtract,
)
from distributedlog.cluster.repair.ledger_audit import _missing_ranges
from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata
from distributedlog.ledger.model.missing_range import MissingRange
from distributedlog.ledger.model.striping import Striping
from tests.examples import examples


def _closed(
    ensembles: tuple[Fragment, ...], last_entry: int, sizes: tuple[int, int, int] = (3, 3, 2)
) -> LedgerMetadata:
    ledger = LedgerMetadata(7, *sizes, ensembles, bytes(16))
    return ledger.close_by_writer(last_entry, 0)


def _ids(stretches: Iterable[EntryRange]) -> list[int]:
    return [entry for s in stretches for entry in range(s.first, s.last + 1)]


def test_a_hole_without_end_goes_to_the_ledgers_end() -> None:
    ledger = _closed((Fragment(0, ("b1", "b2", "b3"), 0),), 9)

    assert list(ranges_to_hold(ledger, MissingRange("b2", 4, None))) == [EntryRange(4, 9)]
    assert list(ranges_to_hold(ledger, MissingRange("b2", 4, 100))) == [EntryRange(4, 9)]
    assert list(ranges_to_hold(ledger, MissingRange("b2", 2, 4))) == [EntryRange(2, 3)]


def test_an_empty_ledger_misses_nothing() -> None:
    """A slot that was created on a bookie that was down, and then nothing was written (H22b)."""
    ledger = _closed((Fragment(0, ("b1", "b2", "b3"), 0),), -1)

    assert list(ranges_to_hold(ledger, MissingRange("b2", 0, None))) == []


def test_what_another_bookie_took_over_is_not_wanted() -> None:
    ledger = _closed((Fragment(0, ("b1", "b2", "b3"), 0), Fragment(5, ("b1", "b4", "b3"), 1)), 9)

    assert list(ranges_to_hold(ledger, MissingRange("b2", 3, None))) == [EntryRange(3, 4)]
    assert list(ranges_to_hold(ledger, MissingRange("b5", 0, None))) == []


def test_a_record_that_claims_any_number_of_entries_costs_what_is_asked() -> None:
    """A writer may close its ledger at what end it likes: a bookie that made a list of all that it claims
    would never come back, and take all memory there is."""
    ledger = _closed((Fragment(0, ("b1", "b2", "b3"), 0),), 1 << 62, (3, 2, 2))
    some = EntryList([(0, 2), (3, 2)], proves_absence=True)

    assert list(islice(lacking_ranges(ledger, "b1", some), 2)) == [
        EntryRange(2, 2),
        EntryRange(5, 6),
    ]
    assert bool(lacking_ranges(ledger, "b1", some))
    assert _missing_ranges(ledger, "b1", some) == [MissingRange("b1", 2, (1 << 62) + 1)]
    assert not ranges_to_hold(ledger, MissingRange("b9", 0, None))


@settings(max_examples=examples(100))
@given(
    st.integers(1, 5).flatmap(lambda e: st.tuples(st.just(e), st.integers(1, e))),
    st.integers(0, 4),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_with_striping_exactly_the_entries_of_the_slot_are_wanted(
    sizes: tuple[int, int], slot: int, first: int, length: int
) -> None:
    ensemble, quorum = sizes
    slot %= ensemble
    bookies = tuple(f"b{n}" for n in range(ensemble))
    ledger = _closed((Fragment(0, bookies, 0),), 25, (ensemble, quorum, quorum))

    found = _ids(ranges_to_hold(ledger, MissingRange(f"b{slot}", first, first + length)))

    striping = Striping(ensemble, quorum, quorum)
    end = min(26, first + length)
    assert found == [e for e in range(first, end) if striping.holds(slot, e)]


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=5),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=5),
)
def test_what_is_there_already_is_not_copied(
    wanted_runs: list[tuple[int, int]], present_runs: list[tuple[int, int]]
) -> None:
    needed = sorted({e for first, n in wanted_runs for e in range(first, first + n)})
    present = sorted({e for first, n in present_runs for e in range(first, first + n)})

    left = subtract([EntryRange(e, e) for e in needed], [(e, 1) for e in present])

    assert _ids(left) == [e for e in needed if e not in present]
