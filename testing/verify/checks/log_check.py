"""Check the guarantees of one log over recorded observations, as history_check.py, for runs of any length.

It has the same results as `check_log` (a property test compares both on small histories). The time is
proportional to the number of entries, not of records. It does not stop at the first violation, because after
a power failure the number of lost records is of interest.

A record is identified by its sequence ID. The whole log, as read at the end, must have all IDs from the first
one on without a gap, and everything else is compared with it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..history.observations import Acked, LogObservations, Piece
from ..history.run_history import Outcome, Position
from .read_check import Readings, at

SHOWN_MAX = 20
"""The number of violations with a text. All are counted."""


@dataclass(slots=True)
class LogVerdict:
    """The result of the check of one log."""

    log: str
    records: int = 0
    """In the log at the end, as read from its first record on."""
    acked: int = 0
    lost: int = 0
    """Acknowledged, not truncated, and not at the acknowledged position (G3)."""
    unknown: int = 0
    """Submitted without a known outcome: failed calls, and the last records of killed writers."""
    refused: int = 0
    sessions: int = 0
    readings: int = 0
    read: int = 0
    violations: list[str] = field(default_factory=list)
    violations_count: int = 0

    @property
    def is_good(self) -> bool:
        """Whether no violation was found."""
        return self.violations_count == 0

    def add_violation(self, text: str) -> None:
        """Add a violation."""
        self.violations_count += 1
        if len(self.violations) < SHOWN_MAX:
            self.violations.append(text)


def check_log_observations(observations: LogObservations, final: Sequence[Piece]) -> LogVerdict:
    """Check the observations of a log.

    Args:
        observations: The observations.
        final: The log, as read at the end from its earliest record on.
    """
    return _Judge(observations, final).check()


class _Judge:
    def __init__(self, observations: LogObservations, final: Sequence[Piece]) -> None:
        self.observations = observations
        self.final = final
        self.verdict = LogVerdict(observations.name)
        truncation_points = [
            truncation.to
            for truncation in observations.truncations
            if truncation.outcome is not Outcome.REFUSED
        ]
        self.truncated_below: Position | None = max(truncation_points, default=None)
        """Records before this position may be missing, because a truncation was requested."""
        self.pieces_by_session: dict[int, list[Piece]] = {}
        """By session: the pieces in the final log, in the order of the log."""
        self.by_counter: dict[int, list[Piece]] = {}
        """The same, in the order of submission."""
        self.losses: list[tuple[int, int, int, Position, float]] = []
        """Losses: session, end and first of the counters, position and time of the first acknowledgement."""
        self.refused_ranges: dict[int, list[tuple[int, int]]] = {}
        """By session: [first, end) of records that were definitely refused."""

    def check(self) -> LogVerdict:
        observations, verdict = self.observations, self.verdict
        verdict.sessions = len(observations.sessions)
        for failed in observations.failed:
            if failed.outcome is Outcome.REFUSED:
                verdict.refused += failed.count
                refused_range = (failed.first, failed.first + failed.count)
                self.refused_ranges.setdefault(failed.session, []).append(refused_range)
        self._check_final()
        for session, pieces in self.pieces_by_session.items():
            self.by_counter[session] = sorted(pieces, key=lambda piece: piece.counter)
        self._check_sessions()
        self._check_acks()
        self._check_refused()
        self._check_real_time()
        readings = Readings(self.final, self.truncated_below, verdict.add_violation)
        for reading in observations.readings:
            readings.check(reading)
        verdict.readings, verdict.read = readings.reading_count, readings.read_records
        handed_over = sum(
            self._submitted_count(session) for session in observations.sessions
        )  # neither acknowledged nor refused: unknown
        verdict.unknown = max(0, handed_over - verdict.acked - verdict.refused)
        return verdict

    # --- the log itself -------------------------------------------------------------------------------

    def _check_final(self) -> None:
        """Check that positions increase without a gap (G1)."""
        add_violation, previous = self.verdict.add_violation, None
        self.verdict.records = sum(piece.records for piece in self.final)
        for piece in self.final:
            if piece.writer < 0:
                add_violation(f"phantom: the bytes at {at(piece)} were written by no client")
            else:
                self.pieces_by_session.setdefault(piece.writer, []).append(piece)
            if previous is not None:
                self._check_consecutive(previous, piece)
            previous = piece
        if not self.final:
            return
        first = self.final[0]
        if self.truncated_below is None:
            if first.sequence_id != 0:
                add_violation(f"G1 gap: the first record has sequence id {first.sequence_id}")
        elif first[:3] > self.truncated_below:
            self._check_truncation(first)

    def _check_consecutive(self, previous: Piece, piece: Piece) -> None:
        add_violation = self.verdict.add_violation
        last_slot = previous.slot + previous.records - 1
        if piece[:3] <= (previous.segment, previous.entry, last_slot):
            add_violation(f"G1 order: {at(piece)} comes after {at(previous)}")
        if piece.sequence_id != previous.sequence_id + previous.records:
            add_violation(
                f"G1 gap: sequence id {piece.sequence_id} at {at(piece)} comes after"
                f" {previous.sequence_id + previous.records - 1}"
            )
        if piece[:2] == previous[:2]:
            if piece.slot != last_slot + 1:
                add_violation(f"G1 gap: {at(piece)} comes after slot {last_slot} of its entry")
        elif piece.slot != 0:
            add_violation(f"G1 gap: {at(piece)} is the first one read of its entry")
        if piece.txid < previous.txid:
            add_violation(f"G1 order: txid {piece.txid} at {at(piece)} comes after {previous.txid}")

    def _check_truncation(self, first: Piece) -> None:
        """Check that all records at or after the truncation point that were read are still there (G6)."""
        assert self.truncated_below is not None
        for reading in self.observations.readings:
            for piece in reading.pieces:
                end = (piece.segment, piece.entry, piece.slot + piece.records - 1)
                if (
                    self.truncated_below <= end
                    and piece.sequence_id + piece.records <= first.sequence_id
                ):
                    self.verdict.add_violation(
                        f"G6: {at(piece)} is missing, but the log was truncated to {self.truncated_below}"
                    )
                    return

    def _check_sessions(self) -> None:
        """Check that the log has a prefix of each session's records, in order, once (G1, G7).

        After records of another session, no further records of the earlier session follow (G4).
        """
        add_violation = self.verdict.add_violation
        for number, pieces in self.pieces_by_session.items():
            session = self.observations.sessions.get(number)
            if session is None:
                add_violation(
                    f"phantom: {at(pieces[0])} is of session {number}, which no client opened"
                )
                continue
            self._check_prefix(number, pieces)
            last_piece = pieces[-1]
            if (
                session.submitted is not None
                and last_piece.counter + last_piece.records > session.submitted
            ):
                add_violation(
                    f"phantom: {at(last_piece)} is record {last_piece.counter + last_piece.records - 1} "
                    "of session"
                    f" {number}, which submitted {session.submitted}"
                )
        current_session, seen_sessions = -1, set[int]()
        for piece in self.final:
            if piece.writer == current_session or piece.writer < 0:
                continue
            if piece.writer in seen_sessions:
                add_violation(
                    f"G4: session {piece.writer} has a record at {at(piece)}, after those of"
                    f" session {current_session}, which took over from it"
                )
            seen_sessions.add(piece.writer)
            current_session = piece.writer

    def _check_prefix(self, number: int, pieces: list[Piece]) -> None:
        add_violation = self.verdict.add_violation
        # A truncation may have removed a session's first records.
        covered = (
            [(pieces[0].counter, pieces[0].counter)]
            if self.truncated_below is not None
            else [(0, 0)]
        )
        end = covered[0][1]
        for piece in pieces:
            piece_end = piece.counter + piece.records
            if piece.counter < end:
                if any(piece.counter < stop and start < piece_end for start, stop in covered):
                    add_violation(
                        f"G7 duplicate: records of session {number} at {at(piece)} are there twice"
                    )
                else:
                    add_violation(
                        f"G1 order: {at(piece)} is after later records of its session {number}"
                    )
            elif piece.counter > end and not self._all_refused(number, end, piece.counter):
                add_violation(
                    f"G1 hole: record {piece.counter} of session {number} is at {at(piece)},"
                    f" records {end} to {piece.counter - 1}, written before it, are missing"
                )
            covered.append((piece.counter, piece_end))
            end = max(end, piece_end)

    def _all_refused(self, session: int, first: int, end: int) -> bool:
        for start, stop in sorted(self.refused_ranges.get(session, [])):
            if start <= first < stop:
                first = stop
        return first >= end

    # --- calls ----------------------------------------------------------------------------------------

    def _check_acks(self) -> None:
        """Check that acknowledged records are at their positions (G3)."""
        acked_ranges: dict[int, list[tuple[int, int]]] = {}
        for acked in self.observations.acked:
            self.verdict.acked += acked.count
            acked_ranges.setdefault(acked.session, []).append(
                (acked.first, acked.first + acked.count)
            )
            counter = acked.first
            for segment, entry, slot, count in acked.runs:
                self._check_position(acked, (segment, entry, slot), counter, count)
                counter += count
        for session, end, first, position, acked_at in self.losses:
            self.verdict.add_violation(
                f"G3 lost: {end - first} records, {first} to {end - 1} of session {session}, acknowledged"
                f" from {'.'.join(map(str, position))} on (t={acked_at:.3f}), are missing"
            )
        for session, ranges in acked_ranges.items():
            end = 0
            for first, last in sorted(ranges):
                if first < end:
                    self.verdict.add_violation(
                        f"G7: record {first} of session {session} was acknowledged twice"
                    )
                end = max(end, last)

    def _add_loss(self, acked: Acked, counter: int, count: int, position: Position) -> None:
        """Add a loss. A loss that continues the previous one is merged with it."""
        self.verdict.lost += count
        if self.losses and self.losses[-1][:2] == (acked.session, counter):
            session, _, first, first_position, acked_at = self.losses.pop()
        else:
            session, first, first_position, acked_at = (
                acked.session,
                counter,
                position,
                acked.ended_at,
            )
        self.losses.append((session, counter + count, first, first_position, acked_at))

    def _check_position(self, acked: Acked, position: Position, counter: int, count: int) -> None:
        """Check that ``count`` records from ``counter`` on are at their acknowledged position."""
        verdict = self.verdict
        pieces = self.by_counter.get(acked.session, [])
        index = bisect_right(pieces, counter, key=lambda piece: piece.counter) - 1
        segment, entry, slot = position
        while count > 0:
            piece = pieces[index] if 0 <= index < len(pieces) else None
            if piece is None or not piece.counter <= counter < piece.counter + piece.records:
                next_counter = (
                    pieces[index + 1].counter if index + 1 < len(pieces) else counter + count
                )
                missing = min(count, max(1, next_counter - counter))
                if self.truncated_below is None or (segment, entry, slot) >= self.truncated_below:
                    self._add_loss(acked, counter, missing, (segment, entry, slot))
                handled = missing
                index += 1
            else:
                offset = counter - piece.counter
                handled = min(count, piece.records - offset)
                actual = (piece.segment, piece.entry, piece.slot + offset)
                if actual != (segment, entry, slot):
                    verdict.add_violation(
                        f"G3 moved: record {counter} of session {acked.session} was acknowledged at"
                        f" {segment}.{entry}.{slot} and is at {'.'.join(map(str, actual))}"
                    )
                index += 1
            counter, slot, count = counter + handled, slot + handled, count - handled

    def _check_refused(self) -> None:
        for session, ranges in self.refused_ranges.items():
            for piece in self.by_counter.get(session, []):
                for first, end in ranges:
                    if piece.counter < end and first < piece.counter + piece.records:
                        self.verdict.add_violation(
                            f"G7: record {max(first, piece.counter)} of session {session} was definitely"
                            f" refused and is in {at(piece)}"
                        )

    def _check_real_time(self) -> None:
        """Check that a record begun after an acknowledgement follows the acknowledged record (G3, G4)."""
        spans: list[tuple[float, float, int, int, int]] = []  # begun, ended, low, high, session
        for acked in self.observations.acked:
            sequence_range = self._sequence_range(acked.session, acked.first, acked.count)
            if sequence_range is not None:
                spans.append((acked.begun_at, acked.ended_at, *sequence_range, acked.session))
        acked_spans = list(spans)
        for failed in self.observations.failed:
            sequence_range = self._sequence_range(failed.session, failed.first, failed.count)
            if sequence_range is not None:
                spans.append((failed.begun_at, float("inf"), *sequence_range, failed.session))
        spans.sort(key=lambda span: span[0])
        acked_spans.sort(key=lambda span: span[1])
        newest_acked, newest_session, index = -1, 0, 0
        for begun_at, _, lowest, _, session in spans:
            while index < len(acked_spans) and acked_spans[index][1] < begun_at:
                if acked_spans[index][3] > newest_acked:
                    newest_acked, newest_session = acked_spans[index][3], acked_spans[index][4]
                index += 1
            if lowest <= newest_acked:
                self.verdict.add_violation(
                    f"G4: a record of session {session}, begun at {begun_at:.3f}, has sequence id {lowest};"
                    f" {newest_acked} (session {newest_session}) had been acknowledged by then"
                )
                return  # later ones would be reported for the same reason

    def _sequence_range(self, session: int, counter: int, count: int) -> tuple[int, int] | None:
        """Return the lowest and highest sequence IDs of these records in the log; None if there are none."""
        pieces = self.by_counter.get(session, [])
        index = max(0, bisect_right(pieces, counter, key=lambda piece: piece.counter) - 1)
        low = high = -1
        while index < len(pieces) and pieces[index].counter < counter + count:
            piece = pieces[index]
            first = max(counter, piece.counter)
            end = min(counter + count, piece.counter + piece.records)
            if first < end:
                if low < 0:
                    low = piece.sequence_id + first - piece.counter
                high = piece.sequence_id + end - 1 - piece.counter
            index += 1
        return (low, high) if low >= 0 else None

    def _submitted_count(self, number: int) -> int:
        session = self.observations.sessions[number]
        if session.submitted is not None:
            return session.submitted
        # The session was killed. Its records are known only from acknowledgements and from the log.
        known_counts = [a.first + a.count for a in self.observations.acked if a.session == number]
        known_counts += [f.first + f.count for f in self.observations.failed if f.session == number]
        known_counts += [
            piece.counter + piece.records for piece in self.by_counter.get(number, [])[-1:]
        ]
        return max(known_counts, default=0)
