"""The newest entries of a log as stored, for all its subscribers at a proxy (pure).

The bytes of each ring, and of all rings of a process, are limited. A *position* is the (segment, entry) of
the next entry for a subscriber, which may not exist yet. The ring contains everything visible from
`EntryRing.begin` to `EntryRing.end`. It serves only subscribers whose position is in this range. Below it,
entries are missing (H189).
"""

from bisect import bisect_left
from dataclasses import dataclass

from ...runtime.interfaces.errors import ProtocolError
from ..protocol.read_messages import CREDIT_MAX, HEAD_BYTES, SegmentHead

EntryPosition = tuple[int, int]
"""A segment, and an entry in it."""

ENTRY_OVERHEAD_BYTES = 200
"""Memory of an entry in the ring in addition to its bytes."""
COMPACT_MIN_EVICTED = 1024


@dataclass(frozen=True, slots=True)
class RingSpan:
    """Entries of one segment that are sent together, as the body of an ENTRIES frame."""

    body: bytes
    next_position: EntryPosition
    """The position after these entries."""
    next_sequence_id: int
    """The sequence ID of the next record."""
    last_position: EntryPosition
    """The position of the last one of these entries."""


class EntryRings:
    """All rings of a process. If memory is short, the least recently used ring drops entries first."""

    def __init__(self, bytes_max: int, ring_bytes_max: int) -> None:
        self.total_bytes = 0
        self._bytes_max = bytes_max
        self._ring_bytes_max = ring_bytes_max
        self._rings: dict[EntryRing, None] = {}

    def open(self, begin: EntryPosition) -> "EntryRing":
        """Create an empty ring that begins at this position."""
        ring = EntryRing(begin)
        self._rings[ring] = None
        return ring

    def close(self, ring: "EntryRing") -> None:
        """Remove a ring. Idempotent."""
        if ring in self._rings:
            del self._rings[ring]
            self.total_bytes -= ring.size_bytes

    def mark_used(self, ring: "EntryRing") -> None:
        """Mark a ring as used, because it served a subscriber."""
        if ring in self._rings:
            del self._rings[ring]
            self._rings[ring] = None

    def push(
        self, ring: "EntryRing", head: SegmentHead, entry: int, record: bytes, next_sequence_id: int
    ) -> None:
        """Add the next entry of a log. If necessary, drop older entries of this ring or other rings."""
        self.total_bytes += ring.push(head, entry, record, next_sequence_id)
        while ring.size_bytes > self._ring_bytes_max and len(ring) > 1:
            self.total_bytes -= ring.evict()
        for other in list(self._rings) if self.total_bytes > self._bytes_max else ():
            while self.total_bytes > self._bytes_max and len(other) > (other is ring):
                self.total_bytes -= other.evict()

    def drop_below(self, ring: "EntryRing", position: EntryPosition) -> None:
        """Drop entries before this position, because they were truncated."""
        self.total_bytes -= ring.drop_below(position)


