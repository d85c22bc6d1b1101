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

Place = tuple[int, int]
"""A segment and an entry in it."""

ENTRY_BYTES = 200
"""What an entry costs in the ring beside its bytes."""
COMPACT_AT = 1024


@dataclass(frozen=True, slots=True)
class RingSpan:
    """Entries of one segment that are sent together: the body of an ENTRIES frame."""

    body: bytes
    after: Place
    """Where whoever was given them stands."""
    next_id: int
    """The sequence id of the record that comes next."""
    last: Place
    """The last entry of them."""


class EntryRings:
    """What all rings of a process hold, and which of them gives first: the one unused longest."""

    def __init__(self, bytes_max: int, ring_bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._ring_bytes_max = ring_bytes_max
        self._rings: dict[EntryRing, None] = {}

    def open(self, at: Place) -> "EntryRing":
        """A new ring, empty, which begins there."""
        ring = EntryRing(at)
        self._rings[ring] = None
        return ring

    def close(self, ring: "EntryRing") -> None:
        """It is of no more use. Idempotent."""
        if ring in self._rings:
            del self._rings[ring]
            self.bytes -= ring.bytes

    def used(self, ring: "EntryRing") -> None:
        """Somebody was served from it."""
        if ring in self._rings:
            del self._rings[ring]
            self._rings[ring] = None

    def push(
        self, ring: "EntryRing", head: SegmentHead, entry: int, record: bytes, next_id: int
    ) -> None:
        """The next entry of its log. Older ones go, of this ring or of others; the new one stays."""
        self.bytes += ring.push(head, entry, record, next_id)
        while ring.bytes > self._ring_bytes_max and len(ring) > 1:
            self.bytes -= ring.evict()
        for other in list(self._rings) if self.bytes > self._bytes_max else ():
            while self.bytes > self._bytes_max and len(other) > (other is ring):
                self.bytes -= other.evict()

    def drop_below(self, ring: "EntryRing", place: Place) -> None:
        """Nothing before this place is given any more: it was truncated."""
        self.bytes -= ring.drop_below(place)


class EntryRing:
    """The entries of one log from `begin` on, in order. Made by `EntryRings`, which knows its bytes."""

    def __init__(self, at: Place) -> None:
        self.begin = at
        """Everything from here on is here."""
        self.end = at
        """After the last entry."""
        self.bytes = 0
        self._places: list[Place] = []
        self._entries: list[tuple[SegmentHead, bytes, int]] = []
        """Its head, its bytes, the sequence id after it."""
        self._first = 0
        """What is before it in the lists is gone."""

    def __len__(self) -> int:
        return len(self._places) - self._first

    def push(self, head: SegmentHead, entry: int, record: bytes, next_id: int) -> int:
        """The next entry; what it costs."""
        place = (head.segment, entry)
        assert place >= self.end, "entries come in the order of the log, each once"
        self._places.append(place)
        self._entries.append((head, record, next_id))
        self.end = (head.segment, entry + 1)
        cost = len(record) + ENTRY_BYTES
        self.bytes += cost
        return cost

    def evict(self) -> int:
        """The oldest entry goes; what it cost."""
        first = self._first
        segment, entry = self._places[first]
        self.begin = (segment, entry + 1)
        cost = len(self._entries[first][1]) + ENTRY_BYTES
        self.bytes -= cost
        self._entries[first] = _GONE
        self._first += 1
        if self._first >= COMPACT_AT and 2 * self._first >= len(self._places):
            del self._places[: self._first], self._entries[: self._first]
            self._first = 0
        return cost

    def drop_below(self, place: Place) -> int:
        """What is before this place goes; what it cost."""
        cost = 0
        while len(self) and self._places[self._first] < place:
            cost += self.evict()
        self.begin = max(self.begin, place)
        self.end = max(self.end, place)
        return cost

    def run(self, at: Place, bytes_max: int) -> RingSpan | None:
        """What comes at this place, at least one entry, at most about so many bytes; None: nothing yet.

        ``at`` is not before `begin`.
        """
        assert at >= self.begin, "whoever is below the ring is not served from it"
        index = bisect_left(self._places, at, self._first)
        if index == len(self._places):
            return None
        head = self._entries[index][0]
        parts, size = [head.encode()], HEAD_BYTES
        while True:
            _, record, next_id = self._entries[index]
            parts.append(record)
            size += len(record)
            index += 1
            if index == len(self._entries) or self._entries[index][0] is not head:
                break
            if size + len(self._entries[index][1]) > bytes_max:
                break
        segment, entry = last = self._places[index - 1]
        return RingSpan(b"".join(parts), (segment, entry + 1), next_id, last)


_GONE = (SegmentHead(0, 0, 0, -1, 0, 0), b"", 0)


class SubscriberCursor:
    """A reader's cursor and credit. Credit counts the bytes of ENTRIES in all, and only grows."""

    __slots__ = ("at", "granted", "next_id", "sent")

    def __init__(self, at: Place, next_id: int, credit: int) -> None:
        self.at = at
        """The next entry that it wants."""
        self.next_id = next_id
        """The sequence id of the record that comes next; -1: not known before one was sent."""
        self.granted = credit
        self.sent = 0

    @property
    def credit(self) -> int:
        """Bytes that may be sent now. Not above 0: nothing may; else one entry always may, however large."""
        return self.granted - self.sent

    def on_credit(self, total: int) -> bool:
        """It may be sent ``total`` bytes in all; could it be sent nothing before? Raises `ProtocolError`."""
        if total < self.granted or total - self.sent > CREDIT_MAX:
            raise ProtocolError(
                f"CREDIT of {total} bytes in all, after {self.granted}, with {self.sent} sent"
            )
        waited = self.credit <= 0
        self.granted = total
        return waited and self.credit > 0

    def on_sent(self, run: RingSpan) -> None:
        """These entries were sent. They come at or after its place: nothing is sent twice (H189)."""
        assert run.last >= self.at, "an entry is sent once"
        self.at = run.after
        self.next_id = run.next_id
        self.sent += len(run.body)

    def on_number(self, next_id: int) -> None:
        """Set the sequence ID of the next record. The reader detects missing records by it."""
        if self.next_id < 0:
            self.next_id = next_id

    def skip_to(self, at: Place) -> None:
        """Between its place and this one there is nothing to be sent."""
        assert at >= self.at
        self.at = at
