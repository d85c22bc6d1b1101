"""Check the guarantees of docs/concepts/guarantees.md over a history, in linear time.

The positions in a log show the order of its records, so no search is needed (the idea of Elle). Every checker
is tested with injected anomalies, because a checker that cannot fail proves nothing.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from ..history.run_history import (
    ObservedRecord,
    Outcome,
    Position,
    Reading,
    RunHistory,
    Value,
    WriteAttempt,
)


class Violation(Exception):
    """A guarantee was violated; the message names the guarantee and the observation."""


@dataclass(frozen=True, slots=True)
class LogReport:
    """The numbers of checked items."""

    records: int
    acked: int
    unknown: int
    refused: int
    writers: int
    readings: int
    read: int


def check_log(
    history: RunHistory,
    final: Sequence[ObservedRecord],
    *,
    exclusive_writers: Container[int] | None = None,
    ordered_txids: bool = True,
) -> LogReport:
    """Check a history.

    Args:
        history: The observations.
        final: The whole log, as read at the end from the earliest record on.
        exclusive_writers: The writers that owned the log exclusively, not through a proxy; None for all.
        ordered_txids: Whether transaction IDs never decrease. In a log that is not ``strict``, they may
            decrease if segments are linked or several writers assign them.

    Raises:
        Violation: A guarantee was violated.
    """
    index_by_value = _check_final(final, ordered_txids)
    _check_appends(history.attempts, final, index_by_value)
    _check_writers(history.attempts, final, index_by_value, exclusive_writers)
    _check_real_time(history.attempts, index_by_value)
    index_by_position = {record.position: index for index, record in enumerate(final)}
    for reading in history.readings:
        _check_reading(reading, final, index_by_position)
    outcomes = [attempt.outcome for attempt in history.attempts]
    return LogReport(
        records=len(final),
        acked=outcomes.count(Outcome.OK),
        unknown=outcomes.count(Outcome.UNKNOWN),
        refused=outcomes.count(Outcome.REFUSED),
        writers=history.writers,
        readings=len(history.readings),
        read=sum(len(reading.records) for reading in history.readings),
    )


def _check_final(final: Sequence[ObservedRecord], ordered_txids: bool) -> dict[Value, int]:
    """Check that positions increase without a gap (G1) and records are unique (G7); return indexes by
    value.
    """
    index_by_value: dict[Value, int] = {}
    previous: ObservedRecord | None = None
    for index, record in enumerate(final):
        if record.value is None:
            raise Violation(
                f"phantom: the bytes at {dotted(record.position)} were written by no client"
            )
        if record.value in index_by_value:
            first = final[index_by_value[record.value]].position
            raise Violation(
                f"G7 duplicate: {record.value} at {dotted(first)} and {dotted(record.position)}"
            )
        index_by_value[record.value] = index
        if previous is not None:
            _check_step(previous, record, ordered_txids)
        previous = record
    if final and final[0].sequence_id != 0:
        raise Violation(f"G1 gap: the first record has sequence id {final[0].sequence_id}")
    return index_by_value


def _check_step(previous: ObservedRecord, record: ObservedRecord, ordered_txids: bool) -> None:
    if record.position <= previous.position:
        raise Violation(
            f"G1 order: {dotted(record.position)} comes after {dotted(previous.position)}"
        )
    if record.sequence_id != previous.sequence_id + 1:
        raise Violation(
            f"G1 gap: sequence id {record.sequence_id} at {dotted(record.position)}"
            f" comes after {previous.sequence_id} at {dotted(previous.position)}"
        )
    (segment, entry, slot), (last_segment, last_entry, last_slot) = (
        record.position,
        previous.position,
    )
    if (segment, entry) == (last_segment, last_entry):
        if slot != last_slot + 1:
            raise Violation(
                f"G1 gap: slot {slot} of {segment}.{entry} comes after slot {last_slot}"
            )
    elif slot != 0:
        raise Violation(f"G1 gap: {dotted(record.position)} is the first one read of its entry")
    if ordered_txids and record.txid < previous.txid:
        raise Violation(
            f"G1 order: txid {record.txid} at {dotted(record.position)} comes after {previous.txid}"
        )


def _check_appends(
    attempts: Sequence[WriteAttempt],
    final: Sequence[ObservedRecord],
    index_by_value: dict[Value, int],
) -> None:
    """Check that acknowledged records are at their positions (G3), and all records were written."""
    attempt_by_value: dict[Value, WriteAttempt] = {}
    for attempt in attempts:
        value = attempt.value
        assert value not in attempt_by_value, f"the workload wrote {value} twice"
        attempt_by_value[value] = attempt
        index = index_by_value.get(value)
        if attempt.outcome is Outcome.OK:
            assert attempt.position is not None, "an acknowledged record has a position"
            if index is None:
                raise Violation(
                    f"G3 lost: {value} was acknowledged at {dotted(attempt.position)}"
                    f" (t={attempt.ended_at:.3f}) and is missing"
                )
            if final[index].position != attempt.position:
                raise Violation(
                    f"G3 moved: {value} was acknowledged at {dotted(attempt.position)}"
                    f" and is at {dotted(final[index].position)}"
                )
        elif attempt.outcome is Outcome.REFUSED and index is not None:
            raise Violation(
                f"G7: {value} was definitely refused ({attempt.error})"
                f" and is at {dotted(final[index].position)}"
            )
    for value, index in index_by_value.items():
        if value not in attempt_by_value:
            raise Violation(
                f"phantom: {value} at {dotted(final[index].position)} was never written"
            )


def _check_writers(
    attempts: Sequence[WriteAttempt],
    final: Sequence[ObservedRecord],
    index_by_value: dict[Value, int],
    exclusive_writers: Container[int] | None,
) -> None:
    """Check that the log has a prefix of each writer's records, in order (G1, G7).

    After records of another writer, no further records of the earlier writer follow (G4).
    """
    first_missing: dict[int, Value] = {}
    last_index: dict[int, int] = {}
    for attempt in attempts:
        if attempt.outcome is Outcome.REFUSED:
            continue
        writer = attempt.value.writer
        index = index_by_value.get(attempt.value)
        if index is None:
            first_missing.setdefault(writer, attempt.value)
            continue
        if writer in first_missing:
            raise Violation(
                f"G1 hole: {attempt.value} is there, {first_missing[writer]}, written before it, is missing"
            )
        if index < last_index.get(writer, -1):
            raise Violation(
                f"G1 order: {attempt.value} is before records that its writer wrote earlier"
            )
        last_index[writer] = index
    current_writer = -1
    seen_writers: dict[int, None] = {}
    for record in final:
        assert record.value is not None
        writer = record.value.writer
        if writer == current_writer:
            continue
        if writer in seen_writers and (exclusive_writers is None or writer in exclusive_writers):
            raise Violation(
                f"G4: writer {writer} has a record at {dotted(record.position)},"
                f" after those of writer {current_writer}, which took over from it"
            )
        seen_writers[writer] = None
        current_writer = writer


def _check_real_time(attempts: Sequence[WriteAttempt], index_by_value: dict[Value, int]) -> None:
    """Check that a record begun after an acknowledgement follows the acknowledged record (G3, G4)."""
    present = [
        (attempt, index_by_value[attempt.value])
        for attempt in attempts
        if attempt.value in index_by_value
    ]
    by_begin = sorted(present, key=lambda item: item[0].begun_at)
    by_end = sorted(
        (item for item in present if item[0].outcome is Outcome.OK),
        key=lambda item: item[0].ended_at,
    )
    newest_acked, newest_index, end_index = None, -1, 0
    for attempt, index in by_begin:
        while end_index < len(by_end) and by_end[end_index][0].ended_at < attempt.begun_at:
            if by_end[end_index][1] > newest_index:
                newest_acked, newest_index = by_end[end_index]
            end_index += 1
        if newest_acked is not None and index < newest_index:
            raise Violation(
                f"G4: {attempt.value} was begun at {attempt.begun_at:.3f} and is before"
                f" {newest_acked.value}, acknowledged at {newest_acked.ended_at:.3f}"
            )


def _check_reading(
    reading: Reading, final: Sequence[ObservedRecord], index_by_position: dict[Position, int]
) -> None:
    """Check that every reader received a part of the log without a gap, from its start position on (G5)."""
    expected_index: int | None = None
    if reading.start is None:
        expected_index = 0
    for record in reading.records:
        index = index_by_position.get(record.position)
        who = f"reader {reading.reader} (t={reading.begun_at:.3f})"
        if index is None:
            raise Violation(
                f"G5 lost: {who} got {record.value} at {dotted(record.position)}, where no record is"
            )
        if final[index].value != record.value:
            raise Violation(
                f"G5 changed: {who} got {record.value} at {dotted(record.position)},"
                f" where {final[index].value} is"
            )
        if expected_index is None and reading.start is not None:
            expected_index = index
            if record.position < reading.start or (
                index > 0 and final[index - 1].position >= reading.start
            ):
                raise Violation(
                    f"G5 gap: {who} began at {dotted(reading.start)} and first got"
                    f" {dotted(record.position)}"
                )
        if index != expected_index:
            raise Violation(
                f"G5 gap: {who} got {dotted(record.position)},"
                f" {index - (expected_index or 0)} records from its last position"
            )
        if record.sequence_id != final[index].sequence_id:
            raise Violation(
                f"G5 changed: {who} got sequence id {record.sequence_id} at"
                f" {dotted(record.position)}, where {final[index].sequence_id} is"
            )
        expected_index = index + 1


def dotted(position: Position) -> str:
    """Return a position as text, such as ``1.12.3``."""
    return ".".join(map(str, position))
