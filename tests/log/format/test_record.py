"""The bytes of an entry: golden, round trips, and every kind of damage."""

import copy
import pickle
import random
import struct
from array import array
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import (
    BULK_COMPARE_MIN,
    HEADER_BYTES,
    SECTION_CRITICAL,
    Columns,
    LogRecord,
    Origin,
    ReadRecord,
    build_entry,
    build_single_record_entry,
    decode_columns,
    decode_header,
    is_ascending,
)
from distributedlog.runtime.interfaces.errors import CorruptData, InvalidRequest, UnsupportedFormat
from tests.examples import examples, few
from tests.log.records import control_entry

records = st.lists(
    st.tuples(st.integers(0, 2**63 - 2), st.binary(max_size=40)), min_size=1, max_size=20
)


def entry_of(pairs: list[tuple[int, bytes]], **options: object) -> bytes:
    buffers, length = build_entry(
        [txid for txid, _ in pairs],
        [payload for _, payload in pairs],
        **{"records_before": 0, "written_ms": 0, **options},  # type: ignore[arg-type]
    )
    entry = b"".join(buffers)
    assert len(entry) == length
    return entry


def read(entry: bytes, origin: Origin | None = None) -> Columns:
    return decode_columns(entry, decode_header(entry), origin or Origin(1, 0, 0))


def test_the_bytes_of_an_entry() -> None:
    """docs/reference/formats.md, the log entry. These bytes are on disks: they never change."""
    entry = entry_of([(5, b"ab"), (7, b"cde")], records_before=9, written_ms=1_700_000_000_000)

    assert entry.hex() == (
        "444c4745"  # magic "DLGE"
        "0100"  # version
        "0000"  # flags: codec none
        "02000000"  # count
        "05000000"  # payload bytes
        "21000000"  # uncompressed size: 2 * 8 + 3 * 4 + 5
        "00000000"  # section bytes
        "0500000000000000"  # first txid
        "0700000000000000"  # last txid
        "0900000000000000"  # records of the segment before
        "0068e5cf8b010000"  # wall time
        "0000000000000000"  # reserved
        "05000000000000000700000000000000"  # txids
        "000000000200000005000000"  # offsets
        "6162636465"  # payloads
    )


def test_the_bytes_of_an_entry_of_one_record() -> None:
    """They are packed in one step, and are the same as of any other entry."""
    buffers, length = build_single_record_entry(2**63 - 2, b"abc", 2**40, 1_700_000_000_000)
    entry = b"".join(buffers)
    assert len(entry) == length
    assert entry == entry_of(
        [(2**63 - 2, b"abc")], records_before=2**40, written_ms=1_700_000_000_000
    )

    assert entry.hex() == (
        "444c4745"  # magic "DLGE"
        "0100"  # version
        "0000"  # flags: codec none
        "01000000"  # count
        "03000000"  # payload bytes
        "13000000"  # uncompressed size: 8 + 2 * 4 + 3
        "00000000"  # section bytes
        "feffffffffffff7f"  # first txid
        "feffffffffffff7f"  # last txid
        "0000000000010000"  # records of the segment before
        "0068e5cf8b010000"  # wall time
        "0000000000000000"  # reserved
        "feffffffffffff7f"  # txid
        "0000000003000000"  # offsets
        "616263"  # payload
    )


@settings(max_examples=examples(100))
@given(st.integers(0, 2**63 - 2), st.binary(max_size=40), st.integers(0, 2**40))
def test_one_record_is_built_as_several_are(txid: int, payload: bytes, before: int) -> None:
    """An entry of two whose second one is empty: what differs are counts, columns and sizes."""
    one = entry_of([(txid, payload)], records_before=before, written_ms=7)
    buffers, length = build_single_record_entry(txid, payload, before, 7)
    assert (b"".join(buffers), length) == (one, len(one))
    two = entry_of([(txid, payload), (txid, b"")], records_before=before, written_ms=7)

    header = decode_header(one)
    assert (header.count, header.payload_bytes) == (1, len(payload))
    assert one[24:64] == two[24:64]
    assert read(one).tuples()[0] == read(two).tuples()[0]


