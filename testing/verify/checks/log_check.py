"""The verdict on one log from its notes: the guarantees as in history_check.py, for runs of any length.

Judges the same as `check_log` (a property test holds the two together on small histories), in time that
grows with entries, not with records; and does not stop at the first violation, since "how many were lost"
is the question after a power cut.

The place of a record in its log is its sequence id: the whole log, read at the end, must hold all from the
first one on without a gap, and everything else is compared with that.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..history.observations import Acked, LogNotes, Piece
from ..history.run_history import Outcome, Position
from .read_check import Readings, at

SHOWN_MAX = 20
"""Violations that are told in words; all are counted."""


@dataclass(slots=True)
class LogVerdict:
    """What was judged of one log, and what was found."""

    log: str
    records: int = 0
    """In the log at the end, as read from its first record on."""
    acked: int = 0
    lost: int = 0
    """Acknowledged, not truncated, and not where it was acknowledged (G3)."""
    unknown: int = 0
    """Handed over, and nobody knows: calls that failed, and what a killed writer did not live to say."""
    refused: int = 0
    sessions: int = 0
    readings: int = 0
    read: int = 0
    violations: list[str] = field(default_factory=list)
    violations_count: int = 0

    @property
    def good(self) -> bool:
        """Was every promise kept?"""
        return self.violations_count == 0

    def found(self, words: str) -> None:
        """A promise was broken."""
        self.violations_count += 1
        if len(self.violations) < SHOWN_MAX:
            self.violations.append(words)


def check_log_notes(notes: LogNotes, final: Sequence[Piece]) -> LogVerdict:
    """Judge a log's notes by ``final``: the log as read at the end, from its earliest record on."""
    return _Judge(notes, final).judge()


