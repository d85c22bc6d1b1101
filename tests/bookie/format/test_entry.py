"""The entry record: what is written is what is read, and nothing else passes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.bookie.format import entry
from distributedlog.runtime.interfaces.errors import CorruptData
from distributedlog.runtime.interfaces.host import Buffer
from tests.examples import examples


@settings(max_examples=examples(100))
@given(
    ledger=st.integers(0, 2**64 - 1),
    number=st.integers(0, entry.ENTRY_ID_MAX),
    so_far=st.integers(0, 2**64 - 1),
    payload=st.binary(max_size=200),
    cut=st.integers(0, 200),
)
def test_a_record_comes_back_as_it_was_made(
    ledger: int, number: int, so_far: int, payload: bytes, cut: int
) -> None:
    parts: list[Buffer] = [payload[:cut], memoryview(payload)[cut:]]

    raw = entry.encode(ledger, number, so_far, number - 1, parts, len(payload))
    (found,) = entry.records(raw)

    assert (found.ledger, found.entry, found.length_so_far, found.lac) == (
        ledger,
        number,
        so_far,
        number - 1,
    )
    assert bytes(found.payload) == payload
    assert bytes(found.record) == raw
    assert len(raw) % 8 == 0
    entry.verify_record(raw)


def test_records_lie_back_to_back() -> None:
    """One frame, one journal block and one reply carry many (design: storage)."""
    made = [entry.encode(1, n, n, n - 1, [b"x" * n], n) for n in range(20)]

    found = list(entry.records(b"".join(made)))

    assert [record.entry for record in found] == list(range(20))
    assert [bytes(record.record) for record in found] == made


def test_every_truncation_is_refused() -> None:
    """Codec rule: every truncation of a sample is rejected."""
    raw = bytes(entry.encode(7, 3, 10, 2, [b"payload"], 7))

    for length in range(len(raw)):
        with pytest.raises(CorruptData):
            entry.verify_record(raw[:length])


def test_every_flipped_bit_is_refused() -> None:
    """Codec rule: every flipped bit of a sample is rejected, in header, payload and padding."""
    raw = entry.encode(7, 3, 10, 2, [b"payload"], 7)

    for bit in range(len(raw) * 8):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData):
            entry.verify_record(raw)
        raw[bit // 8] ^= 1 << bit % 8
    entry.verify_record(raw)


def test_a_lac_not_below_its_own_entry_is_refused() -> None:
    """H24: no entry confirms itself."""
    with pytest.raises(AssertionError):
        entry.encode(1, 5, 0, 5, [], 0)
