"""Blocks: what is not exactly what was written, where it was written, is no block."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.runtime.disk.checksummed_blocks import (
    ALIGN,
    BLOCK_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    Block,
    BlockScanResult,
    classify_tail,
    padded_length,
    scan,
    scannable_bytes,
    write_header,
)
from distributedlog.runtime.interfaces.errors import UnsupportedFormat
from tests.examples import examples

SEED = 0xFEED_FACE_CAFE_BEEF


def sealed(
    payload: bytes,
    *,
    sequence: int,
    file_offset: int,
    durable_to: int = 0,
    file_number: int = 7,
    seed: int = SEED,
) -> bytearray:
    buffer = bytearray(
        b"\xff" * padded_length(len(payload))
    )  # a used buffer: padding must be cleaned
    buffer[HEADER_BYTES : HEADER_BYTES + len(payload)] = payload
    length = write_header(
        buffer,
        0,
        kind=3,
        payload_bytes=len(payload),
        start_count=2,
        sequence=sequence,
        durable_to=durable_to,
        file_number=file_number,
        file_offset=file_offset,
        seed=seed,
    )
    assert length == len(buffer)
    return buffer


def file_of(*payloads: bytes, seed: int = SEED, file_number: int = 7) -> bytearray:
    data = bytearray()
    for count, payload in enumerate(payloads, 1):
        data += sealed(
            payload,
            sequence=count,
            file_offset=len(data),
            durable_to=count - 1,
            seed=seed,
            file_number=file_number,
        )
    return data


def sequences(data: bytes | bytearray, *, file_number: int = 7, seed: int = SEED) -> list[int]:
    return [block.sequence for block in scan(file_number, memoryview(data), seed)]


@pytest.mark.parametrize(
    ("payload_bytes", "length"),
    [(0, 4096), (4040, 4096), (4041, 8192), (8136, 8192), (8137, 12288)],
)
def test_a_block_is_padded_to_whole_pages(payload_bytes: int, length: int) -> None:
    assert padded_length(payload_bytes) == length


@given(st.lists(st.binary(max_size=9000), max_size=6), st.integers(0, 2**64 - 1))
@settings(max_examples=examples(40))
def test_what_was_sealed_is_scanned(payloads: list[bytes], seed: int) -> None:
    data = file_of(*payloads, seed=seed)

    found = list(scan(7, memoryview(data), seed))

    assert [bytes(block.payload) for block in found] == payloads
    assert [block.sequence for block in found] == list(range(1, len(payloads) + 1))
    assert [block.durable_to for block in found] == list(range(len(payloads)))
    assert sum(block.padded_length for block in found) == len(data)
    assert all((b.kind, b.start_count, b.file_number) == (3, 2, 7) for b in found)


def test_the_padding_is_zeroed() -> None:
    """A gathering buffer is used again: what it held before must not reach the disk."""
    block = sealed(b"abc", sequence=1, file_offset=0)

    assert not any(block[HEADER_BYTES + 3 :])


def test_every_truncation_loses_the_last_block_only() -> None:
    data = file_of(b"first", b"second" * 3)

    for cut in range(ALIGN, len(data), 61):
        assert sequences(data[:cut]) == [1]
    for cut in range(0, ALIGN, 61):
        assert sequences(data[:cut]) == []


def test_every_flipped_bit_is_rejected() -> None:
    block = sealed(b"some payload", sequence=1, file_offset=0)

    for bit in range((HEADER_BYTES + 12) * 8):
        block[bit // 8] ^= 1 << bit % 8
        assert sequences(block) == [], f"bit {bit}"
        block[bit // 8] ^= 1 << bit % 8
    assert sequences(block) == [1]


def test_a_copy_elsewhere_in_the_file_is_no_block() -> None:
    """H4: old blocks must not come back."""
    block = sealed(b"add", sequence=5, file_offset=ALIGN)

    assert sequences(block + block + block) == [5]  # only where it was written
    assert sequences(bytes(3 * ALIGN) + block) == []


def test_a_copy_in_another_file_is_no_block() -> None:
    """H4, even when the copy claims the other file's number."""
    block = sealed(b"add", sequence=5, file_offset=0, file_number=7)

    assert sequences(block, file_number=8) == []
    fields = list(HEADER.unpack_from(block))
    fields[-1] = 8
    HEADER.pack_into(block, 0, *fields)
    assert sequences(block, file_number=8) == []


def test_another_disks_block_is_no_block() -> None:
    assert sequences(file_of(b"x", seed=1), seed=2) == []


def test_a_payload_plants_no_block() -> None:
    """H4: a user stores a copy of a journal file as a payload, and its outer header rots."""
    inner = file_of(b"evil", b"evil")
    lead = bytes(ALIGN - HEADER_BYTES)  # so that the inner blocks lie on page boundaries
    data = file_of(b"first", lead + bytes(inner), b"third")
    assert sequences(data) == [1, 2, 3]

    data[ALIGN + 20] ^= 1

    assert sequences(data) == [1, 3]


def test_sequences_only_grow() -> None:
    data = (
        sealed(b"a", sequence=4, file_offset=0)
        + sealed(b"b", sequence=4, file_offset=ALIGN)
        + sealed(b"c", sequence=3, file_offset=2 * ALIGN)
        + sealed(b"d", sequence=9, file_offset=3 * ALIGN)
    )

    assert sequences(data) == [4, 9]
    assert [b.sequence for b in scan(7, memoryview(data), SEED, after=4)] == [9]


