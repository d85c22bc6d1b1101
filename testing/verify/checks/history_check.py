"""The promises of docs/concepts/guarantees.md, judged over a history. Linear cost: a log gives its own order.

Reading a log reveals its history (positions say what came before what), so no search is needed: Elle's
idea. Every checker is tested with planted anomalies, since one that cannot fail is none.
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
    """A promise was broken; the message names it, and what was seen."""


@dataclass(frozen=True, slots=True)
class LogReport:
    """What was judged."""

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
    alone: Container[int] | None = None,
    ordered_txids: bool = True,
) -> LogReport:
    """Judge a history by ``final``: the whole log as read at the end, from the earliest record on.

    ``alone``: the writers that had the log for themselves, and not through a proxy; None: all.
    ``ordered_txids``: whether txids never decrease. They may in a log that is not ``strict`` if segments are
    linked or several writers give them. Raises `Violation`.
    """
    place_of = _check_final(final, ordered_txids)
    _check_appends(history.appends, final, place_of)
    _check_writers(history.appends, final, place_of, alone)
    _check_real_time(history.appends, place_of)
    place_at = {record.position: place for place, record in enumerate(final)}
    for reading in history.readings:
        _check_reading(reading, final, place_at)
    outcomes = [append.outcome for append in history.appends]
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
    """G1: positions ascend, without a gap; G7: nothing is there twice. The place of each value."""
    place_of: dict[Value, int] = {}
    before: ObservedRecord | None = None
    for place, record in enumerate(final):
        if record.value is None:
            raise Violation(f"phantom: the bytes at {dotted(record.position)} are nobody's")
        if record.value in place_of:
            first = final[place_of[record.value]].position
            raise Violation(
                f"G7 duplicate: {record.value} at {dotted(first)} and {dotted(record.position)}"
            )
        place_of[record.value] = place
        if before is not None:
            _check_step(before, record, ordered_txids)
        before = record
    if final and final[0].sequence_id != 0:
        raise Violation(f"G1 gap: the first record has sequence id {final[0].sequence_id}")
    return place_of


def _check_step(before: ObservedRecord, record: ObservedRecord, ordered_txids: bool) -> None:
    if record.position <= before.position:
        raise Violation(
            f"G1 order: {dotted(record.position)} comes after {dotted(before.position)}"
        )
    if record.sequence_id != before.sequence_id + 1:
        raise Violation(
            f"G1 gap: sequence id {record.sequence_id} at {dotted(record.position)}"
            f" comes after {before.sequence_id} at {dotted(before.position)}"
        )
    (segment, entry, slot), (last_segment, last_entry, last_slot) = record.position, before.position
    if (segment, entry) == (last_segment, last_entry):
        if slot != last_slot + 1:
            raise Violation(
                f"G1 gap: slot {slot} of {segment}.{entry} comes after slot {last_slot}"
            )
    elif slot != 0:
        raise Violation(f"G1 gap: {dotted(record.position)} is the first one read of its entry")
    if ordered_txids and record.txid < before.txid:
        raise Violation(
            f"G1 order: txid {record.txid} at {dotted(record.position)} comes after {before.txid}"
        )


def _check_appends(
    appends: Sequence[WriteAttempt], final: Sequence[ObservedRecord], place_of: dict[Value, int]
) -> None:
    """G3: what was acknowledged is where it was; nothing is there that nobody wrote."""
    known: dict[Value, WriteAttempt] = {}
    for append in appends:
        value = append.value
        assert value not in known, f"the workload wrote {value} twice"
        known[value] = append
        place = place_of.get(value)
        if append.outcome is Outcome.OK:
            assert append.position is not None, "an acknowledged record has a position"
            if place is None:
                raise Violation(
                    f"G3 lost: {value} was acknowledged at {dotted(append.position)}"
                    f" (t={append.ended_at:.3f}) and is not there"
                )
            if final[place].position != append.position:
                raise Violation(
                    f"G3 moved: {value} was acknowledged at {dotted(append.position)}"
                    f" and lies at {dotted(final[place].position)}"
                )
        elif append.outcome is Outcome.REFUSED and place is not None:
            raise Violation(
                f"G7: {value} was refused for certain ({append.error})"
                f" and lies at {dotted(final[place].position)}"
            )
    for value, place in place_of.items():
        if value not in known:
            raise Violation(
                f"phantom: {value} at {dotted(final[place].position)} was never written"
            )


def _check_writers(
    appends: Sequence[WriteAttempt],
    final: Sequence[ObservedRecord],
    place_of: dict[Value, int],
    alone: Container[int] | None,
) -> None:
    """G1, G7: of each writer a prefix, in order. G4: once another one's records follow, none of its."""
    missing: dict[int, Value] = {}
    last_place: dict[int, int] = {}
    for append in appends:
        if append.outcome is Outcome.REFUSED:
            continue
        writer = append.value.writer
        place = place_of.get(append.value)
        if place is None:
            missing.setdefault(writer, append.value)
            continue
        if writer in missing:
            raise Violation(
                f"G1 hole: {append.value} is there, {missing[writer]}, written before it, is not"
            )
        if place < last_place.get(writer, -1):
            raise Violation(f"G1 order: {append.value} lies before what its writer wrote before it")
        last_place[writer] = place
    current = -1
    seen: dict[int, None] = {}
    for record in final:
        assert record.value is not None
        writer = record.value.writer
        if writer == current:
            continue
        if writer in seen and (alone is None or writer in alone):
            raise Violation(
                f"G4: writer {writer} has a record at {dotted(record.position)},"
                f" after those of writer {current}, which took over from it"
            )
        seen[writer] = None
        current = writer


