"""Records are cut out of a run's bytes: those asked for, as far as they are here and fit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.bookie.format.extent_map import ExtentLocation
from distributedlog.bookie.format.record_slices import find_record, slice_extent
from distributedlog.runtime.interfaces.errors import CorruptData
from tests.examples import examples

from ..kit import record

FIRST = 5


@settings(max_examples=examples(100))
@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=12),
    asked=st.tuples(st.integers(0, 11), st.integers(0, 11)),
    bytes_max=st.integers(0, 6000),
    here=st.integers(0, 6000),
    at_least_one=st.booleans(),
)
def test_what_is_cut(
    sizes: list[int], asked: tuple[int, int], bytes_max: int, here: int, at_least_one: bool
) -> None:
    all_of_it = [record(7, FIRST + n, bytes([n]) * size) for n, size in enumerate(sizes)]
    view = b"".join(all_of_it)
    run = ExtentLocation(FIRST, len(sizes), 1, 4096, len(view))
    first, last = (min(n, len(sizes) - 1) for n in sorted(asked))

    found = slice_extent(view[:here], 7, run, FIRST + first, FIRST + last, bytes_max, at_least_one)

    count = found.last_entry + 1 - FIRST - first
    assert bytes(found.records) == b"".join(all_of_it[first : first + count])
    if count:
        assert found.end_offset == sum(map(len, all_of_it[: first + count]))
        assert len(found.records) <= bytes_max or (at_least_one and count == 1)
    if first + count > last:
        return
    fits = len(found.records) + len(all_of_it[first + count]) <= bytes_max
    fits = fits or (at_least_one and not count)
    behind = sum(map(len, all_of_it[: first + count + 1]))
    if found.is_truncated:
        assert behind > here, "it was here whole"
    else:
        assert not fits, "it was allowed, and nothing says that it was not here"


def test_what_is_not_the_run_s_is_not_believed() -> None:
    view = record(7, 5) + record(7, 6) + record(7, 8)
    run = ExtentLocation(5, 3, 1, 4096, len(view))
    for first, end in ((6, len(view)), (5, len(view) - 1)):  # also where the end is not here
        with pytest.raises(CorruptData):
            slice_extent(view[:end], 7, run, first, 7, 9999, True)
    with pytest.raises(CorruptData):
        slice_extent(view, 8, run, 5, 7, 9999, True)
    assert find_record(view, 7, run, 6) == record(7, 6)