class EntryRing:
    """The entries of one log from `begin`, in order. `EntryRings` creates it and counts its bytes."""

    def __init__(self, begin: EntryPosition) -> None:
        self.begin = begin
        """All entries from this position to `end` are in the ring."""
        self.end = begin
        """The position after the last entry."""
        self.size_bytes = 0
        self._positions: list[EntryPosition] = []
        self._entries: list[tuple[SegmentHead, bytes, int]] = []
        """Head, bytes, and the sequence ID after the entry."""
        self._first_index = 0
        """Earlier items of the lists are dropped."""

    def __len__(self) -> int:
        return len(self._positions) - self._first_index

    def push(self, head: SegmentHead, entry: int, record: bytes, next_sequence_id: int) -> int:
        """Add the next entry and return its cost in bytes."""
        position = (head.segment, entry)
        assert position >= self.end, "entries are added in the order of the log, each once"
        self._positions.append(position)
        self._entries.append((head, record, next_sequence_id))
        self.end = (head.segment, entry + 1)
        cost = len(record) + ENTRY_OVERHEAD_BYTES
        self.size_bytes += cost
        return cost

    def evict(self) -> int:
        """Drop the oldest entry and return its cost in bytes."""
        first_index = self._first_index
        segment, entry = self._positions[first_index]
        self.begin = (segment, entry + 1)
        cost = len(self._entries[first_index][1]) + ENTRY_OVERHEAD_BYTES
        self.size_bytes -= cost
        self._entries[first_index] = _EVICTED
        self._first_index += 1
        if self._first_index >= COMPACT_MIN_EVICTED and 2 * self._first_index >= len(
            self._positions
        ):
            del self._positions[: self._first_index], self._entries[: self._first_index]
            self._first_index = 0
        return cost

    def drop_below(self, position: EntryPosition) -> int:
        """Drop the entries before this position and return their cost in bytes.

        If ``position`` is after the last entry, the empty ring then begins and ends there.
        """
        cost = 0
        while len(self) and self._positions[self._first_index] < position:
            cost += self.evict()
        self.begin = max(self.begin, position)
        self.end = max(self.end, position)
        return cost

    def next_span(self, position: EntryPosition, bytes_max: int) -> RingSpan | None:
        """Return entries from this position, at least one and about ``bytes_max``; None if there are none.

        ``position`` must not be before `begin`.
        """
        assert position >= self.begin, "the position is in the ring"
        index = bisect_left(self._positions, position, self._first_index)
        if index == len(self._positions):
            return None
        head = self._entries[index][0]
        parts, size = [head.encode()], HEAD_BYTES
        while True:
            _, record, next_sequence_id = self._entries[index]
            parts.append(record)
            size += len(record)
            index += 1
            if index == len(self._entries) or self._entries[index][0] is not head:
                break
            if size + len(self._entries[index][1]) > bytes_max:
                break
        segment, entry = last_position = self._positions[index - 1]
        return RingSpan(b"".join(parts), (segment, entry + 1), next_sequence_id, last_position)


_EVICTED = (SegmentHead(0, 0, 0, -1, 0, 0), b"", 0)


class SubscriberCursor:
    """The position and the credit of a subscriber.

    Credit is counted as total bytes of ENTRIES and only grows.
    """

    __slots__ = ("granted_bytes", "next_position", "next_sequence_id", "sent_bytes")

    def __init__(self, next_position: EntryPosition, next_sequence_id: int, credit: int) -> None:
        self.next_position = next_position
        """The position of the next entry to send."""
        self.next_sequence_id = next_sequence_id
        """The sequence ID of the next record; -1 until it is determined by a sent entry."""
        self.granted_bytes = credit
        self.sent_bytes = 0

    @property
    def credit(self) -> int:
        """Bytes that may be sent now. If it is above 0, one entry of any size may be sent."""
        return self.granted_bytes - self.sent_bytes

    def on_credit(self, total: int) -> bool:
        """Set the total bytes allowed. Return whether a blocked subscriber may continue.

        Raises:
            ProtocolError: The total decreases, or the credit is too large.
        """
        if total < self.granted_bytes or total - self.sent_bytes > CREDIT_MAX:
            raise ProtocolError(
                f"CREDIT of {total} bytes in all, after {self.granted_bytes}, with {self.sent_bytes} sent"
            )
        was_blocked = self.credit <= 0
        self.granted_bytes = total
        return was_blocked and self.credit > 0

    def on_sent(self, span: RingSpan) -> None:
        """Advance past these entries, which are not before the current position.

        Nothing is sent twice (H189).
        """
        assert span.last_position >= self.next_position, "an entry is sent once"
        self.next_position = span.next_position
        self.next_sequence_id = span.next_sequence_id
        self.sent_bytes += len(span.body)

    def set_sequence_id(self, next_sequence_id: int) -> None:
        """Set the sequence ID of the next record. The reader detects missing records by it."""
        if self.next_sequence_id < 0:
            self.next_sequence_id = next_sequence_id

    def skip_to(self, position: EntryPosition) -> None:
        """Advance to a later position, because there is nothing to send before it."""
        assert position >= self.next_position
        self.next_position = position