def _check_real_time(appends: Sequence[WriteAttempt], place_of: dict[Value, int]) -> None:
    """G3, G4: what was begun after another one's acknowledgement lies after it."""
    present = [(append, place_of[append.value]) for append in appends if append.value in place_of]
    by_begin = sorted(present, key=lambda item: item[0].begun_at)
    by_end = sorted(
        (item for item in present if item[0].outcome is Outcome.OK),
        key=lambda item: item[0].ended_at,
    )
    newest, newest_place, at = None, -1, 0
    for append, place in by_begin:
        while at < len(by_end) and by_end[at][0].ended_at < append.begun_at:
            if by_end[at][1] > newest_place:
                newest, newest_place = by_end[at]
            at += 1
        if newest is not None and place < newest_place:
            raise Violation(
                f"G4: {append.value} was begun at {append.begun_at:.3f} and lies before"
                f" {newest.value}, acknowledged at {newest.ended_at:.3f}"
            )


def _check_reading(
    reading: Reading, final: Sequence[ObservedRecord], place_at: dict[Position, int]
) -> None:
    """G5: every reader got a slice of the one log, from where it began, without a gap."""
    expected: int | None = None
    if reading.start is None:
        expected = 0
    for record in reading.records:
        place = place_at.get(record.position)
        who = f"reader {reading.reader} (t={reading.begun_at:.3f})"
        if place is None:
            raise Violation(
                f"G5 lost: {who} got {record.value} at {dotted(record.position)}, where nothing is"
            )
        if final[place].value != record.value:
            raise Violation(
                f"G5 changed: {who} got {record.value} at {dotted(record.position)},"
                f" where {final[place].value} is"
            )
        if expected is None and reading.start is not None:
            expected = place
            if record.position < reading.start or (
                place > 0 and final[place - 1].position >= reading.start
            ):
                raise Violation(
                    f"G5 gap: {who} began at {dotted(reading.start)} and first got"
                    f" {dotted(record.position)}"
                )
        if place != expected:
            raise Violation(
                f"G5 gap: {who} got {dotted(record.position)},"
                f" {place - (expected or 0)} records from where it was"
            )
        if record.sequence_id != final[place].sequence_id:
            raise Violation(
                f"G5 changed: {who} got sequence id {record.sequence_id} at"
                f" {dotted(record.position)}, where {final[place].sequence_id} is"
            )
        expected = place + 1


def dotted(position: Position) -> str:
    """``1.12.3``"""
    return ".".join(map(str, position))
