"""Check the records of every reader against the log and against other readers (G5, G6).

A reader receives a part of the log without a gap, from its start position on. Records that were truncated
since cannot be compared with the log, so they are compared with those of other readers.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence

from ..history.observations import Piece, ReadPart
from ..history.run_history import Position


class Readings:
    """Checks readings against ``final``, the log as read at the end.

    Records before ``truncated_below`` may have been truncated; None if there was no truncation.
    ``on_violation`` receives the violations.
    """

    def __init__(
        self,
        final: Sequence[Piece],
        truncated_below: Position | None,
        on_violation: Callable[[str], None],
    ) -> None:
        self.reading_count = 0
        self.read_records = 0
        """The number of records of all readings."""
        self._final = final
        self._truncated_below = truncated_below
        self._on_violation = on_violation
        self._sequences = [piece.sequence_id for piece in final]
        self._truncated_pieces: dict[tuple[int, int], list[tuple[Piece, str]]] = {}
        """Truncated pieces with the reader's name, by entry."""

    def check(self, reading: ReadPart) -> None:
        """Check that a reader received a part of the log without a gap, from its start position on (G5)."""
        on_violation = self._on_violation
        self.reading_count += 1
        reader_name = f"reader {reading.who} (t={reading.begun_at:.3f})"
        expected_id: int | None = None
        first_id = self._final[0].sequence_id if self._final else 0
        for piece in reading.pieces:
            self.read_records += piece.records
            if expected_id is None:
                self._check_start(reading, piece, reader_name)
            elif piece.sequence_id != expected_id:
                on_violation(
                    f"G5 gap: {reader_name} got sequence id {piece.sequence_id} at {at(piece)}"
                    f" where {expected_id} is expected"
                )
            expected_id = piece.sequence_id + piece.records
            if piece.sequence_id >= first_id or self._truncated_below is None:
                self._compare(piece, reader_name)
            else:
                self._compare_truncated(piece, reader_name)

    def _check_start(self, reading: ReadPart, piece: Piece, reader_name: str) -> None:
        on_violation = self._on_violation
        first_id = self._final[0].sequence_id if self._final else 0
        if reading.start is None:
            if piece.sequence_id > (first_id if self._truncated_below is not None else 0):
                on_violation(
                    f"G5 gap: {reader_name} began at the earliest record and first got {at(piece)}"
                )
            return
        if piece[:3] < reading.start:
            on_violation(
                f"G5: {reader_name} began at {reading.start} and got {at(piece)}, which is before"
            )
        preceding = self._final_piece(piece.sequence_id - 1)
        if preceding is not None:
            last_position = (
                preceding.segment,
                preceding.entry,
                preceding.slot + preceding.records - 1,
            )
            if self._position(preceding, piece.sequence_id - 1) >= reading.start:
                on_violation(
                    f"G5 gap: {reader_name} began at {reading.start} and first got {at(piece)}, not "
                    f"{last_position}"
                )

    def _final_piece(self, sequence_id: int) -> Piece | None:
        """Return the piece of the final log with this record."""
        index = bisect_right(self._sequences, sequence_id) - 1
        if index < 0:
            return None
        piece = self._final[index]
        return piece if sequence_id < piece.sequence_id + piece.records else None

    def _position(self, piece: Piece, sequence_id: int) -> Position:
        return piece.segment, piece.entry, piece.slot + sequence_id - piece.sequence_id

    def _compare(self, piece: Piece, reader_name: str) -> None:
        """Check that the records are the same as in the final log."""
        compared = 0
        while compared < piece.records:
            final_piece = self._final_piece(piece.sequence_id + compared)
            if final_piece is None:
                self._on_violation(
                    f"G5 lost: {reader_name} got {piece.records - compared} records from "
                    f"{at(piece, compared)} on,"
                    " where no record is"
                )
                return
            offset = piece.sequence_id + compared - final_piece.sequence_id
            if not _same(piece, compared, final_piece, offset):
                self._on_violation(
                    f"G5 changed: {reader_name} got {_what(piece, compared)} at {at(piece, compared)}, where"
                    f" {_what(final_piece, offset)} is at {at(final_piece, offset)}"
                )
                return
            compared += min(piece.records - compared, final_piece.records - offset)

    def _compare_truncated(self, piece: Piece, reader_name: str) -> None:
        """Compare truncated records with those that other readers received."""
        others = self._truncated_pieces.setdefault(piece[:2], [])
        for other, other_name in others:
            first_slot = max(piece.slot, other.slot)
            if first_slot < min(
                piece.slot + piece.records, other.slot + other.records
            ) and not _same(piece, first_slot - piece.slot, other, first_slot - other.slot):
                self._on_violation(
                    f"G5 changed: {reader_name} got {_what(piece, first_slot - piece.slot)} at {at(piece)},"
                    f" {other_name} got {_what(other, first_slot - other.slot)} there"
                )
        others.append((piece, reader_name))


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
    """Return a position as text, such as ``1.12.3``."""
    return f"{piece.segment}.{piece.entry}.{piece.slot + offset}"


def _what(piece: Piece, offset: int) -> str:
    if piece.writer < 0:
        return "a record of no client"
    return f"record {piece.counter + offset} of session {piece.writer}"
