"""The ring of gather buffers: bounded, never written over what is not synced, a cache of the newest."""

import random

from distributedlog.bookie.format import journal_format as jb
from distributedlog.bookie.storage.journal_buffer import CommitBlock, JournalBuffer
from distributedlog.runtime.disk import checksummed_blocks as blocks
from distributedlog.runtime.disk.memory_disk import aligned_memory

EACH = 64 * 1024


def ring_of(buffers: int = 3, block_max: int = EACH) -> JournalBuffer:
    return JournalBuffer(aligned_memory, buffers=buffers, bytes_each=EACH, block_max=block_max)


def commit(ring: JournalBuffer, file_number: int, offset: int) -> CommitBlock:
    """As the journal does it: take, place, sync."""
    block = ring.take()
    ring.on_block_positioned(block, file_number, offset)
    ring.synced(block)
    return block


def test_a_full_ring_takes_nothing_more_until_a_sync() -> None:
    """H10: what is being synced is never written over."""
    ring = ring_of()
    gathered: list[tuple[CommitBlock, int, bytes]] = []
    while (block := ring.block_for_records(20_000)) is not None:
        fill = bytes([len(gathered) + 1]) * 20_000
        gathered.append((block, ring.append(block, fill), fill))
        assert len(gathered) < 100

    assert all(
        bytes(block.buffer.view[at : at + len(fill)]) == fill for block, at, fill in gathered
    )
    assert ring.unsynced_bytes == 20_000 * len(gathered)
    commit(ring, 1, 0)
    assert ring.block_for_records(20_000) is not None


def test_the_newest_bytes_are_found_until_their_buffer_is_used_again() -> None:
    ring = ring_of()
    draw = random.Random(1)
    offset, written = 0, []
    for _ in range(60):
        data = draw.randbytes(draw.randrange(1, 9000))
        block = ring.block_for_records(len(data))
        assert block is not None
        position = ring.append(block, data)
        commit(ring, 1, offset)
        written.append((offset + position - block.start, data))
        offset += block.padded_length

    found = [ring.find_bytes(1, at, len(data)) for at, data in written]

    for view, (_, data) in zip(found, written, strict=True):
        assert view is None or bytes(view) == data
    assert found[-1] is not None
    assert found[0] is None
    assert sum(view is not None for view in found) > 10
    assert ring.find_bytes(2, written[-1][0], 1) is None


def test_blocks_are_padded_and_end_with_their_control_records() -> None:
    ring = ring_of()
    block = ring.block_for_records(100)
    assert block is not None
    ring.append(block, bytes(96))
    block.control_records.append(jb.state_record(7, jb.FENCED, 3, b"k" * 16))

    taken = ring.take()

    payload = taken.buffer.view[
        taken.records_start : taken.records_start + ring.payload_bytes(taken)
    ]
    records, controls = jb.split_commit(payload, "test")
    assert len(records) == 96
    assert [(each.kind, each.subject, each.a) for each in controls] == [(jb.STATE, 7, 3)]
    assert taken.padded_length % blocks.ALIGN == 0
    following = ring.block_for_records(8)
    assert following is not None
    assert following.start == taken.start + taken.padded_length


def test_control_records_alone_fill_no_more_than_a_block() -> None:
    ring = ring_of(block_max=16 * 1024)
    count = 0
    while (block := ring.control_block()) is not None:
        block.control_records.append(jb.skip_record(1, 2))
        count += 1
    while ring.has_work:
        taken = ring.take()
        assert taken.padded_length <= 16 * 1024
        ring.synced(taken)
    assert count > 3000


def test_what_fits_is_known_before_each_record_is_asked_for() -> None:
    """`records_end_max` says of one record after the other what `room` would, and the bound in bytes."""
    draw = random.Random(3)
    for _ in range(300):
        ring = ring_of(block_max=draw.choice((8, 16, 64)) * 1024)
        block = ring.block_for_records(56)
        assert block is not None
        ring.append(block, bytes(draw.choice((56, 3000, 6000))))
        most = draw.choice((len(block.control_records), 30, 200)) or 1
        for _ in range(draw.randrange(most)):
            if ring.control_block() is block:
                block.control_records.append(jb.skip_record(1, 2))
        unsynced_max = ring.unsynced_bytes + draw.choice((0, 2000, EACH))

        end_max = ring.records_end_max(block, unsynced_max)

        for size in (1, 56, 500, 2000, 5000, 50_000):
            fits = ring.unsynced_bytes + size <= unsynced_max
            assert (block.end + size <= end_max) == (fits and ring.block_for_records(size) is block)
