"""What client processes write down while they work, and a whole run's notes read back.

A run with half a million records must cost little and outlive the clients, which are killed too: so each
client appends short lines to a file of its own, one write a line, and records stand in *pieces*: so many
consecutive ones of one writer at consecutive slots of one entry. A run's history is these files, one after
the other. Times are seconds of the machine's monotonic clock, one for all processes.

A line is a JSON array, ``[who, kind, ...]``; a last line that is torn off is what its writer did not live
to say:

    begin     format, pid, t                              of a client process, or of the runner
    open      session, log, takeover, t0, t1              a writer was opened; told before its first record
    ack       session, first, t0, t1, [[segment, entry, slot, count], ...]
                                                          records from counter ``first`` on, in order: the
                                                          first was handed over at t0, the last known at t1
    fail      session, first, count, t0, t1, outcome, error      refused: for certain not done; or unknown
    end       session, submitted, t, error                the session handed over so many records in all
    read      reading, log, t, start or null              a reader was opened (null: at the earliest record)
    got       reading, t, [[segment, entry, slot, count, sequence id, txid, session, counter], ...]
                                                          session -1: the bytes are nobody's
    whole     reading, t                                  it came to the end that the log had at its opening
    cut       log, t0, t1, [segment, entry, slot], outcome       truncation: what lies before may go
    ask       n, key, kind, t, expected, wrote            a call on a register begins
    answer    n, t, outcome, succeeded, version, value    it ended; without this line it is unknown
    try       what, t0, t1, outcome                       of one who has no right: done, refused, or failed
    mode      mode, t0, t1                                of rights, asked for and answered; from the runner
    fault     n, kind, targets, t, words                  from the runner
    over      n, t, words
    note      t, words
    run       t, a table                                  from the runner, at begin and end of the load

Sessions are numbered over all clients of a run, readings and calls within a process' life.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ....runtime.interfaces.errors import CorruptData
from .run_history import Outcome, Position, RegisterCall

FORMAT = 1
NEVER = float("inf")
DONE, REFUSED, FAILED = "done", "refused", "failed"
"""What a try of who has no right came to."""


class Piece(NamedTuple):
    """Records at consecutive slots of one entry, of one writer session, with one txid."""

    segment: int
    entry: int
    slot: int
    records: int
    sequence_id: int
    """Of the first one."""
    txid: int
    writer: int
    """The session; -1: nobody's bytes."""
    counter: int
    """Of the first one."""


@dataclass(slots=True)
class NotedSession:
    """One opening of a writer."""

    number: int
    log: str
    who: str
    opened_at: float
    submitted: int | None = None
    """None: its process did not live to say."""
    ended_at: float = NEVER
    error: str = ""


@dataclass(slots=True)
class Acked:
    """Records that were acknowledged together."""

    session: int
    first: int
    begun_at: float
    ended_at: float
    runs: list[tuple[int, int, int, int]]
    """(segment, entry, slot, count)"""

    @property
    def count(self) -> int:
        """How many records."""
        return sum(run[3] for run in self.runs)


@dataclass(slots=True)
class Failed:
    """Records whose call ended in an error."""

    session: int
    first: int
    count: int
    begun_at: float
    ended_at: float
    outcome: Outcome
    error: str


@dataclass(slots=True)
class ReadPart:
    """What one reader got, in order, from where it began."""

    who: str
    log: str
    begun_at: float
    start: Position | None = None
    pieces: list[Piece] = field(default_factory=list)
    is_complete: bool = False


@dataclass(slots=True)
class RequestedTruncation:
    """A truncation that was asked for: what lies before ``to`` may go."""

    log: str
    begun_at: float
    ended_at: float
    to: Position
    outcome: Outcome


@dataclass(slots=True)
class Try:
    """What somebody tried who has no right."""

    who: str
    what: str
    begun_at: float
    ended_at: float
    outcome: str
    """`DONE`, `REFUSED` for want of a right, or `FAILED`."""


@dataclass(slots=True)
class ModeChange:
    """From when on rights were judged so."""

    mode: str
    asked_at: float
    answered_at: float


@dataclass(slots=True)
class FaultNote:
    """A fault, as the runner put it in."""

    number: int
    kind: str
    targets: list[str]
    begun_at: float
    text: str
    ended_at: float = NEVER
    end_text: str = ""


@dataclass(slots=True)
class LogNotes:
    """All that concerns one log."""

    name: str
    sessions: dict[int, NotedSession] = field(default_factory=dict)
    acked: list[Acked] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    readings: list[ReadPart] = field(default_factory=list)
    truncations: list[RequestedTruncation] = field(default_factory=list)


@dataclass(slots=True)
class PipelineObservations:
    """A whole run."""

    logs: dict[str, LogNotes] = field(default_factory=dict)
    registers: list[RegisterCall] = field(default_factory=list)
    faults: list[FaultNote] = field(default_factory=list)
    attempts: list[Try] = field(default_factory=list)
    modes: list[ModeChange] = field(default_factory=list)
    """In order."""
    remarks: list[tuple[float, str, str]] = field(default_factory=list)
    """(t, who, words)"""
    clients: dict[str, int] = field(default_factory=dict)
    """How many lives each client had."""
    run: dict[str, Any] = field(default_factory=dict)
    """What the runner said of the whole: ``scenario``, ``seed``, ``begun_at``, ``ended_at``, bounds."""

    def log(self, name: str) -> LogNotes:
        """Of one log; new where nothing was noted yet."""
        return self.logs.setdefault(name, LogNotes(name))