class _Judge:
    def __init__(self, notes: LogNotes, final: Sequence[Piece]) -> None:
        self.notes = notes
        self.final = final
        self.verdict = LogVerdict(notes.name)
        floors = [cut.to for cut in notes.cuts if cut.outcome is not Outcome.REFUSED]
        self.floor: Position | None = max(floors, default=None)
        """What lies before may be gone: a truncation was asked for."""
        self.of: dict[int, list[Piece]] = {}
        """The final pieces of each session, in the order of the log."""
        self.by_counter: dict[int, list[Piece]] = {}
        """The same, in the order in which they were handed over."""
        self.missing: list[tuple[int, int, int, Position, float]] = []
        """Losses: session, end and first of the counters, where and when the first was acknowledged."""
        self.refused: dict[int, list[tuple[int, int]]] = {}
        """Of each session: [first, end) of records that were refused for certain."""

    def judge(self) -> LogVerdict:
        notes, verdict = self.notes, self.verdict
        verdict.sessions = len(notes.sessions)
        for failed in notes.failed:
            if failed.outcome is Outcome.REFUSED:
                verdict.refused += failed.count
                span = (failed.first, failed.first + failed.count)
                self.refused.setdefault(failed.session, []).append(span)
        self._check_final()
        for session, pieces in self.of.items():
            self.by_counter[session] = sorted(pieces, key=lambda piece: piece.counter)
        self._check_sessions()
        self._check_acks()
        self._check_refused()
        self._check_real_time()
        readings = Readings(self.final, self.floor, verdict.found)
        for reading in notes.readings:
            readings.check(reading)
        verdict.readings, verdict.read = readings.readings, readings.read
        handed_over = sum(
            self._handed_over(session) for session in notes.sessions
        )  # what is not acknowledged or refused of that is unknown
        verdict.unknown = max(0, handed_over - verdict.acked - verdict.refused)
        return verdict

    # --- the log itself -------------------------------------------------------------------------------

    def _check_final(self) -> None:
        """G1: positions ascend, without a gap."""
        found, before = self.verdict.found, None
        self.verdict.records = sum(piece.records for piece in self.final)
        for piece in self.final:
            if piece.writer < 0:
                found(f"phantom: the bytes at {at(piece)} are nobody's")
            else:
                self.of.setdefault(piece.writer, []).append(piece)
            if before is not None:
                self._check_step(before, piece)
            before = piece
        if not self.final:
            return
        first = self.final[0]
        if self.floor is None:
            if first.sequence_id != 0:
                found(f"G1 gap: the first record has sequence id {first.sequence_id}")
        elif first[:3] > self.floor:
            self._check_cut_too_far(first)

    def _check_step(self, before: Piece, piece: Piece) -> None:
        found = self.verdict.found
        last_slot = before.slot + before.records - 1
        if piece[:3] <= (before.segment, before.entry, last_slot):
            found(f"G1 order: {at(piece)} comes after {at(before)}")
        if piece.sequence_id != before.sequence_id + before.records:
            found(
                f"G1 gap: sequence id {piece.sequence_id} at {at(piece)} comes after"
                f" {before.sequence_id + before.records - 1}"
            )
        if piece[:2] == before[:2]:
            if piece.slot != last_slot + 1:
                found(f"G1 gap: {at(piece)} comes after slot {last_slot} of its entry")
        elif piece.slot != 0:
            found(f"G1 gap: {at(piece)} is the first one read of its entry")
        if piece.txid < before.txid:
            found(f"G1 order: txid {piece.txid} at {at(piece)} comes after {before.txid}")

    def _check_cut_too_far(self, first: Piece) -> None:
        """G6: whatever any reader saw at or after the point is still there."""
        assert self.floor is not None
        for reading in self.notes.readings:
            for piece in reading.pieces:
                end = (piece.segment, piece.entry, piece.slot + piece.records - 1)
                if self.floor <= end and piece.sequence_id + piece.records <= first.sequence_id:
                    self.verdict.found(
                        f"G6: {at(piece)} is gone, and the log was truncated to {self.floor} only"
                    )
                    return

    def _check_sessions(self) -> None:
        """G1, G7: of each session a prefix, in order, once. G4: once another one's follow, none of its."""
        found = self.verdict.found
        for number, pieces in self.of.items():
            session = self.notes.sessions.get(number)
            if session is None:
                found(f"phantom: {at(pieces[0])} is of session {number}, which nobody opened here")
                continue
            self._check_prefix(number, pieces)
            last = pieces[-1]
            if session.submitted is not None and last.counter + last.records > session.submitted:
                found(
                    f"phantom: {at(last)} is record {last.counter + last.records - 1} of session"
                    f" {number}, which handed over {session.submitted}"
                )
        current, seen = -1, set[int]()
        for piece in self.final:
            if piece.writer == current or piece.writer < 0:
                continue
            if piece.writer in seen:
                found(
                    f"G4: session {piece.writer} has a record at {at(piece)}, after those of"
                    f" session {current}, which took over from it"
                )
            seen.add(piece.writer)
            current = piece.writer

    def _check_prefix(self, number: int, pieces: list[Piece]) -> None:
        found = self.verdict.found
        # A truncation may have taken a session's first records.
        taken = [(pieces[0].counter, pieces[0].counter)] if self.floor is not None else [(0, 0)]
        end = taken[0][1]
        for piece in pieces:
            last = piece.counter + piece.records
            if piece.counter < end:
                if any(piece.counter < b and a < last for a, b in taken):
                    found(
                        f"G7 duplicate: records of session {number} at {at(piece)} are there twice"
                    )
                else:
                    found(f"G1 order: {at(piece)} lies after later records of its session {number}")
            elif piece.counter > end and not self._all_refused(number, end, piece.counter):
                found(
                    f"G1 hole: record {piece.counter} of session {number} is at {at(piece)},"
                    f" records {end} to {piece.counter - 1}, written before it, are not there"
                )
            taken.append((piece.counter, last))
            end = max(end, last)

    def _all_refused(self, session: int, first: int, end: int) -> bool:
        for a, b in sorted(self.refused.get(session, [])):
            if a <= first < b:
                first = b
        return first >= end

    # --- calls ----------------------------------------------------------------------------------------

    def _check_acks(self) -> None:
        """G3: what was acknowledged is where it was."""
        claimed: dict[int, list[tuple[int, int]]] = {}
        for acked in self.notes.acked:
            self.verdict.acked += acked.count
            claimed.setdefault(acked.session, []).append((acked.first, acked.first + acked.count))
            counter = acked.first
            for segment, entry, slot, count in acked.places:
                self._check_place(acked, (segment, entry, slot), counter, count)
                counter += count
        for session, end, first, place, when in self.missing:
            self.verdict.found(
                f"G3 lost: {end - first} records, {first} to {end - 1} of session {session}, acknowledged"
                f" from {'.'.join(map(str, place))} on (t={when:.3f}), are not there"
            )
        for session, spans in claimed.items():
            end = 0
            for first, last in sorted(spans):
                if first < end:
                    self.verdict.found(
                        f"G7: record {first} of session {session} was acknowledged twice"
                    )
                end = max(end, last)

    def _lost(self, acked: Acked, counter: int, count: int, place: Position) -> None:
        """Note a loss; one that goes on where the last one ended is the same."""
        self.verdict.lost += count
        if self.missing and self.missing[-1][:2] == (acked.session, counter):
            session, _, first, at, when = self.missing.pop()
        else:
            session, first, at, when = acked.session, counter, place, acked.ended_at
        self.missing.append((session, counter + count, first, at, when))

    def _check_place(self, acked: Acked, place: Position, counter: int, count: int) -> None:
        """``count`` records from ``counter`` on were acknowledged at ``place``: are they there?"""
        verdict = self.verdict
        pieces = self.by_counter.get(acked.session, [])
        index = bisect_right(pieces, counter, key=lambda piece: piece.counter) - 1
        segment, entry, slot = place
        while count > 0:
            piece = pieces[index] if 0 <= index < len(pieces) else None
            if piece is None or not piece.counter <= counter < piece.counter + piece.records:
                later = pieces[index + 1].counter if index + 1 < len(pieces) else counter + count
                missing = min(count, max(1, later - counter))
                if self.floor is None or (segment, entry, slot) >= self.floor:
                    self._lost(acked, counter, missing, (segment, entry, slot))
                taken = missing
                index += 1
            else:
                offset = counter - piece.counter
                taken = min(count, piece.records - offset)
                lies = (piece.segment, piece.entry, piece.slot + offset)
                if lies != (segment, entry, slot):
                    verdict.found(
                        f"G3 moved: record {counter} of session {acked.session} was acknowledged at"
                        f" {segment}.{entry}.{slot} and lies at {'.'.join(map(str, lies))}"
                    )
                index += 1
            counter, slot, count = counter + taken, slot + taken, count - taken

    def _check_refused(self) -> None:
        for session, spans in self.refused.items():
            for piece in self.by_counter.get(session, []):
                for first, end in spans:
                    if piece.counter < end and first < piece.counter + piece.records:
                        self.verdict.found(
                            f"G7: record {max(first, piece.counter)} of session {session} was refused"
                            f" for certain and lies in {at(piece)}"
                        )

    def _check_real_time(self) -> None:
        """G3, G4: what was begun after another one's acknowledgement lies after it."""
        spans: list[tuple[float, float, int, int, int]] = []  # begun, ended, low, high, session
        for acked in self.notes.acked:
            places = self._places(acked.session, acked.first, acked.count)
            if places is not None:
                spans.append((acked.begun_at, acked.ended_at, *places, acked.session))
        ends = list(spans)
        for failed in self.notes.failed:
            places = self._places(failed.session, failed.first, failed.count)
            if places is not None:
                spans.append((failed.begun_at, float("inf"), *places, failed.session))
        spans.sort(key=lambda span: span[0])
        ends.sort(key=lambda span: span[1])
        newest, newest_session, at = -1, 0, 0
        for begun, _, low, _, session in spans:
            while at < len(ends) and ends[at][1] < begun:
                if ends[at][3] > newest:
                    newest, newest_session = ends[at][3], ends[at][4]
                at += 1
            if low <= newest:
                self.verdict.found(
                    f"G4: a record of session {session}, begun at {begun:.3f}, has sequence id {low};"
                    f" {newest} (session {newest_session}) had been acknowledged by then"
                )
                return  # one tells it; all later ones would too

    def _places(self, session: int, counter: int, count: int) -> tuple[int, int] | None:
        """The lowest and highest sequence ids of records that are there; None: none of them is."""
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

    def _handed_over(self, number: int) -> int:
        session = self.notes.sessions[number]
        if session.submitted is not None:
            return session.submitted
        # Killed: what is known of it is what was acknowledged, and what lies in the log.
        known = [a.first + a.count for a in self.notes.acked if a.session == number]
        known += [f.first + f.count for f in self.notes.failed if f.session == number]
        known += [piece.counter + piece.records for piece in self.by_counter.get(number, [])[-1:]]
        return max(known, default=0)
