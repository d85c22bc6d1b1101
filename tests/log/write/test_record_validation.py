"""Which records share an entry: every record once, whatever the sizes."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from distributedlog.log.format.record import RECORD_BYTES_MAX, RECORD_COLUMN_BYTES
from distributedlog.log.model.log_state import AUTO
from distributedlog.log.write.record_validation import validate_columns
from distributedlog.runtime.interfaces.errors import InvalidRequest
from tests.examples import examples

ENTRY_BYTES_MAX = 1000

sizes = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 5000)), min_size=1, max_size=60)


@settings(max_examples=examples(100))
@given(sizes, st.integers(0, 3000))
@example([256, 1500, 0, 0, 700], 0)
def test_each_record_is_taken_once_and_entries_keep_their_bound(
    lengths: list[int], used: int
) -> None:
    """A record larger than an entry is an entry of its own, and what follows it begins another.

    ``used`` above the bound is an entry that holds such a record already.
    """
    taken = validate_columns(
        list(range(len(lengths))), [bytes(length) for length in lengths], 0, True, "a", AUTO
    )
    at, closed, records_in_entry = 0, 0, 1 if used else 0
    while at < taken.record_count:
        stop = taken.fitting_end(at, ENTRY_BYTES_MAX, used)
        assert at <= stop <= taken.record_count
        if stop == at:
            assert used, "an empty entry takes a record"
            used = records_in_entry = 0
            closed += 1
            assert closed <= len(lengths) + 1
            continue
        used += taken.entry_bytes(at, stop)
        records_in_entry += stop - at
        assert used <= ENTRY_BYTES_MAX or records_in_entry == 1
        at = stop


def test_the_largest_record_is_taken() -> None:
    """With its bytes and those of its columns it may be larger than an entry of small ones."""
    taken = validate_columns([1], [bytes(RECORD_BYTES_MAX)], 0, True, "a", AUTO)
    assert (taken.record_count, taken.refusal) == (1, None)
    assert taken.entry_bytes(0, 1) == RECORD_BYTES_MAX + RECORD_COLUMN_BYTES


def test_what_is_kept_before_a_wait_is_copied_once() -> None:
    """A call may wait for each of a thousand entries, and its lists are as long."""
    txids, payloads = [1, 2], [b"a", b"b"]
    taken = validate_columns(txids, payloads, 0, True, "a", AUTO)

    taken.copy_lists()
    own, kept = taken.txids, taken.payloads
    txids[1], payloads[1] = 0, b"c"

    assert (own, kept) == ([1, 2], [b"a", b"b"])
    taken.copy_lists()
    assert taken.txids is own
    assert taken.payloads is kept


def test_payloads_that_are_not_bytes_are_copied_and_texts_are_refused() -> None:
    """A caller may change its buffer at once. What was checked is what is written."""
    buffer = bytearray(b"abc")
    payloads: Any = [b"x", buffer]
    taken = validate_columns([1, 2], payloads, 0, True, "a", AUTO)
    buffer[:] = b"xyz"

    assert (taken.payloads, taken.refusal) == ([b"x", b"abc"], None)
    texts: Any = [b"x", "abc"]
    refused = validate_columns([1, 2], texts, 0, True, "a", AUTO)
    assert refused.record_count == 1
    assert isinstance(refused.refusal, InvalidRequest)
