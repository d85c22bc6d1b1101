"""Where the index is asked for what is live in some files: all of it, and little else."""

from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.bookie.format.footer_ranges import GAP_ENTRIES_MAX, ID_MAX, FooterRanges
from tests.examples import examples

Row = tuple[int, int, int]
"""Ledger, first id, count."""
rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 300), st.integers(1, 20)), min_size=1, max_size=40
)


def spans_of(told: list[Row]) -> FooterRanges:
    spans = FooterRanges()
    spans.add((ledger, first, 4096, 100, count) for ledger, first, count in told)
    return spans


@settings(max_examples=examples(200))
@given(rows)
def test_each_id_is_in_one_of_them_and_each_begins_and_ends_with_one(told: list[Row]) -> None:
    ids = {(ledger, first + n) for ledger, first, count in told for n in range(count)}

    found = spans_of(told)

    spans = found.merged_ranges()
    within = {(ledger, n) for ledger, first, last in spans for n in range(first, last + 1)}
    assert ids <= within
    assert all(
        any((ledger, n - gap) in ids for gap in range(1, GAP_ENTRIES_MAX + 1))
        for ledger, n in within - ids
    )
    assert all((ledger, end) in ids for ledger, first, last in spans for end in (first, last))
    assert len(within) == sum(last - first + 1 for _, first, last in spans), "disjoint"
    assert spans == sorted(spans)
    assert len(spans) <= len(found) <= len(told)


def test_a_striped_ledger_is_one_span_and_a_far_id_another() -> None:
    striped = [(1, n, 1) for n in range(0, 4000, 4)]
    assert spans_of(striped).merged_ranges() == [(1, 0, 3996)]
    assert spans_of([*striped, (1, 10**9, 5), (2, 7, 1)]).merged_ranges() == [
        (1, 0, 3996),
        (1, 10**9, 10**9 + 4),
        (2, 7, 7),
    ]


def test_what_is_told_again_and_again_in_turn_is_joined() -> None:
    """A repair copies old entries while new ones are written."""
    told = [row for n in range(100) for row in ((1, n, 1), (1, 10_000 + n, 1))]
    assert spans_of(told).merged_ranges() == [(1, 0, 99), (1, 10_000, 10_099)]


def test_the_last_id_of_all_is_no_other_ledgers() -> None:
    assert spans_of([(1, ID_MAX, 5)]).merged_ranges() == [(1, ID_MAX, ID_MAX)]


def test_rows_of_a_cold_file_say_more_and_are_told_as_well() -> None:
    spans = FooterRanges()
    spans.add([(7, 0, 4096, 112, 2, 0xD16E57)])
    assert spans.merged_ranges() == [(7, 0, 1)]
