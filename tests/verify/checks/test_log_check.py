"""The checker over notes: finds what check_log finds, agrees with it on lies, counts losses."""

import random
from collections.abc import Iterable

import pytest

from distributedlog.testing.verify.checks.history_check import Violation, check_log
from distributedlog.testing.verify.checks.log_check import LogVerdict, check_log_observations
from distributedlog.testing.verify.history.observations import (
    Acked,
    Failed,
    LogObservations,
    ObservedSession,
    Piece,
    ReadPart,
    RequestedTruncation,
)
from distributedlog.testing.verify.history.run_history import (
    ObservedRecord,
    Outcome,
    RunHistory,
    Value,
    WriteAttempt,
)
from tests.verify.checks.test_history_check import ANOMALIES, Change, replace_last, sound


def pieces(records: Iterable[ObservedRecord], longest: int = 3) -> list[Piece]:
    """Records as a reader notes them; broken up more often than need be, too."""
    found: list[Piece] = []
    for record in records:
        writer, counter = record.value if record.value is not None else Value(-1, 0)
        if found and found[-1].records < longest and found[-1].writer >= 0:
            last = found[-1]
            n = last.records
            position = (last.segment, last.entry, last.slot + n)
            same = (last.writer, last.counter + n, last.sequence_id + n, last.txid)
            if (position, same) == (
                record.position,
                (writer, counter, record.sequence_id, record.txid),
            ):
                found[-1] = last._replace(records=n + 1)
                continue
        found.append(Piece(*record.position, 1, record.sequence_id, record.txid, writer, counter))
    return found


def notes_of(history: RunHistory, longest: int = 3) -> LogObservations:
    """The same as client processes would have noted it."""
    observations = LogObservations("log")
    for append in history.attempts:
        session = observations.sessions.setdefault(
            append.value.writer, ObservedSession(append.value.writer, "log", "w", 0.0, 0)
        )
        assert session.submitted is not None
        session.submitted = max(session.submitted, append.value.counter + 1)
        if append.outcome is Outcome.OK:
            _note_ack(observations, append, longest)
        else:
            observations.failed.append(
                Failed(*append.value, 1, append.begun_at, append.ended_at, append.outcome, "")
            )
    for reading in history.readings:
        part = ReadPart(reading.reader, "log", reading.begun_at, reading.start)
        part.pieces = pieces(reading.records, longest)
        observations.readings.append(part)
    return observations


def _note_ack(observations: LogObservations, append: WriteAttempt, longest: int) -> None:
    assert append.position is not None
    last = observations.acked[-1] if observations.acked else None
    if (
        last is not None
        and (last.session, last.first + last.count) == append.value
        and last.count < longest
        and (last.begun_at, last.ended_at) == (append.begun_at, append.ended_at)
    ):
        last.runs.append((*append.position, 1))
        return
    writer, counter = append.value
    place = (*append.position, 1)
    observations.acked.append(Acked(writer, counter, append.begun_at, append.ended_at, [place]))


def judged(history: RunHistory, final: list[ObservedRecord]) -> LogVerdict:
    return check_log_observations(notes_of(history), pieces(final))


def test_a_sound_history_passes() -> None:
    verdict = judged(*sound())

    assert verdict.violations == []
    assert (verdict.records, verdict.acked, verdict.unknown, verdict.lost) == (60, 60, 3, 0)
    assert verdict.read == 73


WORDS = {"phantom.*never written": "phantom", "G4: .* was begun": "G4: a record"}
"""Where the two checkers say the same in other words."""