def test_a_newer_version_is_refused_not_skipped() -> None:
    """Skipped, it would be a gap, and the gap a lost tail."""
    import xxhash

    from distributedlog.runtime.disk import checksummed_blocks as blocks

    block = sealed(b"x", sequence=1, file_offset=0)
    block[12:14] = (2).to_bytes(2, "little")
    seed = blocks._block_seed(SEED, 7, 0)
    digest = xxhash.xxh3_64_intdigest(bytes(block[8 : HEADER_BYTES + 1]), seed)
    block[:8] = digest.to_bytes(8, "little")

    with pytest.raises(UnsupportedFormat):
        sequences(block)


def test_announced_lengths_are_bounded_before_anything_is_hashed() -> None:
    block = bytearray(ALIGN)
    HEADER.pack_into(block, 0, 0, MAGIC, 1, 0, 0xFFFFFFFF, 0xFFFFFFF0, 0, 0, 1, 0, 7)

    assert sequences(block) == []
    assert scannable_bytes(7, memoryview(block), SEED) == len(block)


@given(st.lists(st.integers(0, 20_000), min_size=1, max_size=8), st.data())
@settings(max_examples=examples(40))
def test_a_file_read_in_stretches_gives_the_same_blocks(
    sizes: list[int], data: st.DataObject
) -> None:
    whole = file_of(*(bytes(size) for size in sizes))
    if data.draw(st.booleans()):
        whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1
    step = data.draw(st.integers(6, 12)) * ALIGN  # the longest block here is five pages

    found: list[Block] = []
    at = 0
    while at < len(whole):
        stretch = memoryview(whole)[at : at + step]
        last = at + step >= len(whole)
        use = len(stretch) if last else scannable_bytes(7, stretch, SEED, at)
        assert use > 0
        after = found[-1].sequence if found else 0
        found += scan(7, stretch[:use], SEED, at, after=after)
        at += use

    assert [(b.sequence, b.offset) for b in found] == [
        (b.sequence, b.offset) for b in scan(7, memoryview(whole), SEED)
    ]


def test_blocks_above_the_bound_are_not_made() -> None:
    with pytest.raises(AssertionError):
        write_header(
            bytearray(8),
            0,
            kind=0,
            payload_bytes=BLOCK_BYTES_MAX,
            start_count=0,
            sequence=1,
            durable_to=0,
            file_number=0,
            file_offset=0,
            seed=0,
        )


def model(blocks: list[tuple[int, int]], from_sequence: int, floor: int) -> BlockScanResult:
    """The rule of H3, number by number."""
    present = {sequence for sequence, _ in blocks}
    durable = max([floor, *(known for _, known in blocks)])
    tail = max(from_sequence, durable + 1)
    while tail in present:
        tail += 1
    lost = [n for n in range(from_sequence, durable + 1) if n not in present]
    ranges: list[tuple[int, int]] = []
    for n in lost:
        if ranges and ranges[-1][1] == n - 1:
            ranges[-1] = (ranges[-1][0], n)
        else:
            ranges.append((n, n))
    return BlockScanResult(tail, ranges, durable)


@given(st.data())
@settings(max_examples=examples(300))
def test_judge_agrees_with_the_rule(data: st.DataObject) -> None:
    start = data.draw(st.integers(1, 5))
    chosen = data.draw(st.lists(st.integers(max(1, start - 2), 25), max_size=20))
    blocks = [(n, data.draw(st.integers(0, n - 1))) for n in chosen]
    floor = data.draw(st.integers(0, 12))

    verdict = classify_tail(blocks, from_sequence=start, min_durable_to=floor)

    assert verdict == model(blocks, start, floor)


@given(st.integers(0, 2**32))
@settings(max_examples=examples(300))
def test_power_cuts_are_tails_and_rot_is_corruption(chance: int) -> None:
    """H3: any subset of the unsynced blocks survives: never corruption. A block at or below the
    highest watermark that is gone: always corruption, never a tail."""
    draw = random.Random(chance)
    written, synced, marks = 0, 0, {}
    for _ in range(draw.randint(1, 30)):
        if draw.random() < 0.7:
            written += 1
            marks[written] = synced
        else:
            synced = written
    survivors = [n for n in marks if n <= synced or draw.random() < 0.5]

    verdict = classify_tail([(n, marks[n]) for n in survivors], from_sequence=1, min_durable_to=0)

    assert verdict.lost_ranges == []
    assert verdict.tail_from > synced
    assert all(n in survivors for n in range(1, verdict.tail_from))

    known = max((marks[n] for n in survivors), default=0)
    if known:
        lost = draw.randint(1, known)
        left = [(n, marks[n]) for n in survivors if n != lost]
        verdict = classify_tail(left, from_sequence=1, min_durable_to=known)
        assert verdict.lost_ranges == [(lost, lost)]
        assert verdict.tail_from > known


def test_an_empty_store_has_no_tail_to_cut() -> None:
    assert classify_tail([], from_sequence=1, min_durable_to=0) == BlockScanResult(1, [], 0)


def test_all_lost_below_a_floor_is_corruption() -> None:
    assert classify_tail([], from_sequence=4, min_durable_to=6) == BlockScanResult(7, [(4, 6)], 6)
