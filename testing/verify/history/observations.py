"""Write the observations of client processes to files, and read those of a whole run.

A run with half a million records must cost little, and its observations must survive clients that are killed.
So each client appends short lines to its own file, with one write per line. Records are stored as *pieces*:
consecutive records of one writer in consecutive slots of one entry. The observations of a run are the
concatenated files. Times are seconds of the machine's monotonic clock, which all processes share.

A line is a JSON array, ``[who, kind, ...]``. An incomplete last line, of a writer that was killed, is
ignored::

    begin     format, pid, t                              of a client process, or of the runner
    open      session, log, takeover, t0, t1              a writer was opened, before its first record
    ack       session, first, t0, t1, [[segment, entry, slot, count], ...]
                                                          records from counter ``first`` on, in order; the
                                                          first was submitted at t0, the last acked at t1
    fail      session, first, count, t0, t1, outcome, error      definitely refused, or unknown
    end       session, submitted, t, error                the total number of records that were submitted
    read      reading, log, t, start or null              a reader was opened (null for the earliest record)
    got       reading, t, [[segment, entry, slot, count, sequence id, txid, session, counter], ...]
                                                          session -1 for bytes that no client wrote
    whole     reading, t                                  it reached the end that the log had at its opening
    cut       log, t0, t1, [segment, entry, slot], outcome       truncation; earlier records may be deleted
    ask       n, key, kind, t, expected, wrote            a call on a register begins
    answer    n, t, outcome, succeeded, version, value    it ended; without this line it is unknown
    try       what, t0, t1, outcome                       of an unauthorized client (done, refused or failed)
    mode      mode, t0, t1                                authorization mode, requested and confirmed
    fault     n, kind, targets, t, words                  from the runner
    over      n, t, words
    note      t, words
    run       t, a table                                  from the runner, at start and end of the load

Sessions are numbered over all clients of a run. Readings and calls are numbered within the life of a process.
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
"""The result of an attempt of an unauthorized client."""


class Piece(NamedTuple):
    """Records of one writer session in consecutive slots of one entry, with one transaction ID."""

    segment: int
    entry: int
    slot: int
    records: int
    sequence_id: int
    """Of the first record."""
    txid: int
    writer: int
    """The session; -1 for bytes that no client wrote."""
    counter: int
    """Of the first record."""


@dataclass(slots=True)
class ObservedSession:
    """A writer, from its opening to its end."""

    number: int
    log: str
    who: str
    opened_at: float
    submitted: int | None = None
    """None if its process was killed before it reported the number."""
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
    """As (segment, entry, slot, count)."""

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(run[3] for run in self.runs)


@dataclass(slots=True)
class Failed:
    """Records whose call failed."""

    session: int
    first: int
    count: int
    begun_at: float
    ended_at: float
    outcome: Outcome
    error: str


@dataclass(slots=True)
class ReadPart:
    """The records that one reader received, in order, from its start position on."""

    who: str
    log: str
    begun_at: float
    start: Position | None = None
    pieces: list[Piece] = field(default_factory=list)
    is_complete: bool = False


@dataclass(slots=True)
class RequestedTruncation:
    """A truncation request: records before ``to`` may be deleted."""

    log: str
    begun_at: float
    ended_at: float
    to: Position
    outcome: Outcome


@dataclass(slots=True)
class UnauthorizedAttempt:
    """An attempt of an unauthorized client."""

    who: str
    what: str
    begun_at: float
    ended_at: float
    outcome: str
    """`DONE`, `REFUSED` because of a missing right, or `FAILED`."""


@dataclass(slots=True)
class ModeChange:
    """A change of the authorization mode."""

    mode: str
    asked_at: float
    answered_at: float


@dataclass(slots=True)
class ObservedFault:
    """A fault, as the runner injected it."""

    number: int
    kind: str
    targets: list[str]
    begun_at: float
    text: str
    ended_at: float = NEVER
    end_text: str = ""


@dataclass(slots=True)
class LogObservations:
    """All observations of one log."""

    name: str
    sessions: dict[int, ObservedSession] = field(default_factory=dict)
    acked: list[Acked] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    readings: list[ReadPart] = field(default_factory=list)
    truncations: list[RequestedTruncation] = field(default_factory=list)


@dataclass(slots=True)
class PipelineObservations:
    """All observations of a run."""

    logs: dict[str, LogObservations] = field(default_factory=dict)
    registers: list[RegisterCall] = field(default_factory=list)
    faults: list[ObservedFault] = field(default_factory=list)
    attempts: list[UnauthorizedAttempt] = field(default_factory=list)
    modes: list[ModeChange] = field(default_factory=list)
    """In order."""
    remarks: list[tuple[float, str, str]] = field(default_factory=list)
    """As (t, client, text)."""
    clients: dict[str, int] = field(default_factory=dict)
    """How often each client was started."""
    run: dict[str, Any] = field(default_factory=dict)
    """Values from the runner: ``scenario``, ``seed``, ``begun_at``, ``ended_at`` and limits."""

    def log(self, name: str) -> LogObservations:
        """Return the observations of one log, creating them if there are none yet."""
        return self.logs.setdefault(name, LogObservations(name))


class ObservationWriter:
    """Writes observations: each call passes one complete line to ``write``."""

    def __init__(self, who: str, write: Callable[[bytes], object]) -> None:
        self.who = who
        self._write = write

    def record(self, kind: str, *fields: Any) -> None:
        """Write one line.

        The caller rounds times to 0.1 ms: starts down, and ends up.
        """
        line = json.dumps([self.who, kind, *fields], separators=(",", ":"))
        self._write(line.encode() + b"\n")


class _Reader:
    """Converts lines to `PipelineObservations`."""

    def __init__(self) -> None:
        self.observations = PipelineObservations()
        self._sessions: dict[int, LogObservations] = {}
        self._readings: dict[tuple[str, int], ReadPart] = {}
        self._calls: dict[tuple[str, int], RegisterCall] = {}
        self._faults: dict[int, ObservedFault] = {}

    def add_line(self, line: Sequence[Any]) -> None:
        who, kind, *fields = line
        getattr(self, f"_{kind}")(who, *fields)

    def _begin(self, who: str, number: int, pid: int, t: float) -> None:
        if number != FORMAT:
            raise CorruptData(f"observations of format {number}; this version reads {FORMAT}")
        self.observations.clients[who] = self.observations.clients.get(who, 0) + 1
        for number_key in [number_key for number_key in self._readings if number_key[0] == who]:
            del self._readings[
                number_key
            ]  # the numbers of readings and calls start again in each life
        for number_key in [number_key for number_key in self._calls if number_key[0] == who]:
            del self._calls[number_key]

    def _open(self, who: str, session: int, log: str, takeover: bool, t0: float, t1: float) -> None:
        observations = self.observations.log(log)
        if session in self._sessions:
            raise CorruptData(f"session {session} was opened twice")
        observations.sessions[session] = ObservedSession(session, log, who, t1)
        self._sessions[session] = observations

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
        observed_session = self._sessions[session].sessions[session]
        observed_session.submitted, observed_session.ended_at, observed_session.error = (
            submitted,
            t,
            error,
        )

    def _read(self, who: str, reading: int, log: str, t: float, start: Any) -> None:
        part = ReadPart(who, log, t, _position(start) if start is not None else None)
        self._readings[who, reading] = part
        self.observations.log(log).readings.append(part)

    def _got(self, who: str, reading: int, t: float, pieces: Any) -> None:
        self._readings[who, reading].pieces += [Piece(*map(int, piece)) for piece in pieces]

    def _whole(self, who: str, reading: int, t: float) -> None:
        self._readings[who, reading].is_complete = True

    def _cut(self, who: str, log: str, t0: float, t1: float, to: Any, outcome: str) -> None:
        self.observations.log(log).truncations.append(
            RequestedTruncation(log, t0, t1, _position(to), Outcome(outcome))
        )

    def _ask(
        self, who: str, n: int, key: str, kind: str, t: float, expected: int, wrote: str
    ) -> None:
        call = RegisterCall(who, key, kind, t, expected, wrote)
        self._calls[who, n] = call
        self.observations.registers.append(call)

    def _answer(
        self, who: str, n: int, t: float, outcome: str, succeeded: bool, version: int, value: str
    ) -> None:
        call = self._calls[who, n]
        call.outcome = Outcome(outcome)
        if call.outcome is not Outcome.UNKNOWN:
            call.ended_at = t  # an unknown one may still take effect
        call.succeeded, call.version, call.value = succeeded, version, value

    def _try(self, who: str, what: str, t0: float, t1: float, outcome: str) -> None:
        self.observations.attempts.append(UnauthorizedAttempt(who, what, t0, t1, outcome))

    def _mode(self, who: str, mode: str, t0: float, t1: float) -> None:
        self.observations.modes.append(ModeChange(mode, t0, t1))

    def _fault(self, who: str, n: int, kind: str, targets: Any, t: float, text: str) -> None:
        fault = ObservedFault(n, kind, [str(target) for target in targets], t, text)
        self._faults[n] = fault
        self.observations.faults.append(fault)

    def _over(self, who: str, n: int, t: float, text: str) -> None:
        self._faults[n].ended_at, self._faults[n].end_text = t, text

    def _run(self, who: str, t: float, table: dict[str, Any]) -> None:
        self.observations.run.update(table)

    def _note(self, who: str, t: float, text: str) -> None:
        self.observations.remarks.append((t, who, text))


def read_observations(lines: Iterable[bytes]) -> PipelineObservations:
    """Return the observations of a run.

    Raises:
        CorruptData: A line was not written by a client.
    """
    reader = _Reader()
    for number, note_line in enumerate(lines, 1):
        if not note_line.endswith(b"\n"):
            continue  # its writer was killed
        try:
            reader.add_line(json.loads(note_line))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise CorruptData(
                f"line {number} is not an observation: {type(error).__name__}: {error}: {note_line[:120]!r}"
            ) from None
    return reader.observations


def _position(fields: Iterable[Any]) -> Position:
    segment, entry, slot = fields
    return int(segment), int(entry), int(slot)
