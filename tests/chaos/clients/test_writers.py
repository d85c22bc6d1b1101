"""What clients note: runs that hold exactly what was seen, outcomes never better than they were."""

import json
from typing import Any

from distributedlog.log.format.dlsn import DLSN
from distributedlog.log.format.record import LogRecord, Origin, ReadRecord
from distributedlog.runtime.interfaces.errors import (
    DistributedLogError,
    WriteCancelled,
    WriteFailed,
)
from distributedlog.testing.chaos.clients.client_context import ClientLife
from distributedlog.testing.chaos.clients.readers import pieces
from distributedlog.testing.chaos.clients.writers import ChaosWriterSession, consecutive
from distributedlog.testing.verify.history.observations import ObservationWriter, Piece
from distributedlog.testing.verify.history.run_history import Value, to_payload


def test_positions_stand_in_runs_by_entry() -> None:
    positions = [DLSN(1, 0, 3), DLSN(1, 0, 4), DLSN(1, 1, 0), DLSN(2, 0, 0), DLSN(2, 0, 1)]

    assert consecutive(positions) == [(1, 0, 3, 2), (1, 1, 0, 1), (2, 0, 0, 2)]


def read(slot: int, value: Value, txid: int = 5, payload: bytes | None = None) -> LogRecord:
    body = to_payload(value, 40) if payload is None else payload
    return ReadRecord(txid, body, Origin(1, 7, 100), slot)


def test_records_that_were_read_stand_in_runs_by_writer_and_txid() -> None:
    records = [
        read(0, Value(3, 10)),
        read(1, Value(3, 11)),
        read(2, Value(3, 12), txid=6),
        read(3, Value(4, 0), txid=6),
        read(4, Value(4, 2), txid=6),  # a hole in the counters is not smoothed over
    ]

    assert pieces(records) == [
        Piece(1, 7, 0, 2, 100, 5, 3, 10),
        Piece(1, 7, 2, 1, 102, 6, 3, 12),
        Piece(1, 7, 3, 1, 103, 6, 4, 0),
        Piece(1, 7, 4, 1, 104, 6, 4, 2),
    ]


def test_bytes_that_nobody_wrote_are_told_one_by_one() -> None:
    damaged = bytearray(to_payload(Value(3, 10), 40))
    damaged[30] ^= 1
    records = [read(0, Value(3, 10), payload=bytes(damaged)), read(1, Value(3, 11))]

    assert [piece.writer for piece in pieces(records)] == [-1, 3]


def session() -> tuple[ChaosWriterSession, list[list[Any]]]:
    """A session without a writer, and what it notes."""
    lines: list[list[Any]] = []
    observations = ObservationWriter("w", lambda line: lines.append(json.loads(line)))
    life = ClientLife("w", "writer", {}, 7, {}, 1, observations)
    return ChaosWriterSession(life, None, 7), lines  # type: ignore[arg-type]


def test_outcomes_of_a_tick_are_noted_as_they_are() -> None:
    made, lines = session()
    unknown, refused = WriteFailed("no answer"), WriteCancelled("not taken")
    assert not unknown.definite
    assert refused.definite
    outcomes: list[DLSN | DistributedLogError] = [
        DLSN(1, 0, 0), DLSN(1, 0, 1), unknown, unknown, refused, refused, refused,
    ]  # fmt: skip

    made._note_outcomes(20, 1.5, outcomes)

    kinds = [(line[1], line[3], line[4:]) for line in lines]
    assert kinds[0][:2] == ("ack", 20)
    assert lines[0][-1] == [[1, 0, 0, 2]]
    assert (lines[1][1], lines[1][3:5], lines[1][7]) == ("fail", [22, 2], "unknown")
    assert (lines[2][1], lines[2][3:5], lines[2][7]) == ("fail", [24, 3], "refused")
    assert made.failure is unknown