class Notebook:
    """The writing side: one line a call, handed to ``write`` whole."""

    def __init__(self, who: str, write: Callable[[bytes], object]) -> None:
        self.who = who
        self._write = write

    def note(self, kind: str, *fields: Any) -> None:
        """Write one line. Times are rounded to 0.1 ms, begins down and ends up by the caller's care."""
        line = json.dumps([self.who, kind, *fields], separators=(",", ":"))
        self._write(line.encode() + b"\n")


class _Reader:
    """Lines into `PipelineObservations`."""

    def __init__(self) -> None:
        self.run_notes = PipelineObservations()
        self._sessions: dict[int, LogNotes] = {}
        self._readings: dict[tuple[str, int], ReadPart] = {}
        self._calls: dict[tuple[str, int], RegisterCall] = {}
        self._faults: dict[int, FaultNote] = {}

    def add_line(self, line: Sequence[Any]) -> None:
        who, kind, *fields = line
        getattr(self, f"_{kind}")(who, *fields)

    def _begin(self, who: str, number: int, pid: int, t: float) -> None:
        if number != FORMAT:
            raise CorruptData(f"notes of format {number}; this version reads {FORMAT}")
        self.run_notes.clients[who] = self.run_notes.clients.get(who, 0) + 1
        for number_key in [number_key for number_key in self._readings if number_key[0] == who]:
            del self._readings[number_key]  # readings and calls are numbered anew in each life
        for number_key in [number_key for number_key in self._calls if number_key[0] == who]:
            del self._calls[number_key]

    def _open(self, who: str, session: int, log: str, takeover: bool, t0: float, t1: float) -> None:
        notes = self.run_notes.log(log)
        if session in self._sessions:
            raise CorruptData(f"session {session} was opened twice")
        notes.sessions[session] = NotedSession(session, log, who, t1)
        self._sessions[session] = notes

    def _ack(self, who: str, session: int, first: int, t0: float, t1: float, places: Any) -> None:
        runs = [(int(a), int(b), int(c), int(d)) for a, b, c, d in places]
        self._sessions[session].acked.append(Acked(session, first, t0, t1, runs))

    def _fail(
        self,
        who: str,
        session: int,
        first: int,
        count: int,
        t0: float,
        t1: float,
        outcome: str,
        error: str,
    ) -> None:
        self._sessions[session].failed.append(
            Failed(session, first, count, t0, t1, Outcome(outcome), error)
        )

    def _end(self, who: str, session: int, submitted: int, t: float, error: str) -> None:
        session_note = self._sessions[session].sessions[session]
        session_note.submitted, session_note.ended_at, session_note.error = submitted, t, error

    def _read(self, who: str, reading: int, log: str, t: float, start: Any) -> None:
        part = ReadPart(who, log, t, _position(start) if start is not None else None)
        self._readings[who, reading] = part
        self.run_notes.log(log).readings.append(part)

    def _got(self, who: str, reading: int, t: float, pieces: Any) -> None:
        self._readings[who, reading].pieces += [Piece(*map(int, piece)) for piece in pieces]

    def _whole(self, who: str, reading: int, t: float) -> None:
        self._readings[who, reading].is_complete = True

    def _cut(self, who: str, log: str, t0: float, t1: float, to: Any, outcome: str) -> None:
        self.run_notes.log(log).truncations.append(
            RequestedTruncation(log, t0, t1, _position(to), Outcome(outcome))
        )

    def _ask(
        self, who: str, n: int, key: str, kind: str, t: float, expected: int, wrote: str
    ) -> None:
        call = RegisterCall(who, key, kind, t, expected, wrote)
        self._calls[who, n] = call
        self.run_notes.registers.append(call)

    def _answer(
        self, who: str, n: int, t: float, outcome: str, succeeded: bool, version: int, value: str
    ) -> None:
        call = self._calls[who, n]
        call.outcome = Outcome(outcome)
        if call.outcome is not Outcome.UNKNOWN:
            call.ended_at = t  # an unknown one may still happen
        call.succeeded, call.version, call.value = succeeded, version, value

    def _try(self, who: str, what: str, t0: float, t1: float, outcome: str) -> None:
        self.run_notes.attempts.append(Try(who, what, t0, t1, outcome))

    def _mode(self, who: str, mode: str, t0: float, t1: float) -> None:
        self.run_notes.modes.append(ModeChange(mode, t0, t1))

    def _fault(self, who: str, n: int, kind: str, targets: Any, t: float, text: str) -> None:
        fault = FaultNote(n, kind, [str(target) for target in targets], t, text)
        self._faults[n] = fault
        self.run_notes.faults.append(fault)

    def _over(self, who: str, n: int, t: float, text: str) -> None:
        self._faults[n].ended_at, self._faults[n].end_text = t, text

    def _run(self, who: str, t: float, table: dict[str, Any]) -> None:
        self.run_notes.run.update(table)

    def _note(self, who: str, t: float, text: str) -> None:
        self.run_notes.remarks.append((t, who, text))


def read_notes(lines: Iterable[bytes]) -> PipelineObservations:
    """The notes of a run. Raises `CorruptData` for what no client of ours wrote."""
    reader = _Reader()
    for number, note_line in enumerate(lines, 1):
        if not note_line.endswith(b"\n"):
            continue  # torn off with its writer
        try:
            reader.add_line(json.loads(note_line))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise CorruptData(
                f"line {number} is no note: {type(error).__name__}: {error}: {note_line[:120]!r}"
            ) from None
    return reader.run_notes


def _position(fields: Iterable[Any]) -> Position:
    segment, entry, slot = fields
    return int(segment), int(entry), int(slot)
