"""G5 and G6 over notes: what every reader got, against the log as it is and against other readers.

A reader got a slice of the one log, from where it began, without a gap. What a truncation has taken since
cannot be compared with the log any more, and is compared with what other readers got of it.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from ..history.observations import Piece, ReadPart
from ..history.run_history import Position


class Readings:
    """Judges readings one after the other against ``final``, the log as read at the end.

    ``floor``: what lies before may have been truncated; None: nothing may. ``found`` hears of violations.
    """

    def __init__(
        self, final: Sequence[Piece], floor: Position | None, found: Callable[[str], None]
    ) -> None:
        self.readings = 0
        self.read = 0
        """Records, of all readings."""
        self._final = final
        self._floor = floor
        self._found = found
        self._sequences = [piece.sequence_id for piece in final]
        self._below: dict[tuple[int, int], list[tuple[Piece, str]]] = {}
        """What was truncated since, by entry, with who got it."""

    def check(self, reading: ReadPart) -> None:
        """G5: every reader got a slice of the one log, from where it began, without a gap."""
        found = self._found
        self.readings += 1
        who = f"reader {reading.who} (t={reading.begun_at:.3f})"
        expected: int | None = None
        base = self._final[0].sequence_id if self._final else 0
        for piece in reading.pieces:
            self.read += piece.records
            if expected is None:
                self._check_start(reading, piece, who)
            elif piece.sequence_id != expected:
                found(
                    f"G5 gap: {who} got sequence id {piece.sequence_id} at {at(piece)}"
                    f" where {expected} comes next"
                )
            expected = piece.sequence_id + piece.records
            if piece.sequence_id >= base or self._floor is None:
                self._compare(piece, who)
            else:
                self._compare_below(piece, who)

    def _check_start(self, reading: ReadPart, piece: Piece, who: str) -> None:
        found = self._found
        base = self._final[0].sequence_id if self._final else 0
        if reading.start is None:
            if piece.sequence_id > (base if self._floor is not None else 0):
                found(f"G5 gap: {who} began at the earliest record and first got {at(piece)}")
            return
        if piece[:3] < reading.start:
            found(f"G5: {who} began at {reading.start} and got {at(piece)}, which lies before")
        before = self._there(piece.sequence_id - 1)
        if before is not None:
            last = (before.segment, before.entry, before.slot + before.records - 1)
            if self._position(before, piece.sequence_id - 1) >= reading.start:
                found(
                    f"G5 gap: {who} began at {reading.start} and first got {at(piece)}, not {last}"
                )

    def _there(self, sequence_id: int) -> Piece | None:
        """The final piece that holds this record."""
        index = bisect_right(self._sequences, sequence_id) - 1
        if index < 0:
            return None
        piece = self._final[index]
        return piece if sequence_id < piece.sequence_id + piece.records else None

    def _position(self, piece: Piece, sequence_id: int) -> Position:
        return piece.segment, piece.entry, piece.slot + sequence_id - piece.sequence_id

    def _compare(self, piece: Piece, who: str) -> None:
        """Is what was read the same as what is there?"""
        done = 0
        while done < piece.records:
            there = self._there(piece.sequence_id + done)
            if there is None:
                self._found(
                    f"G5 lost: {who} got {piece.records - done} records from {at(piece, done)} on,"
                    " where nothing is"
                )
                return
            offset = piece.sequence_id + done - there.sequence_id
            if not _same(piece, done, there, offset):
                self._found(
                    f"G5 changed: {who} got {_what(piece, done)} at {at(piece, done)}, where"
                    f" {_what(there, offset)} lies at {at(there, offset)}"
                )
                return
            done += min(piece.records - done, there.records - offset)

    def _compare_below(self, piece: Piece, who: str) -> None:
        """What truncation took is compared with what other readers got of it."""
        others = self._below.setdefault(piece[:2], [])
        for other, other_who in others:
            first = max(piece.slot, other.slot)
            if first < min(piece.slot + piece.records, other.slot + other.records) and not _same(
                piece, first - piece.slot, other, first - other.slot
            ):
                self._found(
                    f"G5 changed: {who} got {_what(piece, first - piece.slot)} at {at(piece)},"
                    f" {other_who} got {_what(other, first - other.slot)} there"
                )
        others.append((piece, who))


def _same(one: Piece, i: int, other: Piece, j: int) -> bool:
    return (
        one[:2] == other[:2]
        and one.slot + i == other.slot + j
        and one.sequence_id + i == other.sequence_id + j
        and one.txid == other.txid
        and one.writer == other.writer
        and one.counter + i == other.counter + j
    )


def at(piece: Piece, offset: int = 0) -> str:
    """``1.12.3``"""
    return f"{piece.segment}.{piece.entry}.{piece.slot + offset}"


def _what(piece: Piece, offset: int) -> str:
    if piece.writer < 0:
        return "nobody's bytes"
    return f"record {piece.counter + offset} of session {piece.writer}"
