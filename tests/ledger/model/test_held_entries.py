"""What a bookie's list says it lacks, against a look at each entry."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.ledger.model.ledger_metadata import Fragment, LedgerMetadata, lacks_entries
from tests.examples import examples

KEY = bytes(16)


@settings(max_examples=examples(200), deadline=None)
@given(
    size=st.integers(2, 5),
    quorum=st.integers(1, 5),
    last=st.integers(-1, 12),
    change=st.integers(1, 12),
    held=st.sets(st.integers(0, 14)),
    extra=st.booleans(),
)
def test_a_list_lacks_what_a_look_at_each_entry_misses(
    size: int, quorum: int, last: int, change: int, held: set[int], extra: bool
) -> None:
    quorum = min(size, quorum)
    bookies = tuple(f"b{n}" for n in range(size))
    ensembles = [Fragment(0, bookies, 0)]
    if extra:  # b0 leaves, then b1 moves to its slot
        ensembles.append(Fragment(change, (*bookies[1:], "x"), 1))
    record = LedgerMetadata(1, size, quorum, 1, tuple(ensembles), KEY)
    if extra and last < change - 1:
        last = change - 1
    closed = record.close_by_writer(last, 0)
    ranges: list[tuple[int, int]] = []
    for entry in sorted(held):
        if ranges and sum(ranges[-1]) == entry:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + 1)
        else:
            ranges.append((entry, 1))

    for bookie in {*bookies, "x"}:
        missing = [
            entry
            for entry in range(last + 1)
            if bookie in (place := closed.fragment_of(entry)).bookies
            and closed.striping.holds(place.bookies.index(bookie), entry)
            and entry not in held
        ]
        assert lacks_entries(closed, bookie, ranges) == bool(missing)