@settings(max_examples=examples(100))
@given(
    st.sampled_from([1, 2, 7, 8, 9, 63, 64, 255, 256, 2000, 16 * 1024 - 1, 16 * 1024, 20_000]),
    st.sampled_from([0, 1, 100, 257, 1000]),
    st.one_of(st.none(), st.integers(0, 20_000)),
    st.sampled_from(["nobody", "all", "all but the last"]),
)
def test_payloads_of_one_length_are_built_as_others_are(
    number: int, size: int, odd: int | None, counted: str
) -> None:
    """Whether somebody has counted their lengths, or some of them. ``odd``: which one is longer."""
    payloads = [b"x" * size] * number
    if odd is not None:
        payloads[odd % number] = b"y" * (size + 1)
    sizes: list[int] | None = list(map(len, payloads))
    if counted != "all":
        sizes = None if counted == "nobody" else list(map(len, payloads[:-1]))

    buffers, length = build_entry(
        range(number), payloads, records_before=0, written_ms=0, sizes=sizes
    )

    ends = list(accumulate(map(len, payloads), initial=0))
    plain = struct.pack(f"<{number}q{number + 1}i", *range(number), *ends) + b"".join(payloads)
    assert b"".join(buffers)[HEADER_BYTES:] == plain
    assert length == HEADER_BYTES + len(plain)


LEAST_AND_MOST = {"i": (-(2**31), 2**31 - 1), "q": (-(2**63), 2**63 - 1)}


