"""The observations of the clients of one run, in order: the only input of the checkers.

The history is append-only. Times are seconds of one clock. Every value is unique, (writer, counter) with a
checksum, so that a record identifies its origin. A call that did not end, or ended with an error that is not
definite, is *unknown*: it may have taken effect, at any later time, or never.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import xxhash

from ....runtime.interfaces.host import Buffer
from ....runtime.protocol.frames import pack, unpack

FORMAT = 1
HEAD_BYTES = 20
Position = tuple[int, int, int]
"""Segment, entry, slot: a DLSN."""


class Outcome(Enum):
    """The result of a call, as far as the caller can determine."""

    OK = "ok"
    REFUSED = "refused"
    """Definitely not done."""
    UNKNOWN = "unknown"


class Value(NamedTuple):
    """The content of one record: number ``counter``, from 0, of writer session ``writer``."""

    writer: int
    counter: int


def to_payload(value: Value, payload_bytes: int) -> bytes:
    """Return the value as a payload of at least 20 bytes: writer u32, counter u64, digest u64, padding."""
    head = value.writer.to_bytes(4, "little") + value.counter.to_bytes(8, "little")
    padding = bytes([value.counter % 251]) * max(0, payload_bytes - HEAD_BYTES)
    digest = xxhash.xxh3_64_intdigest(head + padding)
    return head + digest.to_bytes(8, "little") + padding


def from_payload(payload: Buffer) -> Value | None:
    """Return the value of a payload; None if no client wrote these bytes."""
    raw = bytes(payload)
    if len(raw) < HEAD_BYTES:
        return None
    digest = xxhash.xxh3_64_intdigest(raw[:12] + raw[HEAD_BYTES:])
    if raw[12:HEAD_BYTES] != digest.to_bytes(8, "little"):
        return None
    return Value(int.from_bytes(raw[:4], "little"), int.from_bytes(raw[4:12], "little"))


@dataclass(slots=True)
class WriteAttempt:
    """One record that was submitted to a writer."""

    value: Value
    begun_at: float
    ended_at: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    position: Position | None = None
    """The position of an acknowledged record."""
    error: str = ""


class ObservedRecord(NamedTuple):
    """One record as a reader received it."""

    position: Position
    sequence_id: int
    txid: int
    value: Value | None
    """None if no client wrote its bytes."""


@dataclass(slots=True)
class Reading:
    """The records that one reader received, in order, from its start position on."""

    reader: str
    begun_at: float
    start: Position | None = None
    """None for the earliest record."""
    records: list[ObservedRecord] = field(default_factory=list)


@dataclass(slots=True)
class RegisterCall:
    """One call on a versioned register of the metadata quorum.

    ``get`` returned ``version`` (0 for a missing key) and ``value``. ``cas`` put ``wrote`` if the version was
    ``expected``. ``succeeded`` is whether it did, and ``version`` and ``value`` are the state afterwards.
    """

    process: str
    key: str
    kind: str
    begun_at: float
    expected: int = 0
    wrote: str = ""
    ended_at: float = float("inf")
    outcome: Outcome = Outcome.UNKNOWN
    succeeded: bool = False
    version: int = 0
    value: str = ""


class RunHistory:
    """All observations of the clients of one run."""

    def __init__(self) -> None:
        self.attempts: list[WriteAttempt] = []
        self.readings: list[Reading] = []
        self.registers: list[RegisterCall] = []
        self.writers = 0

    def new_writer(self) -> int:
        """Return a number for a writer session. Each opening of a writer is a session."""
        self.writers += 1
        return self.writers

    def begin_attempt(self, value: Value, now: float) -> WriteAttempt:
        """Add a record that will be submitted. The caller updates the returned attempt when the call ends."""
        attempt = WriteAttempt(value, now)
        self.attempts.append(attempt)
        return attempt

    def begin_reading(self, reader: str, now: float, start: Position | None = None) -> Reading:
        """Add a reader that was opened."""
        reading = Reading(reader, now, start)
        self.readings.append(reading)
        return reading

    @property
    def acked_count(self) -> int:
        """The number of acknowledged records."""
        return sum(append.outcome is Outcome.OK for append in self.attempts)

    def save(self) -> bytes:
        """Return the whole history as bytes, for later checks."""
        return pack(
            [
                FORMAT,
                [
                    [*a.value, a.begun_at, a.ended_at, a.outcome.value, a.position, a.error]
                    for a in self.attempts
                ],
                [
                    [r.reader, r.begun_at, r.start, [list(record) for record in r.records]]
                    for r in self.readings
                ],
            ]
        )

    @classmethod
    def load(cls, saved: bytes) -> "RunHistory":
        """Return the history in bytes from `save`, which do not contain registers."""
        history = cls()
        number, appends, readings = unpack(saved, "a history")
        assert number == FORMAT, f"a history of format {number}"
        for writer, counter, begun_at, ended_at, outcome, position, error in appends:
            history.attempts.append(
                WriteAttempt(
                    Value(writer, counter),
                    begun_at,
                    ended_at,
                    Outcome(outcome),
                    _optional_position(position),
                    error,
                )
            )
        for reader, begun_at, start, records in readings:
            reading = history.begin_reading(reader, begun_at, _optional_position(start))
            for dlsn, sequence_id, txid, value in records:
                decoded_value = None if value is None else Value(*value)
                reading.records.append(
                    ObservedRecord(_position(dlsn), sequence_id, txid, decoded_value)
                )
        history.writers = max((append.value.writer for append in history.attempts), default=0)
        return history


def _optional_position(fields: Iterable[int] | None) -> Position | None:
    return None if fields is None else _position(fields)


def _position(fields: Iterable[int]) -> Position:
    segment, entry, slot = fields
    return segment, entry, slot
