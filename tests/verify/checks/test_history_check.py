"""Each rule of the log checker: a sound history passes, a planted anomaly is found and named."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from distributedlog.testing.verify.checks.history_check import Violation, check_log
from distributedlog.testing.verify.history.run_history import (
    ObservedRecord,
    Outcome,
    RunHistory,
    Value,
)


def sound(
    records: int = 60, writers: int = 3, slots: int = 4
) -> tuple[RunHistory, list[ObservedRecord]]:
    """Writers one after the other, entries of ``slots`` records, a segment a writer; two readers."""
    history = RunHistory()
    final: list[ObservedRecord] = []
    now = 0.0
    for _ in range(writers):
        writer = history.new_writer()
        for counter in range(records // writers):
            now += 0.1
            append = history.begin_attempt(Value(writer, counter), now)
            append.ended_at = now + 0.35
            append.outcome = Outcome.OK
            append.position = (writer, counter // slots, counter % slots)
            final.append(ObservedRecord(append.position, len(final), len(final), append.value))
        now += 1.0
        late = history.begin_attempt(Value(writer, records // writers), now)  # unknown, and lost
        late.error = "WriteFailed"
        now += 1.0
    whole = history.begin_reading("whole", 0.0)
    whole.records += final
    part = history.begin_reading("part", 5.0, final[7].position)
    part.records += final[7:20]
    return history, final


Change = Callable[[RunHistory, list[ObservedRecord]], object]


def lose(history: RunHistory, final: list[ObservedRecord]) -> None:
    del final[30]
    history.readings.clear()
    _renumber(final)


def lose_the_last(history: RunHistory, final: list[ObservedRecord]) -> None:
    final.pop()
    history.readings.clear()


def swap(history: RunHistory, final: list[ObservedRecord]) -> None:
    a, b = final[30], final[31]
    final[30], final[31] = a._replace(value=b.value), b._replace(value=a.value)
    history.readings.clear()


def duplicate(history: RunHistory, final: list[ObservedRecord]) -> None:
    final.append(
        final[-1]._replace(position=(9, 0, 0), sequence_id=len(final), value=final[3].value)
    )


def phantom(history: RunHistory, final: list[ObservedRecord]) -> None:
    final.append(final[-1]._replace(position=(9, 0, 0), sequence_id=len(final), value=Value(77, 0)))


def foreign_bytes(history: RunHistory, final: list[ObservedRecord]) -> None:
    final[5] = final[5]._replace(value=None)


def refused_and_there(history: RunHistory, final: list[ObservedRecord]) -> None:
    history.attempts[-1].outcome = Outcome.REFUSED
    value = history.attempts[-1].value
    final.append(final[-1]._replace(position=(9, 0, 0), sequence_id=len(final), value=value))


def hole_of_a_writer(history: RunHistory, final: list[ObservedRecord]) -> None:
    """An unknown one is missing, a later one of its writer is there."""
    history.attempts[5].outcome = Outcome.UNKNOWN
    del final[5]
    history.readings.clear()
    for append in history.attempts:
        append.position = None
    _renumber(final)
    where = {record.value: record.position for record in final}
    for append in history.attempts:
        append.position = where.get(append.value)


def old_writer_returns(history: RunHistory, final: list[ObservedRecord]) -> None:
    """An unknown record of a fenced writer turns up after its successor's."""
    value = Value(1, 20)
    final.append(final[-1]._replace(position=(9, 0, 0), sequence_id=len(final), value=value))


def begun_later_lies_before(history: RunHistory, final: list[ObservedRecord]) -> None:
    """A writer that was fenced is acknowledged after its successor was, and lies before it."""
    history.attempts[10].begun_at = 500.0
    history.attempts[10].ended_at = 501.0


def gap_in_sequence_ids(history: RunHistory, final: list[ObservedRecord]) -> None:
    final[40:] = [record._replace(sequence_id=record.sequence_id + 1) for record in final[40:]]
    history.readings.clear()


def gap_at_the_start(history: RunHistory, final: list[ObservedRecord]) -> None:
    final[:] = [record._replace(sequence_id=record.sequence_id + 1) for record in final]
    history.readings.clear()


def gap_in_slots(history: RunHistory, final: list[ObservedRecord]) -> None:
    for place in (2, 3):
        segment, entry, slot = final[place].position
        position = (segment, entry, slot + 1)
        final[place] = final[place]._replace(position=position)
        next(a for a in history.attempts if a.value == final[place].value).position = position
    history.readings.clear()


def positions_go_back(history: RunHistory, final: list[ObservedRecord]) -> None:
    final[30] = final[30]._replace(position=(1, 0, 0))


def txids_go_back(history: RunHistory, final: list[ObservedRecord]) -> None:
    final[30] = final[30]._replace(txid=3)


def reader_skips(history: RunHistory, final: list[ObservedRecord]) -> None:
    del history.readings[0].records[12]