@pytest.mark.properties
@settings(max_examples=examples(300))
@given(
    st.sampled_from("iq"),
    st.integers(1, 3 * BULK_COMPARE_MIN),
    st.lists(st.tuples(st.integers(0, 3 * BULK_COMPARE_MIN), st.integers(-2, 2)), max_size=3),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_a_column_ascends_where_its_numbers_do(
    kind: str, number: int, flaws: list[tuple[int, int]], near: bool, chance: random.Random
) -> None:
    """As one large number and as a list; with numbers below 0, the least and the greatest there are."""
    least, most = LEAST_AND_MOST[kind]
    numbers = sorted(chance.choice((0, 1, 2, chance.randint(0, most), most)) for _ in range(number))
    if near:
        numbers = [most - 7 + k // number for k in range(number)]
    for at, by in flaws:
        at %= number
        around = numbers[at - 1] + by
        numbers[at] = chance.choice((max(least, min(most, around)), least, -1, most))

    found = is_ascending(memoryview(array(kind, numbers)))

    assert found == (numbers[0] >= 0 and all(a <= b for a, b in pairwise(numbers)))


@pytest.mark.parametrize("kind", "iq")
@pytest.mark.parametrize("at", [0, 1, BULK_COMPARE_MIN])
@pytest.mark.parametrize("number", [BULK_COMPARE_MIN + 1, 2 * BULK_COMPARE_MIN])
def test_a_number_below_zero_never_ascends(kind: str, at: int, number: int) -> None:
    """Though the lanes after it do, with room for what one of them borrows."""
    numbers = list(range(5, 5 + 3 * number, 3))
    assert is_ascending(memoryview(array(kind, numbers)))
    for below in (-1, LEAST_AND_MOST[kind][0]):
        numbers[at] = below
        assert not is_ascending(memoryview(array(kind, numbers)))


@settings(max_examples=examples(100))
@given(records, st.integers(0, 2**40), st.booleans())
def test_what_is_built_is_read(pairs: list[tuple[int, bytes]], before: int, flagged: bool) -> None:
    flags = bytes(slot % 3 > 0 for slot in range(len(pairs) - 1, -1, -1)) if flagged else None
    entry = entry_of(pairs, records_before=before, record_flags=flags, sections=[(9, 0, b"later")])

    header = decode_header(entry)
    columns = decode_columns(entry, header, Origin(3, 4, 100))

    assert columns.tuples() == pairs
    assert columns.records() == [LogRecord(txid, payload) for txid, payload in pairs]
    assert (header.records_before, header.records_through) == (before, before + len(pairs))
    assert (None if columns.flags is None else bytes(columns.flags)) == flags
    assert columns.txids.tolist() == [txid for txid, _ in pairs]
    assert [r.sequence_id for r in columns.records()] == list(range(100, 100 + len(pairs)))
    assert [r.dlsn for r in columns.records()] == [DLSN(3, 4, slot) for slot in range(len(pairs))]


@settings(max_examples=examples(100))
@given(records, st.data())
def test_a_part_of_a_batch_keeps_its_places(
    pairs: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(pairs)))
    stop = data.draw(st.integers(start, len(pairs)))

    part = read(entry_of(pairs)).cut(start, stop)

    assert part.tuples() == pairs[start:stop]
    assert [record.slot for record in part.records()] == list(range(start, stop))
    assert part.payload_bytes == sum(len(payload) for _, payload in pairs[start:stop])


@pytest.mark.parametrize("size", [0, 1, 3, 100])
@pytest.mark.parametrize("number", few([1, 7, 8, 63, 64, 65, 192, 20_000], 7))
def test_payloads_of_one_length_are_read_as_others_are(number: int, size: int) -> None:
    """Their offsets are compared as bytes, and they are copied by one call for many."""
    even = [(txid, random.Random(txid).randbytes(size)) for txid in range(number)]
    columns = read(entry_of(even))

    assert columns.tuples() == even
    assert [(one.txid, one.payload) for one in columns.records()] == even
    assert all(type(payload) is bytes for _, payload in columns.tuples())
    for start, stop in ((number // 3, number - number // 5), (0, number - number // 5), (0, 0)):
        assert columns.cut(start, stop).tuples() == even[start:stop]
    if number > 2 and size:  # the sum alone says nothing
        txid, last = even[-1]
        uneven = [*even[:-2], (even[-2][0], even[-2][1] + last[:1]), (txid, last[1:])]
        assert read(entry_of(uneven)).tuples() == uneven


@pytest.mark.parametrize("number", [2, 7, 8, 100])
def test_every_offset_is_checked(number: int) -> None:
    """Arrow trusts offsets; one that goes back, below 0 or beyond the end would read foreign memory."""
    entry = entry_of([(n, b"four") for n in range(number)])
    at = HEADER_BYTES + 8 * number

    for slot in range(number + 1):
        for wrong in (-1, -(2**31), 4 * slot - 5, 4 * slot + 5, 4 * number + 1, 2**31 - 1):
            if 0 < slot < number and 4 * (slot - 1) <= wrong <= 4 * (slot + 1):
                continue  # one payload is longer, and the next one shorter
            damaged = bytearray(entry)
            struct.pack_into("<i", damaged, at + 4 * slot, wrong)
            with pytest.raises(CorruptData, match="offsets"):
                read(bytes(damaged))


def test_records_do_not_pin_their_entry() -> None:
    """H17: the payload of a single record is bytes of its own."""
    for pairs in (
        [(1, b"alone")],
        [(1, b"first"), (2, b"second")],
        [(txid, b"even") for txid in range(9)],
    ):
        entry = bytearray(entry_of(pairs))
        taken = read(entry).records()  # type: ignore[arg-type]

        size = sum(len(payload) for _, payload in pairs)
        entry[-size:] = bytes(size)

        assert [record.payload for record in taken] == [payload for _, payload in pairs]
        assert all(type(record.payload) is bytes for record in taken)
        del taken
        entry.clear()  # nothing looks at it any more


def test_every_truncation_and_extension_is_refused() -> None:
    entry = entry_of([(5, b"ab"), (7, b"cde")], sections=[(1, 0, b"x")])

    for length in range(len(entry)):
        with pytest.raises(CorruptData):
            read(entry[:length])
    with pytest.raises(CorruptData):
        read(entry + b"\x00")


def test_a_flipped_bit_never_reads_out_of_bounds() -> None:
    """A digest protects entries; should one slip through, it is refused or stays inside its bounds."""
    entry = entry_of([(5, b"ab"), (7, b"cde"), (7, b"")], sections=[(1, 0, b"x")])

    for bit in range(8 * len(entry)):
        flipped = bytearray(entry)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            columns = read(bytes(flipped))
        except (CorruptData, UnsupportedFormat):
            continue
        assert columns.count == 3
        assert sum(len(payload) for _, payload in columns.tuples()) == 5


@given(st.binary(max_size=200))
@settings(max_examples=examples(50))
def test_random_bytes_are_no_entry(data: bytes) -> None:
    with pytest.raises((CorruptData, UnsupportedFormat)):
        read(data)


def test_a_huge_count_is_refused_before_anything_is_made() -> None:
    """H42: sizes are checked against what is there before decoding."""
    entry = bytearray(entry_of([(1, b"a")]))
    struct.pack_into("<I", entry, 8, 2**31)

    with pytest.raises(CorruptData):
        decode_header(bytes(entry))


def test_a_critical_section_of_later_is_refused_as_later() -> None:
    """Unknown kinds of sections are skipped unless they are marked critical."""
    with pytest.raises(UnsupportedFormat, match="critical section 7"):
        read(entry_of([(1, b"a")], sections=[(7, SECTION_CRITICAL, b"must know")]))


def test_control_entries_hold_no_user_record() -> None:
    """The position is not advanced."""
    control = b"".join(control_entry(8, records_before=5)[0])
    header = decode_header(control)
    assert header.is_control
    assert (header.last_txid, header.records_through) == (8, 5)


def test_an_entry_that_says_it_ends_the_log_is_not_believed() -> None:
    """Where a log ends is in its state, which is agreed; nothing ever wrote such an entry."""
    with pytest.raises(UnsupportedFormat):
        decode_header(entry_of([(8, b"")], flags=0x0020))


def test_a_record_that_was_not_read_has_no_place() -> None:
    record = LogRecord(txid=1, payload=b"a")

    with pytest.raises(InvalidRequest, match="not read"):
        _ = record.dlsn
    with pytest.raises(InvalidRequest, match="not read"):
        _ = record.sequence_id
    assert HEADER_BYTES % 8 == 0


def test_a_record_that_was_read_is_equal_to_the_one_that_was_written() -> None:
    """It is one, with what one that is written has not; copies keep that."""
    written = LogRecord(7, b"a")
    (found,) = read(entry_of([(7, b"a")])).records()

    assert isinstance(found, LogRecord)
    assert found == written
    assert written == found
    assert LogRecord(payload=b"a") != found
    assert found not in (LogRecord(8, b"a"), LogRecord(7, b"b"), LogRecord(payload=b"a"), (7, b"a"))
    assert (written.origin, written.slot) == (None, -1)
    for same in (copy.copy(found), pickle.loads(pickle.dumps(found)), replace(found)):
        assert (type(same), same, same.dlsn) == (ReadRecord, found, found.dlsn)
    assert replace(found, txid=9).dlsn == found.dlsn
    assert pickle.loads(pickle.dumps(written)) == written
    with pytest.raises(TypeError, match="unhashable"):
        hash(found)


def test_log_time_is_never_before_the_segments_floor() -> None:
    """H148: what was stamped elsewhere and linked is lifted; the writer's stamp stays beside it."""
    for wall_ms, log_time in ((400, 500), (600, 600)):
        buffers, _ = build_entry([1], [b"x"], records_before=0, written_ms=wall_ms)
        header = decode_header(b"".join(buffers))

        at = header.origin(1, 0, 0, txid_base=-1, txid_rule=0, time_floor_ms=500)

        assert (at.time_ms, at.written_ms) == (log_time, wall_ms)