@pytest.mark.parametrize(("change", "message"), ANOMALIES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_planted_anomaly_is_found(change: Change, message: str) -> None:
    history, final = sound()
    change(history, final)

    verdict = judged(history, final)

    assert not verdict.is_good
    wanted = WORDS.get(message, message).split(":")[0]
    with pytest.raises(Violation, match=wanted):
        raise Violation(" | ".join(verdict.violations))


def test_lost_records_are_counted_not_only_found() -> None:
    """G3: the question after a power cut is how many."""
    history, final = sound()
    history.readings.clear()

    verdict = judged(history, final[:-7])

    assert verdict.lost == 7
    assert all("G3 lost" in words for words in verdict.violations)


def test_an_unknown_record_may_be_there_once_but_not_twice() -> None:
    """G7."""
    history, final = sound()
    late = history.attempts[-1]
    once = [*final, replace_last(final, late.value)]
    twice = [*once, replace_last(once, late.value)]

    assert judged(history, once).violations == []
    assert any("G7 duplicate" in words for words in judged(history, twice).violations)


def test_what_a_killed_writer_did_not_live_to_note_may_be_there_in_order() -> None:
    """Its session is known, how far it came is not; a hole is one all the same."""
    history, final = sound()
    observations = notes_of(history)
    observations.sessions[3].submitted = None
    more = [*final, replace_last(final, Value(3, 20))]
    more.append(replace_last(more, Value(3, 21)))

    assert check_log_observations(observations, pieces(more)).violations == []
    holed = [*final, replace_last(final, Value(3, 21))]
    assert "G1 hole" in check_log_observations(observations, pieces(holed)).violations[0]


def test_two_readers_that_disagree_below_a_truncation_are_found() -> None:
    """G5, G6: what is gone is compared between those who saw it."""
    history, final = sound()
    observations, rest = notes_of(history), final[40:]
    observations.truncations.append(
        RequestedTruncation("log", 20.0, 20.1, rest[0].position, Outcome.OK)
    )

    assert check_log_observations(observations, pieces(rest)).violations == []

    changed = observations.readings[1].pieces
    changed[0] = changed[0]._replace(counter=changed[0].counter + 1)
    assert "G5 changed" in check_log_observations(observations, pieces(rest)).violations[0]


def test_a_truncation_that_took_too_much_is_found() -> None:
    """G6."""
    history, final = sound()
    observations = notes_of(history)
    observations.truncations.append(
        RequestedTruncation("log", 20.0, 20.1, final[40].position, Outcome.OK)
    )

    verdict = check_log_observations(observations, pieces(final[44:]))

    assert verdict.lost == 4
    assert any("G6" in words for words in verdict.violations)


def random_history(rng: random.Random) -> tuple[RunHistory, list[ObservedRecord]]:
    """A sound one, then, mostly, one small lie anywhere."""
    history, final = sound(records=12, writers=rng.choice((1, 2, 3)), slots=rng.choice((1, 2, 4)))
    for reading in history.readings:
        reading.records = [record for record in reading.records if record in final]
    lie = rng.randrange(9)
    record = rng.randrange(len(final))
    append = rng.choice(history.attempts)
    match lie:
        case 0:
            final.pop(record)
        case 1:
            final.insert(rng.randrange(len(final)), final[record])
        case 2:
            other = rng.randrange(len(final))
            final[record], final[other] = final[other], final[record]
        case 3:
            final[record] = final[record]._replace(value=append.value)
        case 4:
            append.outcome = rng.choice((Outcome.REFUSED, Outcome.UNKNOWN))
            append.position = None
        case 5:
            append.begun_at += rng.uniform(-8, 8)
            append.ended_at = max(append.begun_at, append.ended_at + rng.uniform(-8, 8))
        case 6:
            del final[record:]
        case 7 if history.readings[0].records:
            records = history.readings[0].records
            records.pop(rng.randrange(len(records)))
    return history, final


def test_it_agrees_with_the_checker_of_single_records() -> None:
    rng, verdicts = random.Random(3), []
    for _ in range(1500):
        history, final = random_history(rng)
        try:
            check_log(history, final)
            single = True
        except Violation:
            single = False
        found = check_log_observations(notes_of(history, 1), pieces(final, rng.choice((1, 2, 9))))
        assert found.is_good == single, (history.attempts, final, found.violations)
        verdicts.append(single)

    assert 200 < sum(verdicts) < 1300
