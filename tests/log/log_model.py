"""What may be read of one log, given what its users were told: models of about a hundred lines.

They know no entry, no segment and no bookie. A record is told from others by its payload. What was
acknowledged has its place for good (G2, G5); what is of unknown outcome may appear once, in front of what
its successors write (G7); anything else never appears. A subscriber goes on where its commits say, and
nowhere else (H155); of a work queue everything is handled, and what was told to be done is done (H156).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from distributedlog.log.format.dlsn import DLSN
from distributedlog.runtime.interfaces.errors import DistributedLogError


@dataclass(frozen=True, slots=True)
class Read:
    """A record as a reader gave it."""

    dlsn: DLSN
    sequence_id: int
    txid: int
    payload: bytes


@dataclass
class LogModel:
    """One incarnation of a log. Every call asserts what must hold."""

    placed: dict[bytes, tuple[DLSN, int]] = field(default_factory=dict)
    """Payload to place and txid, of what was acknowledged or read."""
    maybe: dict[bytes, int] = field(default_factory=dict)
    """Payload to txid, of what has no outcome, or an unknown one."""
    visible: set[bytes] = field(default_factory=set)
    """Of `placed`: every reader finds it from now on."""
    point: DLSN = DLSN.INITIAL
    """It is truncated at least to here."""
    point_max: DLSN = DLSN.INITIAL
    """And at most to here."""
    sealed: bool | None = False
    """None: it may be."""
    ids: dict[DLSN, int] = field(default_factory=dict)
    """Sequence ids, of what was read."""
    frozen: set[bytes] = field(default_factory=set)
    """Of `maybe`: a later writer has been there, so that they are readable now, or never."""
    sets: dict[bytes, Sequence[bytes]] = field(default_factory=dict)
    """Payload to those of its set, itself included, in order."""

    # --- writing ----------------------------------------------------------------------------------

    def sent(self, payload: bytes, txid: int) -> None:
        """A writer took it."""
        assert payload not in self.placed
        self.maybe[payload] = txid

    def sent_set(self, payloads: Sequence[bytes], txid: int) -> None:
        """A writer took them as one set."""
        for one in payloads:
            self.sent(one, txid)
            self.sets[one] = payloads

    def told(self, payload: bytes, outcome: DLSN | DistributedLogError) -> None:
        """What its writer was told."""
        if isinstance(outcome, DLSN):
            if payload in self.placed:
                assert self.placed[payload][0] == outcome, f"{payload!r} moved to {outcome}"
                return
            assert payload in self.maybe, f"{payload!r} was refused before, now it is at {outcome}"
            self._place(payload, outcome)
        elif outcome.definite:
            assert payload not in self.placed, (
                f"{payload!r} is there, its writer was told {outcome}"
            )
            self.maybe.pop(payload, None)

    def committed(self) -> None:
        """The present writer has been told that all is durable and readable."""
        self.visible.update(self.placed)

    def taken_over(self) -> None:
        """What earlier writers left has its end: all that was acknowledged is readable (G4)."""
        self.visible.update(self.placed)
        self.frozen = set(self.maybe)

    def _place(self, payload: bytes, dlsn: DLSN) -> None:
        assert all(dlsn != place for place, _ in self.placed.values()), f"two records at {dlsn}"
        self.placed[payload] = dlsn, self.maybe.pop(payload)

    # --- reading ----------------------------------------------------------------------------------

    def check(self, records: list[Read], start: DLSN | None, whole: bool) -> None:
        """``records`` are what a reader gave from ``start`` (None: the earliest) on.

        ``whole``: it went up to what was readable when it was opened, and met no error.
        """
        for one, after in pairwise(records):
            assert one.dlsn < after.dlsn, f"G1: {one.dlsn} before {after.dlsn}"
            assert one.sequence_id + 1 == after.sequence_id, f"G1: a gap after {one}: {after}"
        for one in records:
            if one.payload not in self.placed:
                assert one.payload in self.maybe, f"{one} was never written, or was refused"
                self._place(one.payload, one.dlsn)
            assert self.placed[one.payload] == (one.dlsn, one.txid), f"G5: {one}"
            assert self.ids.setdefault(one.dlsn, one.sequence_id) == one.sequence_id, f"G5: {one}"
            assert one.dlsn >= max(self.point, start or self.point), f"G6: {one} of {self.point}"
        self.visible.update(one.payload for one in records)
        read = {one.payload for one in records}
        first = max(start or DLSN.INITIAL, self.point_max)
        last = records[-1].dlsn if records else first
        for payload, (place, _) in self.placed.items():
            due = payload in self.visible if whole else place <= last and bool(records)
            assert not due or place < first or payload in read, (
                f"G3: {payload!r} at {place} is missing"
            )
        for one in records:
            self._check_set(one, read, first, None if whole else last)
        if whole and start is None:
            for payload in self.frozen:
                self.maybe.pop(payload, None)
            self.frozen.clear()

    def _check_set(self, one: Read, read: set[bytes], first: DLSN, last: DLSN | None) -> None:
        """What belongs together is next to each other, and is read together."""
        together = self.sets.get(one.payload, ())
        for number, payload in enumerate(
            together, -list(together).index(one.payload) if together else 0
        ):
            place = DLSN(one.dlsn.segment, one.dlsn.entry, one.dlsn.slot + number)
            asked_for = place >= first and (last is None or place <= last)
            assert not asked_for or payload in read, f"a set is cut: {payload!r} is not at {place}"
            if payload in self.placed:
                assert self.placed[payload][0] == place, (
                    f"a set is torn: {payload!r} is not at {place}"
                )

    def check_stretch(self, records: list[Read], first: DLSN, end: DLSN) -> None:
        """``records`` are all that a work queue's stretch gave; it goes up to, and without, ``end``."""
        self.check(records, first, False)
        read = {one.payload for one in records}
        for payload, (place, _) in self.placed.items():
            if max(first, self.point_max) <= place < end:
                assert payload in read, f"H156: {payload!r} at {place} is in no stretch"

    def truncated(self, asked: DLSN, now: DLSN | None) -> None:
        """Somebody truncated to ``asked``; the log said where the point is then, or nothing (None)."""
        if now is None:
            self.point_max = max(self.point_max, asked)
            return
        assert now >= self.point, f"G6: the point went back from {self.point} to {now}"
        assert now <= max(asked, self.point_max), f"G6: asked for {asked}, it is {now}"
        self.point = self.point_max = now

    def places(self) -> list[DLSN]:
        """Of all records that are known to be there, in order."""
        return sorted(place for place, _ in self.placed.values())


