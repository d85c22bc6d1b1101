"""A log through random calls and faults, against its model (`log_machine.py`), and the model against lies.

``DLOG_LOG_RUNS`` sets how many programs; ``python -m tests.log.log_machine`` is the campaign.
"""

import logging
import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis.stateful import run_state_machine_as_test

from distributedlog.log.format.dlsn import DLSN
from distributedlog.runtime.interfaces.errors import LogTruncated, WriteFailed
from tests.log.log_machine import LogMachine, quick
from tests.log.log_model import HeldModel, LogModel, QueueModel, Read

RUNS = int(os.environ.get("DLOG_LOG_RUNS", "3"))
STEPS = 15


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.properties
@pytest.mark.usefixtures("quiet")
def test_random_programs_under_faults_keep_to_the_model() -> None:
    run_state_machine_as_test(LogMachine, settings=quick(RUNS, STEPS, derandomize=True))


def of(number: int, *, slot: int | None = None, sequence_id: int | None = None) -> Read:
    place = DLSN(1, 0, number if slot is None else slot)
    return Read(place, number if sequence_id is None else sequence_id, number, b"%d" % number)


@pytest.fixture
def model() -> LogModel:
    """0 to 3 are acknowledged and committed, 4 is unknown, 5 was refused."""
    made = LogModel()
    for number in range(6):
        made.sent(b"%d" % number, number)
    for number in range(4):
        made.told(b"%d" % number, DLSN(1, 0, number))
    made.committed()
    made.told(b"4", WriteFailed("nobody answered"))
    made.told(b"5", LogTruncated("a definite error"))
    return made


@pytest.mark.parametrize("last", [4, 5])
def test_the_model_takes_what_may_be(model: LogModel, last: int) -> None:
    model.check([of(n) for n in range(last)], None, True)
    model.check([of(n) for n in range(2, last)], DLSN(1, 0, 2), True)
    model.truncated(DLSN(1, 0, 1), DLSN(1, 0, 1))
    model.check([of(n) for n in range(1, last)], None, True)


def with_a_set(model: LogModel) -> LogModel:
    """10 to 12, of which nobody knows whether they are there."""
    model.sent_set([b"10", b"11", b"12"], 12)
    return model


def of_set(number: int, slot: int) -> Read:
    return Read(DLSN(1, 1, slot), slot + 4, 12, b"%d" % number)


def test_the_model_takes_a_set_as_a_whole(model: LogModel) -> None:
    with_a_set(model).check(
        [*map(of, range(4)), *(of_set(10 + n, n) for n in range(3))], None, True
    )
    model.check([of_set(11, 1), of_set(12, 2)], DLSN(1, 1, 1), True)


LIES: dict[str, list[Callable[[LogModel], None]]] = {
    "a set without its last one": [
        lambda m: with_a_set(m).check([*map(of, range(4)), of_set(10, 0), of_set(11, 1)], None, True)
    ],
    "a set in another order": [
        lambda m: with_a_set(m).check(
            [*map(of, range(4)), of_set(11, 0), of_set(10, 1), of_set(12, 2)], None, True
        )
    ],
    "a stretch without what is before its end": [
        lambda m: m.check_stretch([of(1), of(2)], DLSN(1, 0, 1), DLSN(1, 1, 0))
    ],
    "one is missing at the end": [lambda m: m.check([of(n) for n in range(3)], None, True)],
    "one is missing at the begin": [lambda m: m.check([of(n) for n in range(1, 4)], None, True)],
    "one is missing between": [lambda m: m.check([of(0), of(1), of(3)], None, False)],
    "a gap": [lambda m: m.check([*map(of, range(3)), of(3, sequence_id=4)], None, True)],
    "out of order": [lambda m: m.check([of(1), of(0)], None, False)],
    "it moved": [lambda m: m.check([*map(of, range(3)), of(3, slot=9)], None, True)],
    "it was refused": [lambda m: m.check([*map(of, range(4)), of(5, sequence_id=4)], None, True)],
    "nobody wrote it": [lambda m: m.check([*map(of, range(4)), of(7, sequence_id=4)], None, True)],
    "another sequence id than before": [
        lambda m: m.check([of(3, sequence_id=3)], DLSN(1, 0, 3), True),
        lambda m: m.check([of(3, sequence_id=4)], DLSN(1, 0, 3), True),
    ],
    "before where it was to begin": [lambda m: m.check([of(0)], DLSN(1, 0, 1), False)],
    "below the truncation point": [
        lambda m: m.truncated(DLSN(1, 0, 2), DLSN(1, 0, 2)),
        lambda m: m.check([of(1), of(2), of(3)], None, True),
    ],
    "the point goes back": [
        lambda m: m.truncated(DLSN(1, 0, 2), DLSN(1, 0, 2)),
        lambda m: m.truncated(DLSN(1, 0, 2), DLSN(1, 0, 1)),
    ],
    "the point goes too far": [lambda m: m.truncated(DLSN(1, 0, 2), DLSN(1, 0, 3))],
    "it appears after it could": [
        lambda m: m.taken_over(),
        lambda m: m.check([of(n) for n in range(4)], None, True),
        lambda m: m.check([of(n) for n in range(5)], None, True),
    ],
    "acknowledged after it could be": [
        lambda m: m.taken_over(),
        lambda m: m.check([of(n) for n in range(4)], None, True),
        lambda m: m.told(b"4", DLSN(1, 0, 4)),
    ],
    "two at one place": [lambda m: m.told(b"4", DLSN(1, 0, 3))],
    "two places": [lambda m: m.told(b"3", DLSN(1, 0, 4))],
    "refused and there": [lambda m: m.told(b"3", LogTruncated("a definite error"))],
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_the_model_finds_a_lie(model: LogModel, lie: str) -> None:
    *before, last = LIES[lie]
    for call in before:
        call(model)

    with pytest.raises(AssertionError):
        last(model)


def at(number: int) -> DLSN:
    return DLSN(1, number, 0)


def test_the_model_of_a_subscriber_finds_lies() -> None:
    """H155: between what was written and what was noted, of the holders up to the last."""
    held = HeldModel()
    held.taken(at(0))
    held.noted(at(5))
    held.written(at(3))
    for lie in (2, 6):
        with pytest.raises(AssertionError):
            held.taken(at(lie))
    held.taken(at(4))
    with pytest.raises(AssertionError):
        held.taken(at(5))  # noted before another one held it


def test_the_model_of_a_work_queue_finds_lies() -> None:
    """H156: what is done is done, and nothing is left out."""
    queue = QueueModel()
    queue.claimed(at(0), at(4))
    queue.claimed(at(0), at(4))
    queue.finished(at(0), at(4))
    queue.finished(at(4), at(5))
    with pytest.raises(AssertionError):
        queue.claimed(at(3), at(6))
    queue.check_all([at(number) for number in range(5)])
    with pytest.raises(AssertionError):
        queue.check_all([at(5)])
