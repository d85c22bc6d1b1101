"""The newest entries of a log as they are stored, for all its subscribers at a proxy (pure).

A ring is bounded in bytes, and all of a process together are. A *place* is (segment, entry): the next entry
that somebody wants, which need not be there. Everything from `EntryRing.begin` up to `EntryRing.end` that
readers see is in the ring, so whoever stands there is served from it, and only he: below, entries are missing
(H189).
"""

from bisect import bisect_left
from dataclasses import dataclass

from ...runtime.interfaces.errors import ProtocolError
from ..protocol.read_messages import CREDIT_MAX, HEAD_BYTES, SegmentHead

EntryPosition = tuple[int, int]
"""A segment and an entry in it."""

ENTRY_OVERHEAD_BYTES = 200
"""What an entry costs in the ring beside its bytes."""
COMPACT_MIN_EVICTED = 1024


@dataclass(frozen=True, slots=True)
class RingSpan:
    """Entries of one segment that are sent together: the body of an ENTRIES frame."""

    body: bytes
    next_place: EntryPosition
    """Where whoever was given them stands."""
    next_sequence_id: int
    """The sequence id of the record that comes next."""
    last_place: EntryPosition
    """The last entry of them."""


class EntryRings:
    """What all rings of a process hold, and which of them gives first: the one unused longest."""

    def __init__(self, bytes_max: int, ring_bytes_max: int) -> None:
        self.total_bytes = 0
        self._bytes_max = bytes_max
        self._ring_bytes_max = ring_bytes_max
        self._rings: dict[EntryRing, None] = {}

    def open(self, begin: EntryPosition) -> "EntryRing":
        """A new ring, empty, which begins there."""
        ring = EntryRing(begin)
        self._rings[ring] = None
        return ring

    def close(self, ring: "EntryRing") -> None:
        """It is of no more use. Idempotent."""
        if ring in self._rings:
            del self._rings[ring]
            self.total_bytes -= ring.size_bytes

    def mark_used(self, ring: "EntryRing") -> None:
        """Somebody was served from it."""
        if ring in self._rings:
            del self._rings[ring]
            self._rings[ring] = None

    def push(
        self, ring: "EntryRing", head: SegmentHead, entry: int, record: bytes, next_sequence_id: int
    ) -> None:
        """The next entry of its log. Older ones go, of this ring or of others; the new one stays."""
        self.total_bytes += ring.push(head, entry, record, next_sequence_id)
        while ring.size_bytes > self._ring_bytes_max and len(ring) > 1:
            self.total_bytes -= ring.evict()
        for other in list(self._rings) if self.total_bytes > self._bytes_max else ():
            while self.total_bytes > self._bytes_max and len(other) > (other is ring):
                self.total_bytes -= other.evict()

    def drop_below(self, ring: "EntryRing", place: EntryPosition) -> None:
        """Nothing before this place is given any more: it was truncated."""
        self.total_bytes -= ring.drop_below(place)


class EntryRing:
    """The entries of one log from `begin` on, in order. Made by `EntryRings`, which knows its bytes."""

    def __init__(self, begin: EntryPosition) -> None:
        self.begin = begin
        """Everything from here on is here."""
        self.end = begin
        """After the last entry."""
        self.size_bytes = 0
        self._places: list[EntryPosition] = []
        self._entries: list[tuple[SegmentHead, bytes, int]] = []
        """Its head, its bytes, the sequence id after it."""
        self._first_index = 0
        """What is before it in the lists is gone."""

    def __len__(self) -> int:
        return len(self._places) - self._first_index

    def push(self, head: SegmentHead, entry: int, record: bytes, next_sequence_id: int) -> int:
        """The next entry; what it costs."""
        place = (head.segment, entry)
        assert place >= self.end, "entries come in the order of the log, each once"
        self._places.append(place)
        self._entries.append((head, record, next_sequence_id))
        self.end = (head.segment, entry + 1)
        cost = len(record) + ENTRY_OVERHEAD_BYTES
        self.size_bytes += cost
        return cost

    def evict(self) -> int:
        """The oldest entry goes; what it cost."""
        first_index = self._first_index
        segment, entry = self._places[first_index]
        self.begin = (segment, entry + 1)
        cost = len(self._entries[first_index][1]) + ENTRY_OVERHEAD_BYTES
        self.size_bytes -= cost
        self._entries[first_index] = _EVICTED
        self._first_index += 1
        if self._first_index >= COMPACT_MIN_EVICTED and 2 * self._first_index >= len(self._places):
            del self._places[: self._first_index], self._entries[: self._first_index]
            self._first_index = 0
        return cost

    def drop_below(self, place: EntryPosition) -> int:
        """What is before this place goes; what it cost."""
        cost = 0
        while len(self) and self._places[self._first_index] < place:
            cost += self.evict()
        self.begin = max(self.begin, place)
        self.end = max(self.end, place)
        return cost

    def next_span(self, place: EntryPosition, bytes_max: int) -> RingSpan | None:
        """What comes at this place, at least one entry, at most about so many bytes; None: nothing yet.

        ``at`` is not before `begin`.
        """
        assert place >= self.begin, "whoever is below the ring is not served from it"
        index = bisect_left(self._places, place, self._first_index)
        if index == len(self._places):
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
        segment, entry = last_place = self._places[index - 1]
        return RingSpan(b"".join(parts), (segment, entry + 1), next_sequence_id, last_place)


_EVICTED = (SegmentHead(0, 0, 0, -1, 0, 0), b"", 0)


class SubscriberCursor:
    """A reader's cursor and credit. Credit counts the bytes of ENTRIES in all, and only grows."""

    __slots__ = ("granted_bytes", "next_place", "next_sequence_id", "sent_bytes")

    def __init__(self, next_place: EntryPosition, next_sequence_id: int, credit: int) -> None:
        self.next_place = next_place
        """The next entry that it wants."""
        self.next_sequence_id = next_sequence_id
        """The sequence id of the record that comes next; -1: not known before one was sent."""
        self.granted_bytes = credit
        self.sent_bytes = 0

    @property
    def credit(self) -> int:
        """Bytes that may be sent now. Not above 0: nothing may; else one entry always may, however large."""
        return self.granted_bytes - self.sent_bytes

    def on_credit(self, total: int) -> bool:
        """It may be sent ``total`` bytes in all; could it be sent nothing before? Raises `ProtocolError`."""
        if total < self.granted_bytes or total - self.sent_bytes > CREDIT_MAX:
            raise ProtocolError(
                f"CREDIT of {total} bytes in all, after {self.granted_bytes}, with {self.sent_bytes} sent"
            )
        was_blocked = self.credit <= 0
        self.granted_bytes = total
        return was_blocked and self.credit > 0

    def on_sent(self, span: RingSpan) -> None:
        """These entries were sent. They come at or after its place: nothing is sent twice (H189)."""
        assert span.last_place >= self.next_place, "an entry is sent once"
        self.next_place = span.next_place
        self.next_sequence_id = span.next_sequence_id
        self.sent_bytes += len(span.body)

    def set_sequence_id(self, next_sequence_id: int) -> None:
        """Set the sequence ID of the next record. The reader detects missing records by it."""
        if self.next_sequence_id < 0:
            self.next_sequence_id = next_sequence_id

    def skip_to(self, place: EntryPosition) -> None:
        """Between its place and this one there is nothing to be sent."""
        assert place >= self.next_place
        self.next_place = place
