"""Values that say where they come from, and histories that can be judged again later."""

import pytest

from distributedlog.testing.verify.history.run_history import (
    ObservedRecord,
    Outcome,
    RunHistory,
    Value,
    from_payload,
    to_payload,
)


@pytest.mark.parametrize("size", [0, 20, 21, 5000])
def test_a_payload_says_who_wrote_it(size: int) -> None:
    payload = to_payload(Value(7, 123_456), size)

    assert len(payload) == max(size, 20)
    assert from_payload(payload) == Value(7, 123_456)


def test_a_changed_payload_is_nobodys() -> None:
    payload = to_payload(Value(7, 1), 64)

    assert from_payload(payload[:-1]) is None
    assert from_payload(payload[:10]) is None
    assert from_payload(payload + b"x") is None
    for at in range(len(payload)):
        changed = bytearray(payload)
        changed[at] ^= 4
        assert from_payload(changed) is None


def test_a_saved_history_is_the_same() -> None:
    history = RunHistory()
    writer = history.new_writer()
    one = history.begin_attempt(Value(writer, 0), 1.0)
    one.ended_at, one.outcome, one.position = 2.0, Outcome.OK, (1, 0, 0)
    history.begin_attempt(Value(writer, 1), 1.5)
    reading = history.begin_reading("r", 3.0, (1, 0, 0))
    reading.records.append(ObservedRecord((1, 0, 0), 0, 5, Value(writer, 0)))

    again = RunHistory.load(history.save())

    assert again.attempts == history.attempts
    assert again.readings == history.readings
    assert again.writers == 1
    assert again.acked_count == 1
