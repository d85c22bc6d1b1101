"""The ring of a log, and subscribers that go over it: nothing is left out, and nothing comes twice (H189)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributedlog.proxy.protocol.read_messages import HEAD_BYTES, SegmentHead
from distributedlog.proxy.read.entry_ring import (
    ENTRY_OVERHEAD_BYTES,
    EntryPosition,
    EntryRing,
    EntryRings,
    RingSpan,
    SubscriberCursor,
)
from distributedlog.runtime.interfaces.errors import ProtocolError
from tests.examples import examples

BYTES = 8
"""Of an entry here; it says where it is."""


def head(segment: int) -> SegmentHead:
    return SegmentHead(segment, 100 * segment, 0, -1, 0, 0)


def entry_at(position: EntryPosition) -> bytes:
    return bytes(position) + bytes(BYTES - 2)


def places_of(run: RingSpan) -> list[EntryPosition]:
    body = run.body[HEAD_BYTES:]
    return [(body[at], body[at + 1]) for at in range(0, len(body), BYTES)]


@settings(max_examples=examples(100))
@given(
    segments=st.lists(st.lists(st.booleans(), max_size=6), min_size=1, max_size=4),
    size=st.integers(1, 3),
    starts=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    moves=st.lists(st.integers(0, 9), max_size=60),
    frame=st.sampled_from([1, HEAD_BYTES + 2 * BYTES, 10_000]),
    credit=st.sampled_from([1, 100, 1 << 20]),
)
def test_readers_meet_each_entry_once_over_rings_of_one_to_three(
    segments: list[list[bool]],
    size: int,
    starts: list[int],
    moves: list[int],
    frame: int,
    credit: int,
) -> None:
    """Segments whose entries are control entries or not; readers that begin anywhere, at the end as well.

    Who is below the ring takes what is stored, entry by entry, and never at or after where the ring begins.
    """
    stored = [
        (segment, entry)
        for segment, controls in enumerate(segments, 1)
        for entry, control in enumerate(controls)
        if not control
    ]
    ends = {segment: len(controls) for segment, controls in enumerate(segments, 1)}
    every = [(segment, entry) for segment in ends for entry in range(ends[segment] + 1)]
    rings = EntryRings(1 << 30, size * (BYTES + ENTRY_OVERHEAD_BYTES))
    ring = rings.open((1, 0))
    heads = {segment: head(segment) for segment in ends}
    readers = [SubscriberCursor(every[start % len(every)], -1, credit) for start in starts]
    first = [reader.next_position for reader in readers]
    had: list[list[EntryPosition]] = [[] for _ in readers]
    granted = [credit] * len(readers)
    pushed = 0

    def step(number: int) -> bool:
        reader = readers[number]
        if reader.credit <= 0:
            granted[number] = max(granted[number], reader.sent_bytes) + credit
            assert reader.on_credit(granted[number])
        if reader.next_position >= ring.begin:
            run = ring.next_span(reader.next_position, frame)
            if run is None:
                return False
            had[number] += places_of(run)
            reader.on_sent(run)
            return True
        segment, entry = reader.next_position
        if entry >= ends[segment]:
            reader.skip_to((segment + 1, 0))
        elif (segment, entry) in stored:
            body = heads[segment].encode() + entry_at((segment, entry))
            reader.on_sent(RingSpan(body, (segment, entry + 1), 0, (segment, entry)))
            had[number].append((segment, entry))
        else:
            reader.skip_to((segment, entry + 1))
        return True

    for move in [*moves, *[0] * len(stored)]:
        if move < 4 and pushed < len(stored):
            position = stored[pushed]
            rings.push(ring, heads[position[0]], position[1], entry_at(position), pushed + 1)
            pushed += 1
            assert len(ring) <= size
            assert (
                rings.total_bytes == ring.size_bytes == len(ring) * (BYTES + ENTRY_OVERHEAD_BYTES)
            )
        elif move >= 4:
            step(move % len(readers))
    for number in range(len(readers)):
        while step(number):
            pass

    assert pushed == len(stored)
    for number, at in enumerate(first):
        assert had[number] == [position for position in stored if position >= at]


def test_the_ring_unused_longest_gives_first_and_the_newest_entry_stays() -> None:
    """All rings of a process have one bound."""
    cost = 100 + ENTRY_OVERHEAD_BYTES
    rings = EntryRings(6 * cost, 4 * cost)
    idle, busy = rings.open((1, 0)), rings.open((7, 0))

    def push(ring: EntryRing, segment: int, entry: int) -> None:
        rings.push(ring, head(segment), entry, bytes(100), entry + 1)

    for entry in range(4):
        push(busy, 7, entry)
    for entry in range(3):
        push(idle, 1, entry)
    assert (len(busy), len(idle), rings.total_bytes) == (4, 2, 6 * cost)
    rings.mark_used(busy)
    for entry in range(4, 8):
        push(busy, 7, entry)

    assert (len(idle), len(busy)) == (2, 4)
    assert busy.begin == (7, 4)
    third = rings.open((3, 0))
    push(third, 3, 0)
    assert (len(idle), idle.begin, len(busy), rings.total_bytes) == (1, (1, 2), 4, 6 * cost)
    rings.close(idle)
    rings.close(idle)
    assert rings.total_bytes == 5 * cost


def test_what_is_truncated_is_below_the_ring() -> None:
    """H188."""
    rings = EntryRings(1 << 20, 1 << 20)
    ring = rings.open((1, 0))
    one = head(1)
    for entry in range(5):
        rings.push(ring, one, entry, bytes(10), entry + 1)

    rings.drop_below(ring, (1, 3))
    assert (ring.begin, len(ring), rings.total_bytes) == ((1, 3), 2, ring.size_bytes)
    rings.drop_below(ring, (4, 0))
    assert (ring.begin, ring.end, len(ring), rings.total_bytes) == ((4, 0), (4, 0), 0, 0)
    assert ring.next_span((4, 0), 100) is None


def test_a_ring_that_is_used_for_long_forgets_what_it_let_go() -> None:
    rings = EntryRings(1 << 20, 10 * (10 + ENTRY_OVERHEAD_BYTES))
    ring, one = rings.open((1, 0)), head(1)
    for entry in range(10_000):
        rings.push(ring, one, entry, bytes(10), entry + 1)

    assert len(ring) == 10
    assert len(ring._positions) < 3000
    found = ring.next_span((1, 9_995), 1 << 20)
    assert found is not None
    assert (found.next_position, found.next_sequence_id, found.last_position) == (
        (1, 10_000),
        10_000,
        (1, 9_999),
    )


@pytest.mark.parametrize("total", [99, 100 + (1 << 30)])
def test_credit_only_grows_and_has_a_bound(total: int) -> None:
    reader = SubscriberCursor((1, 0), -1, 100)

    with pytest.raises(ProtocolError, match="CREDIT"):
        reader.on_credit(total)