@dataclass
class HeldModel:
    """A named position and its holders. Every call asserts what must hold (H155)."""

    low: DLSN | None = None
    """Told to be written; None: there is no position, as far as anybody knows."""
    high: DLSN = DLSN.INITIAL
    """Noted by whoever held it, before another one did."""

    def taken(self, at: DLSN) -> None:
        """Another holder begins here: what the ones before it note counts no more."""
        if self.low is not None:
            assert self.low <= at <= self.high, f"H155: at {at}, written {self.low} to {self.high}"
        self.low = self.high = at

    def noted(self, at: DLSN) -> None:
        """By its holder."""
        self.high = max(self.high, at)

    def written(self, at: DLSN) -> None:
        """Its holder was told so."""
        assert self.low is not None
        self.low = max(self.low, at)
        self.noted(at)


@dataclass
class QueueModel:
    """What was done of a work queue, as (first, end). Every call asserts what must hold (H156)."""

    done: list[tuple[DLSN, DLSN]] = field(default_factory=list)
    """Their workers were told so."""
    maybe: list[tuple[DLSN, DLSN]] = field(default_factory=list)
    """Nobody knows."""

    def claimed(self, first: DLSN, end: DLSN) -> None:
        """Somebody was given this to handle."""
        assert first < end
        for one in self.done:
            assert end <= one[0] or one[1] <= first, f"H156: {first} to {end} again, done is {one}"

    def finished(self, first: DLSN, end: DLSN) -> None:
        """Its worker was told that it is done."""
        self.claimed(first, end)
        self.done.append((first, end))

    def check_all(self, places: Sequence[DLSN]) -> None:
        """Nothing is left to claim, nothing is claimed: each of these was handled."""
        for place in places:
            assert any(a <= place < b for a, b in self.done + self.maybe), (
                f"H156: nobody had {place}"
            )
