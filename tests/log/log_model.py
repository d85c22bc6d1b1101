"""What may be read of one log, given what its users were told: a model of about a hundred lines.

It knows no entry, no segment and no bookie. A record is told from others by its payload. What was
acknowledged has its place for good (G2, G5); what is of unknown outcome may appear once, in front of what
its successors write (G7); anything else never appears.
"""

from dataclasses import dataclass, field
from itertools import pairwise

from distributedlog.log.dlsn import DLSN
from distributedlog.runtime.errors import DistributedLogError


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

    # --- writing ----------------------------------------------------------------------------------

    def sent(self, payload: bytes, txid: int) -> None:
        """A writer took it."""
        assert payload not in self.placed
        self.maybe[payload] = txid

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
        if whole and start is None:
            for payload in self.frozen:
                self.maybe.pop(payload, None)
            self.frozen.clear()

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