def reader_repeats(history: RunHistory, final: list[ObservedRecord]) -> None:
    history.readings[0].records.insert(12, history.readings[0].records[11])


def reader_starts_late(history: RunHistory, final: list[ObservedRecord]) -> None:
    del history.readings[0].records[0]


def reader_starts_after_its_position(history: RunHistory, final: list[ObservedRecord]) -> None:
    del history.readings[1].records[0]


def reader_saw_other_bytes(history: RunHistory, final: list[ObservedRecord]) -> None:
    records = history.readings[0].records
    records[12] = records[12]._replace(value=Value(1, 999))


def reader_saw_what_vanished(history: RunHistory, final: list[ObservedRecord]) -> None:
    last = history.readings[0].records[-1]
    history.readings[0].records.append(last._replace(position=(8, 8, 8), sequence_id=60))


def moved(history: RunHistory, final: list[ObservedRecord]) -> None:
    history.attempts[10].position = (1, 99, 0)


def _renumber(final: list[ObservedRecord]) -> None:
    """Close the gap in sequence ids and slots, so that only the loss itself is to be seen."""
    for place, record in enumerate(final):
        segment, _, _ = record.position
        first = next(i for i, other in enumerate(final) if other.position[0] == segment)
        offset = place - first
        final[place] = record._replace(
            sequence_id=place, txid=place, position=(segment, offset // 4, offset % 4)
        )


ANOMALIES: list[tuple[Change, str]] = [
    (lose, "G3 (lost|moved)"),
    (lose_the_last, "G3 lost"),
    (swap, "G3 moved"),
    (duplicate, "G7 duplicate"),
    (phantom, "phantom.*never written"),
    (foreign_bytes, "phantom.*no client"),
    (refused_and_there, "G7.*refused"),
    (hole_of_a_writer, "G1 hole"),
    (old_writer_returns, "G4: writer 1"),
    (begun_later_lies_before, "G4: .* was begun"),
    (gap_in_sequence_ids, "G1 gap: sequence"),
    (gap_at_the_start, "G1 gap: the first"),
    (gap_in_slots, "G1 gap: slot"),
    (positions_go_back, "G1 order"),
    (txids_go_back, "G1 order: txid"),
    (reader_skips, "G5 gap"),
    (reader_repeats, "G5 gap"),
    (reader_starts_late, "G5 gap"),
    (reader_starts_after_its_position, "G5 gap"),
    (reader_saw_other_bytes, "G5 changed"),
    (reader_saw_what_vanished, "G5 lost"),
    (moved, "G3 moved"),
]


def test_a_sound_history_passes() -> None:
    history, final = sound()

    report = check_log(history, final)

    assert (report.records, report.acked, report.unknown) == (60, 60, 3)
    assert report.read == 73


@pytest.mark.parametrize(("change", "message"), ANOMALIES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_planted_anomaly_is_found(change: Change, message: str) -> None:
    history, final = sound()
    change(history, final)

    with pytest.raises(Violation, match=message):
        check_log(history, final)


def test_an_unknown_record_may_be_there_once_at_the_end_of_its_writer() -> None:
    """G7."""
    history, final = sound()
    late = history.attempts[-1]
    assert late.outcome is Outcome.UNKNOWN
    record = replace_last(final, late.value)

    check_log(history, [*final, record])


def replace_last(final: list[ObservedRecord], value: Value) -> ObservedRecord:
    segment, entry, _ = final[-1].position
    return ObservedRecord((segment, entry + 1, 0), len(final), len(final), value)


def test_an_empty_log_is_sound() -> None:
    assert check_log(RunHistory(), []).records == 0


class CountedInt(int):
    """A number that counts its comparisons and hashes, which are what a search for it costs."""

    used = 0

    def __hash__(self) -> int:
        CountedInt.used += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        CountedInt.used += 1
        return super().__eq__(other)

    def __lt__(self, other: int) -> bool:
        CountedInt.used += 1
        return super().__lt__(other)

    def __le__(self, other: int) -> bool:
        CountedInt.used += 1
        return super().__le__(other)


def comparisons(records: int) -> int:
    history, final = sound(records)
    for attempt in history.attempts:
        attempt.value = attempt.value._replace(counter=CountedInt(attempt.value.counter))
    for index, (position, sequence_id, txid, value) in enumerate(final):
        assert value is not None
        segment, entry, slot = position
        final[index] = ObservedRecord(
            (segment, CountedInt(entry), slot),
            sequence_id,
            txid,
            value._replace(counter=CountedInt(value.counter)),
        )
    CountedInt.used = 0
    check_log(history, final)
    return CountedInt.used


def test_twice_the_records_take_twice_the_comparisons() -> None:
    few, many = comparisons(300), comparisons(600)

    assert 300 < few < many <= 2 * few


def test_the_workload_must_not_write_a_value_twice() -> None:
    history, final = sound()
    history.attempts.append(replace(history.attempts[0]))

    with pytest.raises(AssertionError, match="twice"):
        check_log(history, final)
